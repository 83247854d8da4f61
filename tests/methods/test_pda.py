"""PDA: sizes, both contexts and features in one map, and nothing in it that others do not say."""

import inspect
import re
from collections import OrderedDict

import pytest
import reference
import torch
from conftest import make_classifier, make_images
from torch import nn
from torch.nn import functional as F

from captum_pda import (
    PDA,
    ConstantPrior,
    EfficientPDA,
    GradientPDA,
    LayerPDA,
    MapMeanPrior,
    SampledPDA,
    TreePDA,
    strongest_regions,
)

IMAGE = make_images(1, 3, 14, 12)
PRIOR = MapMeanPrior()  # quick, and it has both contexts


def test_its_parts_are_those_of_efficient_pda_in_both_contexts_and_of_layer_pda():
    model = make_classifier()
    pda = PDA(model, prior=PRIOR)
    evidence = pda.evidence(IMAGE)
    both = EfficientPDA(model, PRIOR).evidence(IMAGE, context="both")
    features = LayerPDA(model).evidence(IMAGE)
    assert pda.layer_name == "1"
    assert [(part.size, part.context, part.depth) for part in evidence.parts] == [
        ((2, 2), "full", "input"),
        ((3, 3), "full", "input"),
        ((3, 3), "empty", "input"),
        ((5, 5), "empty", "input"),
        ((1, 1), "full", "1"),
    ]
    for part, expected in zip(evidence.parts, both.parts + features.parts, strict=True):
        torch.testing.assert_close(part.values(2), expected.values(2))


@pytest.mark.parametrize("target", [0, 3])
def test_its_map_is_the_mean_over_sizes_and_the_weighted_mean_over_questions(target):
    model = make_classifier()
    full, empty = (
        [
            EfficientPDA(model, PRIOR)
            .attribute(IMAGE, target, sliding_window_shapes=size, strides=1, context=context)[0, 0]
            .numpy()
            for size in sizes
        ]
        for context, sizes in (("full", (2, 3)), ("empty", (3, 5)))
    )
    features = LayerPDA(model, model[2]).attribute(IMAGE, target)
    features = F.interpolate(features, size=IMAGE.shape[2:], mode="bilinear")[0, 0].numpy()
    expected = torch.from_numpy(reference.combined([full, empty, [features]]))
    found = PDA(model, model[2], PRIOR).attribute(IMAGE, target)
    assert found.shape == IMAGE.shape
    torch.testing.assert_close(found[0, 1], expected, rtol=1e-9, atol=1e-9)


def test_a_contrast_and_the_strongest_regions_come_from_the_same_passes():
    evidence = PDA(make_classifier(), prior=PRIOR).evidence(IMAGE)
    torch.testing.assert_close(evidence.contrast(0, 2), -evidence.contrast(2, 0))
    speak_for, speak_against = strongest_regions(evidence, 1)
    assert speak_for[0].value > 0 > speak_against[0].value
    assert {region.shape for region in speak_for + speak_against} == {(3, 3)}


def test_a_model_without_a_feature_map_is_asked_the_other_questions_and_told_so_once():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 14 * 12, 3)).double().eval()
    pda = PDA(model, prior=PRIOR)
    with pytest.warns(UserWarning, match="PDA goes without the features of a layer: Sequential"):
        found = pda.attribute(IMAGE, target=1)
    assert pda.layer_name is None
    both = EfficientPDA(model, PRIOR).attribute(IMAGE, target=1, context="both")
    torch.testing.assert_close(found, both)
    pda.attribute(IMAGE, target=1)  # a second warning would be an error


def test_several_inputs_are_explained_without_features():
    model = make_classifier()
    with pytest.warns(UserWarning, match="several input tensors"):
        maps = PDA(lambda x, y: model(x + y), prior=PRIOR).attribute(
            (IMAGE, 0.5 * IMAGE), target=1, scales=4
        )
    assert [each.shape for each in maps] == [IMAGE.shape, IMAGE.shape]


def test_a_layer_that_is_named_is_asked_and_one_that_is_none_is_refused():
    model = make_classifier()
    pda = PDA(model, "0", PRIOR)
    evidence = pda.evidence(IMAGE, scales=(3, 7))
    assert pda.layer_name == evidence.parts[-1].depth == "0"
    assert evidence.at_depth("0").parts == evidence.parts[-1:]
    with pytest.raises(ValueError, match="layer='head' is not a module of the model"):
        PDA(model, layer="head")


def test_every_example_of_a_batch_gets_the_map_that_it_gets_alone():
    model, images = make_classifier(), make_images(2, 3, 14, 12)
    together = PDA(model, prior=PRIOR).attribute(images, target=[1, 2])
    for n, target in enumerate((1, 2)):
        alone = PDA(model, prior=PRIOR).attribute(images[n : n + 1], target=target)
        torch.testing.assert_close(together[n : n + 1], alone)


def test_a_run_that_is_stopped_keeps_what_was_finished():
    model = make_classifier()
    calls = []

    def stops(x):
        calls.append(len(x))
        if sum(calls) > 250:
            raise KeyboardInterrupt
        return model(x)

    with pytest.raises(KeyboardInterrupt) as stopped:
        PDA(stops, model[1], PRIOR, engine="dense").evidence(IMAGE, perturbations_per_eval=10)
    first, *_, last = stopped.value.result.parts
    torch.testing.assert_close(
        first.values(1),
        EfficientPDA(model, PRIOR).evidence(IMAGE, sliding_window_shapes=2).window_values(1),
    )
    assert last.values(1).isnan().all()
    assert stopped.value.result.partial_attribution(1).isfinite().any()


def test_a_feature_mask_takes_the_place_of_windows():
    mask = torch.arange(14 * 12).reshape(1, 1, 14, 12) // 21
    pda = PDA(make_classifier(), prior=PRIOR)
    evidence = pda.evidence(IMAGE, feature_mask=mask)
    assert [len(part.regions) for part in evidence.parts] == [8, 8]
    attribution = evidence.attribution(1)
    for number in range(8):
        assert len(attribution[0, 0][mask[0, 0] == number].unique()) == 1


def test_features_fill_with_the_maps_mean_whatever_the_prior_of_the_input():
    model = make_classifier()
    evidence = PDA(model, prior=ConstantPrior(0.0)).evidence(IMAGE)
    features = LayerPDA(model, prior=MapMeanPrior()).evidence(IMAGE)
    torch.testing.assert_close(evidence.parts[-1].values(1), features.parts[0].values(1))


@pytest.mark.parametrize("space", [(72, 80), (3, 4000), (5000,), (20, 24, 22)])
def test_a_large_feature_map_is_asked_in_blocks(space):
    """Its places would be tens of thousands, as of a network for segmentation."""
    dims = len(space)
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](1, 2, 1)
    head = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dims - 1](1)
    model = nn.Sequential(convolution, nn.Tanh(), head, nn.Flatten(), nn.Linear(2, 3)).eval()
    pda = PDA(model, prior=ConstantPrior(0.0), engine="dense")
    evidence = pda.evidence(torch.rand(1, 1, *space), effort="quick")
    assert evidence.parts[-1].depth != "input"
    assert 500 < len(evidence.parts[-1].regions) <= 1500
    assert evidence.attribution(0).shape == (1, 1, *space)


def test_a_layer_that_is_called_input_is_told_from_the_input():
    names = ("input", "then", "pool", "flat", "last")
    model = nn.Sequential(OrderedDict(zip(names, make_classifier(), strict=True))).eval()
    evidence = PDA(model, "input", PRIOR).evidence(IMAGE, scales=3)
    assert [part.depth for part in evidence.parts] == ["input", "input", "input (layer)"]
    assert len(evidence.at_depth("input").parts) == 2


@pytest.mark.parametrize("context", ["full", "empty", "both"])
@pytest.mark.parametrize("windows", [{"sliding_window_shapes": 4, "strides": 2}, {"scales": 5}, {}])
def test_the_questions_and_windows_of_the_input_are_those_that_were_asked(context, windows):
    model = make_classifier()
    pda = PDA(model, prior=PRIOR)
    evidence = pda.evidence(IMAGE, context=context, **windows)
    of_input, of_features = evidence.at_depth("input"), evidence.parts[-1]
    assert of_features.depth == pda.layer_name
    alone = EfficientPDA(model, PRIOR).evidence(IMAGE, context=context, **windows)
    assert [(part.context, len(part.regions)) for part in of_input.parts] == [
        (part.context, len(part.regions)) for part in alone.parts
    ]
    torch.testing.assert_close(of_input.attribution(1), alone.attribution(1))
    found = pda.attribute(IMAGE, target=1, context=context, **windows)
    torch.testing.assert_close(found, evidence.attribution(1))


@pytest.mark.parametrize("method", [PDA, EfficientPDA, SampledPDA, GradientPDA, LayerPDA, TreePDA])
@pytest.mark.parametrize("name", ["__new__", "attribute", "evidence"])
def test_every_argument_is_documented_where_it_is_taken(method, name):
    function = method if name == "__new__" else getattr(method, name, None)
    if function is None:
        assert method in (GradientPDA, TreePDA)
        return
    page = inspect.getdoc(function)
    assert page.count("\nArgs:\n") == 1
    arguments = [name for name in inspect.signature(function).parameters if name != "self"]
    assert re.findall(r"^    (\w+): \S", page, re.MULTILINE) == arguments
    assert not re.search(r"as (in|for) (``)?EfficientPDA", page)
