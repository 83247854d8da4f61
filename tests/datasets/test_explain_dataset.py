"""A data set explained by any Captum attribution, on one process or two."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from captum.attr import Saliency
from conftest import make_classifier, make_images
from rank_pool import RankPool
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from captum_pda import (
    ConstantPrior,
    EfficientPDA,
    GaussianPatchPrior,
    OtherRankError,
    ResultFolder,
    SettingsError,
    explain_dataset,
)
from captum_pda.fingerprints import fingerprint, weights_fingerprint

N, BROKEN = 7, 3


class Examples(Dataset):
    """Images with labels, one of which cannot be read."""

    def __init__(self, broken: int | None = BROKEN) -> None:
        self.images, self.broken = make_images(N, 3, 6, 7), broken
        self.read: list[int] = []

    def __len__(self) -> int:
        return N

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        self.read.append(number)
        if number == self.broken:
            raise OSError("image file\nis truncated")
        return self.images[number], number % 4


def explain(folder: Path, examples: Dataset, attribution=None, **arguments):
    attribution = attribution or EfficientPDA(make_classifier(), engine="dense")
    return explain_dataset(
        attribution, examples, ResultFolder(folder), sliding_window_shapes=3, **arguments
    )


def check_results(folder: Path, missing: tuple[int, ...] = ()) -> None:
    for number, image in enumerate(Examples().images):
        if number in missing:
            assert not ResultFolder(folder).place(number).exists()
            continue
        pda = EfficientPDA(make_classifier(), engine="dense")
        expected = pda.attribute(image[None], target=number % 4, sliding_window_shapes=3)
        torch.testing.assert_close(ResultFolder(folder).read(number), expected, rtol=0, atol=0)
    assert not list(folder.glob(".*"))


def test_every_example_has_its_map_and_a_rerun_does_what_is_missing(tmp_path, capsys):
    summary = explain(tmp_path, Examples(), show_progress=True)
    assert (summary.explained, summary.done_before) == (N - 1, 0)
    assert summary.failed == {BROKEN: "image file is truncated"}
    assert re.search(rf"Explaining: 100%\|█+\| {N}/{N} ", capsys.readouterr().err)
    check_results(tmp_path, missing=(BROKEN,))

    examples = Examples(broken=None)
    summary = explain(tmp_path, DataLoader(examples, batch_size=2))
    assert (summary.explained, summary.done_before, summary.failed) == (1, N - 1, {})
    check_results(tmp_path)


def test_a_damaged_result_is_named_and_made_anew_once_it_is_removed(tmp_path):
    """It may as well be a file of the user's own."""
    explain(tmp_path, Examples(None))
    place = ResultFolder(tmp_path).place(2)
    place.write_bytes(place.read_bytes()[:100])
    assert "000002.safetensors is not a whole result" in explain(tmp_path, Examples(None)).failed[2]
    place.unlink()
    assert explain(tmp_path, Examples(None)).explained == 1
    check_results(tmp_path)


@pytest.mark.parametrize(
    ("attribution", "arguments", "changed"),
    [
        (
            lambda m: EfficientPDA(m, engine="dense"),
            {"strides": 2},
            "arguments.strides was null and is now 2",
        ),
        (lambda m: EfficientPDA(m, engine="dense"), {"target": 2}, "target was null and is now 2"),
        (
            lambda m: EfficientPDA(m, ConstantPrior(0.0), engine="dense"),
            {},
            "prior.kind was",
        ),
        (
            lambda m: EfficientPDA(m.requires_grad_(False), engine="incremental"),
            {},
            "engine.kind was",
        ),
        (
            lambda m: EfficientPDA(make_classifier(seed=5), engine="dense"),
            {},
            "weights_sha256 was",
        ),
    ],
)
def test_a_changed_setting_is_refused(tmp_path, attribution, arguments, changed):
    explain(tmp_path, Examples(None))
    with pytest.raises(SettingsError, match=changed) as refused:
        explain(tmp_path, Examples(None), attribution(make_classifier()), **arguments)
    assert "Choose another folder" in str(refused.value)
    check_results(tmp_path)


def test_settings_are_with_every_result(tmp_path):
    from safetensors import safe_open

    explain(tmp_path, Examples(None), target=1)
    with safe_open(tmp_path / "000004.safetensors", framework="pt") as file:
        found = json.loads(file.metadata()["settings"])
    assert (found["number"], found["own_target"], found["method"]) == (4, 1, "EfficientPDA")
    assert found["arguments"] == {"sliding_window_shapes": 3}
    assert found["torch"] == torch.__version__
    assert found["weights_sha256"] == weights_fingerprint(make_classifier())


def test_any_attribution_and_items_without_a_target(tmp_path):
    images = list(make_images(3, 3, 6, 7))
    model = make_classifier()
    warnings.simplefilter("ignore")  # Saliency says that it needs gradients
    explain_dataset(Saliency(model), images, ResultFolder(tmp_path), target=2)
    expected = Saliency(model).attribute(images[1][None].requires_grad_(), target=2)
    torch.testing.assert_close(ResultFolder(tmp_path).read(1), expected)


def test_what_is_no_data_set(tmp_path):
    with pytest.raises(TypeError, match="map-style Dataset"):
        explain(tmp_path, iter([]))
    summary = explain(tmp_path, [1])
    assert "a tensor \\(C, \\*space\\) was expected".replace("\\", "") in summary.failed[0]


@pytest.mark.parametrize("content", ["[]", "{"])
def test_settings_that_cannot_be_read(tmp_path, content):
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(SettingsError, match="choose another folder"):
        explain(tmp_path, Examples())


def test_fingerprints_know_what_matters():
    images = make_images(2, 3, 9, 9)
    prior = GaussianPatchPrior(5).fit(images)
    before = fingerprint(prior)
    EfficientPDA(make_classifier(), prior=prior).attribute(images[:1], target=0)  # fills its cache
    assert fingerprint(prior) == before
    others = [
        prior.partial_fit(images[:1]),
        ConstantPrior(0.0),
        ConstantPrior(1.0),
        make_classifier,
    ]
    assert len({before, *map(fingerprint, others)}) == 5


class Keeping:
    """A writer that keeps results in memory."""

    def __init__(self):
        self.kept = {}

    def start(self, settings): ...

    def stored(self, number):
        return self.kept.get(number, (None, None))[1]

    def write(self, number, attributions, record):
        self.kept[number] = attributions, record


def test_a_writer_of_ones_own():
    writer, pda = Keeping(), EfficientPDA(make_classifier(), engine="dense")
    assert explain_dataset(pda, Examples(None), writer).explained == N
    assert explain_dataset(pda, Examples(None), writer).done_before == N


@pytest.mark.parametrize("name", ["start", "stored", "write"])
def test_a_writer_without_a_method_is_refused_before_the_first_example(name):
    writer, examples = Keeping(), Examples(None)
    setattr(writer, name, None)
    with pytest.raises(TypeError, match=f"has no method {name}; a writer needs {name}\\("):
        explain_dataset(EfficientPDA(make_classifier()), examples, writer)
    setattr(writer, name, lambda: None)
    with pytest.raises(TypeError, match=rf"cannot be called as {name}\("):
        explain_dataset(EfficientPDA(make_classifier()), examples, writer)
    with pytest.raises(TypeError, match=r"writer=Keeping is a class; pass an object, Keeping\(\)"):
        explain_dataset(EfficientPDA(make_classifier()), examples, Keeping)
    assert examples.read == []


# Two ranks


def explain_on(rank: int, folder: Path, broken: int | None):
    examples = Examples(broken)
    summary = explain(folder, examples, process_group=dist.group.WORLD)
    return examples.read, summary


def test_two_ranks_share_the_examples(pool: RankPool, tmp_path):
    (first, summary), (second, other_summary) = pool(explain_on, tmp_path, BROKEN)
    assert sorted(first + second) == list(range(N))
    assert summary == other_summary
    assert summary.failed == {BROKEN: "image file is truncated"}
    check_results(tmp_path, missing=(BROKEN,))
    (first, summary), (second, _) = pool(explain_on, tmp_path, None)
    assert sorted(first + second) == list(range(N))
    assert summary.done_before == N - 1
    check_results(tmp_path)


class Interrupting(Examples):
    """Stops the first rank at its first example, as ctrl-C does."""

    def __init__(self, rank: int) -> None:
        super().__init__(None)
        self.rank = rank

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if self.rank == 0:
            raise KeyboardInterrupt
        return super().__getitem__(number)


def explain_interrupted(rank: int, folder: Path) -> str:
    try:
        explain(folder, Interrupting(rank), process_group=dist.group.WORLD)
    except KeyboardInterrupt:
        return "stopped"
    return "done"


def test_a_stopped_rank_is_noticed(pool: RankPool, tmp_path):
    first, second = pool(explain_interrupted, tmp_path)
    assert first == "stopped"
    assert isinstance(second, OtherRankError)
    assert "run the same command again" in str(second)


def explain_differently(rank: int, folder: Path):
    return explain(folder, Examples(), process_group=dist.group.WORLD, strides=1 + rank)


def test_ranks_with_different_settings_are_refused(pool: RankPool, tmp_path):
    first, second = pool(explain_differently, tmp_path)
    assert isinstance(first, OtherRankError)
    assert isinstance(second, SettingsError)
