"""TreePDA: Owen values that add up, exact on small trees, refined within a number of passes."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from conftest import Counting, make_classifier, make_images
from torch import nn

from captum_pda import ConstantPrior, EfficientPDA, TreePDA
from captum_pda.regions.tree import RegionTree, tiles

TILES = torch.arange(8)[:, None] // 4 * 3 + torch.arange(9) // 3
NESTED = ((0, (1, 2)), ((3, 4), 5))


def reference_values(model, image, change, target, output="logits"):
    masks = np.stack([(number == TILES).numpy() for number in range(6)])

    def value(present):
        copy = change(image, masks, ~present)
        return reference.measured(reference.predict(model, copy, target, output))

    return reference.owen_values(NESTED, value)


@pytest.mark.parametrize(
    ("fill", "change"),
    [("nothing_seen", reference.see_together), ("conditional", reference.hide_together)],
)
def test_a_tree_that_is_asked_whole_has_the_exact_owen_values(fill, change):
    image, model = make_images(1, 3, 8, 9), make_classifier()
    expected = reference_values(model, image[0].numpy(), change, 2)
    tree = TreePDA(model, fill=fill).tree(
        image, target=2, feature_mask=TILES, tree=NESTED, n_evaluations=1000
    )
    np.testing.assert_allclose(tree.values[:6], expected, atol=1e-4)
    for number in range(6):
        inside = tree.map[(number == TILES).numpy()]
        np.testing.assert_allclose(inside, expected[number] / 12, atol=1e-5)
    assert tree.total == pytest.approx(expected.sum(), abs=1e-4)


@pytest.mark.parametrize("n_evaluations", [2, 3, 10, 41])
@pytest.mark.parametrize("output", ["logits", "raw"])
def test_the_map_adds_up_to_the_total_whatever_the_passes(n_evaluations, output):
    images, model = make_images(2, 3, 16, 18), Counting(make_classifier())
    pda = TreePDA(model, output=output)
    found = pda.attribute(images, target=1, n_evaluations=n_evaluations)
    assert found.shape == images.shape
    assert torch.equal(found[:, 0], found[:, 2])
    other = EfficientPDA(model, output=output).evidence(images, context="empty")
    for number in range(2):
        total = float(other.total(1)[number])
        assert float(found[number].sum()) == pytest.approx(total, abs=1e-4)
        tree = pda.tree(images[number : number + 1], target=1, n_evaluations=n_evaluations)
        assert tree.total == pytest.approx(total, abs=1e-4)
        assert float(found[number].sum()) == pytest.approx(tree.total, abs=1e-12)
        assert tree.n_evaluations <= n_evaluations or n_evaluations == 2


def test_the_values_of_two_halves_add_up_to_that_of_the_whole_at_every_split():
    image, pda = make_images(1, 3, 8, 9), TreePDA(make_classifier())
    for n_evaluations in range(1, 51):
        tree = pda.tree(image, target=1, n_evaluations=n_evaluations, feature_mask=TILES)
        assert tree.values[tree.tree.root] == pytest.approx(tree.total, abs=1e-9)
        for node in np.flatnonzero(tree.weights):
            halves = tree.values[list(tree.tree.children(node))]
            assert halves.sum() == pytest.approx(tree.values[node], abs=1e-9)
        for split in tree.splits():
            inside = [tree.map[pixels].sum() for pixels in split.pixels]
            assert split.values == pytest.approx(inside, abs=1e-9)


def test_no_more_passes_than_were_given():
    model = Counting(make_classifier())
    TreePDA(model).attribute(make_images(1, 3, 24, 24), target=1, n_evaluations=60)
    assert model.rows <= 60 + 4  # and those that look at the outputs and at how they are made


def test_evidence_is_found_where_it_lies():
    class Corner(nn.Module):
        def forward(self, x):
            score = 20 * x[:, 0, 3:9, 12:18].mean(dim=(1, 2)) - 10
            return torch.stack([score, torch.zeros_like(score)], dim=1)

    image = make_images(1, 1, 32, 32).float() * 0.01
    image[:, :, 3:9, 12:18] = 1.0
    tree = TreePDA(Corner(), ConstantPrior(0.0)).tree(image, target=0, n_evaluations=200)
    inside = tree.map[3:9, 12:18].sum()
    assert inside > 0.9 * tree.total


def test_the_interaction_of_each_split_is_kept():
    class Both(nn.Module):
        def forward(self, x):
            tiles = nn.functional.avg_pool2d(x, 4).flatten(1)
            score = 8 * tiles[:, 0] * tiles[:, 1] + 4 * torch.maximum(tiles[:, 2], tiles[:, 3])
            return torch.stack([score, torch.zeros_like(score)], dim=1)

    image = torch.ones(1, 1, 8, 8)
    mask = torch.arange(8)[:, None] // 4 * 2 + torch.arange(8) // 4
    tree = TreePDA(Both(), ConstantPrior(0.0)).tree(
        image, target=0, feature_mask=mask, tree=((0, 1), (2, 3)), n_evaluations=100
    )
    one, other = tree.splits(2)
    assert one.interaction == pytest.approx(-8 / np.log(2), rel=1e-4)
    assert one.meaning == "they speak only together"
    assert other.interaction == pytest.approx(4 / np.log(2), rel=1e-4)
    assert other.meaning == "each covers for the other"
    assert one.weight == other.weight == 1
    assert np.array_equal(one.pixels[0], (mask == 0).numpy())
    assert "they speak only together" in str(one)
    assert tree.splits()[-1].interaction == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("shape", [(1, 2, 40), (1, 3, 70, 66), (1, 1, 10, 12, 8)])
def test_signals_photos_and_volumes(shape):
    dims = len(shape) - 2
    model = make_classifier(dims, channels=shape[1])
    found = TreePDA(model).attribute(make_images(*shape), target=1, n_evaluations=20)
    assert found.shape == shape
    assert found.isfinite().all()
    assert float(found.std()) > 0


def test_an_interrupted_run_has_a_map_that_adds_up():
    model = Counting(make_classifier())
    image = make_images(1, 3, 16, 18)
    pda = TreePDA(model)
    whole = pda.tree(image, target=1, n_evaluations=100)
    model.stop_after = model.rows + 40
    with pytest.raises(KeyboardInterrupt) as caught:
        pda.attribute(image, target=1, n_evaluations=100)
    assert float(caught.value.result.sum()) == pytest.approx(whole.total, abs=1e-4)
    model.stop_after = model.rows + 40
    with pytest.raises(KeyboardInterrupt) as caught:
        pda.tree(image, target=1, n_evaluations=100)
    assert 2 < caught.value.result.n_evaluations < 100
    # In the first passes no part is known.
    model.stop_after = model.rows + 4
    with pytest.raises(KeyboardInterrupt) as caught:
        pda.attribute(image, target=1, n_evaluations=100, perturbations_per_eval=1)
    assert caught.value.result.shape == image.shape
    assert caught.value.result.isnan().all()


def test_neighbours_of_one_colour_merge_first():
    image = torch.zeros(1, 12, 12)
    image[:, :, 6:] = 1.0
    leaves = tiles((12, 12), 16)
    tree = RegionTree.of_image(image, leaves)
    left, right = tree.children(tree.root)
    halves = {
        tuple(np.unique(np.nonzero(tree.pixels(tree.members[one]))[1])) for one in (left, right)
    }
    assert halves == {tuple(range(6)), tuple(range(6, 12))}
    assert len(tree) == 2 * 16 - 1
    # Each node is connected: superpixels are merged with neighbours only.
    from scipy.ndimage import label

    assert all(label(tree.pixels(members))[1] == 1 for members in tree.members)


def test_regions_without_neighbours_are_merged_too():
    leaves = np.array([[0, 0, 1, 1, 1, 2, 2]])
    tree = RegionTree.of_image(torch.zeros(1, 1, 7), leaves)
    assert tree.members[tree.root].all()
    mask = torch.zeros(1, 1, 8, 9, dtype=torch.int64)
    found = TreePDA(make_classifier()).attribute(
        make_images(1, 3, 8, 9), target=0, feature_mask=mask
    )
    assert float(found.std()) < 1e-12  # one region has all of it


def test_arguments_that_make_no_sense_are_named():
    image, pda = make_images(1, 3, 8, 9), TreePDA(make_classifier())
    with pytest.raises(ValueError, match="fill"):
        TreePDA(make_classifier(), fill="grey")
    with pytest.raises(ValueError, match="give that too"):
        pda.attribute(image, target=0, tree=NESTED)
    for tree, message in ((((0, 1), 2), "each of them once"), ((0, "a"), "'a'")):
        with pytest.raises(ValueError, match=message):
            pda.attribute(image, target=0, feature_mask=TILES, tree=tree)
    with pytest.raises(TypeError, match="superpixels must be an int"):
        pda.attribute(image, target=0, superpixels=(5, 6))
    with pytest.raises(ValueError, match="examples"):
        pda.tree(make_images(2, 3, 8, 9), target=0)
    with pytest.raises(ValueError, match="one tensor"):
        pda.attribute((image, image), target=0)
    with pytest.raises(ValueError, match="n_evaluations"):
        pda.attribute(image, target=0, n_evaluations=0)


def test_the_bar_says_how_many_passes(capsys):
    TreePDA(make_classifier()).attribute(
        make_images(1, 3, 8, 9), target=0, n_evaluations=20, show_progress=True
    )
    assert "Tree PDA: 20 passes" in capsys.readouterr().err


def test_a_model_left_in_training_mode_is_told_once():
    model = nn.Sequential(make_classifier(), nn.Dropout(0.5)).train()
    image = make_images(2, 3, 16, 18)
    with pytest.warns(UserWarning, match="in training mode") as caught:
        found = TreePDA(model).attribute(image, target=1, n_evaluations=40)
    assert len(caught) == 1
    assert all(module.training for module in model.modules())
    torch.testing.assert_close(
        found, TreePDA(model.eval()).attribute(image, target=1, n_evaluations=40)
    )
