"""A data set explained by any Captum attribution, on one process or two."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import make_classifier, make_images
from rank_pool import RankPool
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from captum_pda import (
    EfficientPDA,
    OtherRankError,
    ResultFolder,
    SettingsError,
    explain_dataset,
)
from captum_pda.fingerprints import weights_fingerprint

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


@pytest.mark.parametrize("start", [b"", b"mine"])
def test_a_file_that_is_no_whole_result_is_left_alone_until_it_is_removed(tmp_path, start):
    """It may be a file of the user's own, as well as a damaged one."""
    explain(tmp_path, Examples(None))
    place = ResultFolder(tmp_path).place(2)
    content = start or place.read_bytes()[:100]
    place.write_bytes(content)
    assert "000002.safetensors is not a whole result" in explain(tmp_path, Examples(None)).failed[2]
    assert place.read_bytes() == content
    place.unlink()
    assert explain(tmp_path, Examples(None)).explained == 1
    check_results(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ({"strides": 2}, "arguments.strides was null and is now 2"),
        ({"target": 2}, "target was null"),
    ],
)
def test_a_changed_argument_is_refused(tmp_path, arguments, changed):
    explain(tmp_path, Examples(None))
    with pytest.raises(SettingsError, match=rf"{changed}.*Choose another folder"):
        explain(tmp_path, Examples(None), **arguments)
    check_results(tmp_path)


def test_settings_are_with_every_result(tmp_path):
    from safetensors import safe_open

    explain(tmp_path, Examples(None), target=1)
    with safe_open(tmp_path / "000004.safetensors", framework="pt") as file:
        found = json.loads(file.metadata()["settings"])
        outputs = file.get_tensor("outputs")
    torch.testing.assert_close(outputs, make_classifier()(Examples().images)[4])
    assert (found["number"], found["own_target"], found["method"]) == (4, 1, "EfficientPDA")
    assert found["arguments"] == {"sliding_window_shapes": 3}
    assert found["torch"] == torch.__version__
    assert found["weights_sha256"] == weights_fingerprint(make_classifier())


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
    for given in (writer, Keeping):
        with pytest.raises(TypeError, match="has no method"):
            explain_dataset(EfficientPDA(make_classifier()), examples, given)
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
