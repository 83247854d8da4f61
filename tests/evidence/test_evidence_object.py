"""Evidence as an object: examples of a batch, files, words and pictures of it."""

import json
import pickle
import re
import struct
from dataclasses import dataclass, replace

import matplotlib
import numpy as np
import pytest
import torch
from conftest import make_classifier, make_convolutional, make_images
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from captum_pda import (
    PDA,
    ConstantPrior,
    EfficientPDA,
    GradientPDA,
    LayerPDA,
    SampledPDA,
    WindowEvidence,
    strongest_regions,
)
from captum_pda.evidence.storage import FORMAT
from captum_pda.model.measures import Measure


def superpixels_of(n: int = 3) -> WindowEvidence:
    """Examples with superpixels of their own, in both contexts, and a feature map."""
    pda = PDA(make_convolutional(), prior=ConstantPrior(0.2), engine="dense")
    return pda.evidence(make_images(n, 3, 20, 26).float(), superpixels=(6, 12))


def sampled() -> WindowEvidence:
    pda = SampledPDA(make_classifier(dims=1), engine="dense")
    generator = torch.Generator().manual_seed(0)
    inputs = make_images(2, 3, 30)
    return pda.evidence(inputs, n_samples=3, sliding_window_shapes=8, generator=generator)


def signal() -> WindowEvidence:
    return PDA(make_classifier(dims=1), engine="dense").evidence(make_images(1, 3, 300))


def volumes() -> WindowEvidence:
    pda = EfficientPDA(make_classifier(dims=3), engine="dense")
    return pda.evidence(make_images(1, 3, 6, 8, 7), superpixels=5)


def two_tensors() -> WindowEvidence:
    model, other = make_classifier(), make_classifier(channels=1, seed=3)
    pda = EfficientPDA(lambda x, y: model(x) + other(y), engine="dense")
    inputs = (make_images(2, 3, 12, 12), make_images(2, 1, 9, 10))
    return pda.evidence(inputs, sliding_window_shapes=((4, 4), (3, 3)))


def masks_of_each() -> WindowEvidence:
    """Each example lacks the first regions of the others; labels of any size."""
    mask = torch.arange(12)[:, None] // 4 * 3 + torch.arange(12) // 4
    masks = torch.stack([mask.clamp_min(2 * n) for n in range(2)])[:, None] * 10**10 - 7
    pda = EfficientPDA(make_classifier(), output="raw", engine="dense")
    return pda.evidence(make_images(2, 3, 12, 12), feature_mask=masks)


def of_layer() -> WindowEvidence:
    return LayerPDA(make_convolutional()).evidence(make_images(2, 3, 16, 16).float())


def half() -> WindowEvidence:
    pda = EfficientPDA(make_classifier().to(torch.bfloat16), output="multilabel", engine="dense")
    return pda.evidence(make_images(1, 3, 12, 12).to(torch.bfloat16), sliding_window_shapes=4)


KINDS = {
    "superpixels": superpixels_of,
    "samples": sampled,
    "volume": volumes,
    "two tensors": two_tensors,
    "masks": masks_of_each,
    "layer": of_layer,
    "half": half,
}


@pytest.fixture(scope="module", params=KINDS)
def evidence(request):
    return KINDS[request.param]()


def assert_same_evidence(found: WindowEvidence, expected: WindowEvidence) -> None:
    for target in range(4):
        maps = [one.attribution(target) for one in (found, expected)]
        assert_close(*maps, rtol=0, atol=0, equal_nan=True)
    assert_close(found.n_drawn, expected.n_drawn)
    if expected.parts[0].errors is not None:
        assert_close(found.standard_error(1), expected.standard_error(1), rtol=0, atol=0)
    assert str(found) == str(expected)
    assert repr(found) == repr(expected)
    if len(expected.inputs) == 1:
        for example in range(len(expected)):
            lists = [strongest_regions(one, 1, example=example) for one in (found, expected)]
            assert [[str(r) for r in kind] for kind in lists[0]] == [
                [str(r) for r in kind] for kind in lists[1]
            ]


def rows_of(maps, rows):
    return tuple(one[rows] for one in maps) if isinstance(maps, tuple) else maps[rows]


def test_an_example_of_a_batch_is_evidence_by_itself(evidence):
    assert len(list(evidence)) == len(evidence)
    last = len(evidence) - 1
    chosen_rows = ((evidence[np.int64(last)], [last]), (evidence[-1], [last]), (evidence[:1], [0]))
    for chosen, rows in chosen_rows:
        assert len(chosen) == 1
        expected = rows_of(evidence.attribution(2), rows)
        assert_close(chosen.attribution(2), expected, rtol=1e-12, atol=0)
        if len(evidence.inputs) == 1:
            own, whole = (
                strongest_regions(one, 1, example=example)
                for one, example in ((chosen, None), (evidence, rows[0]))
            )
            assert [str(r) for r in own[0]] == [str(r) for r in whole[0]]
    with pytest.raises(IndexError, match=f"out of range; it holds {len(evidence)} example"):
        evidence[len(evidence)]
    with pytest.raises(ValueError, match="no examples in the batch"):
        evidence[5:]


def test_an_example_asks_the_model_about_itself():
    evidence = superpixels_of()
    own, whole = evidence[1:][1].self_test(3), evidence.self_test(3, example=2)
    assert_close(own.hidden, whole.hidden, rtol=1e-6, atol=0)
    assert_close(own.shown, whole.shown, rtol=1e-6, atol=0)
    assert_close(evidence[2].total(1), evidence.total(1)[2:])
    assert_close(evidence.map(3, example=2), evidence.attribution(3)[2, 0])
    assert_close(evidence[2].map(3, rather_than=1), evidence.contrast(3, 1)[2, 0])
    hidden = torch.zeros(1, 20, 26, dtype=torch.bool)
    hidden[0, :9, :9] = True
    scores = [one.ask.hidden(n, hidden) for one, n in ((evidence[1:], 1), (evidence, 2))]
    assert_close(*scores)


def test_evidence_is_printed_and_comes_back_from_a_file(evidence, tmp_path):
    lines = str(evidence).splitlines()
    assert 3 <= len(lines) <= 9
    assert all(len(line) < 140 for line in lines)
    assert lines[-1].strip() == f"{sum(int(part.drawn.sum()) for part in evidence.parts):,} passes"
    assert len(repr(evidence)) < 120
    path = tmp_path / "evidence.safetensors"
    evidence.save(path)
    loaded = WindowEvidence.load(path)
    assert_same_evidence(loaded, evidence)
    assert loaded.ask is None
    for own, other in zip(loaded.inputs, evidence.inputs, strict=True):
        assert torch.equal(own, other)
        assert own.dtype == other.dtype
    assert_same_evidence(loaded[0], evidence[0])
    # What an interrupted run does not know comes back too.
    unfinished = replace(evidence.parts[0], scores=evidence.parts[0].scores.clone())
    unfinished.scores[:, 2:] = torch.nan
    stopped = replace(evidence, parts=(unfinished, *evidence.parts[1:]))
    stopped.save(path, overwrite=True)
    maps = [one.partial_attribution(1) for one in (WindowEvidence.load(path), stopped)]
    assert_close(*maps, rtol=0, atol=0, equal_nan=True)
    assert [part.regions.settings() for part in loaded.parts] == [
        part.regions.settings() for part in evidence.parts
    ]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "evidence.safetensors"
    superpixels_of(2).save(path)
    return path


def test_files_are_replaced_only_when_asked_and_only_if_they_are_evidence(path, tmp_path):
    evidence = superpixels_of(1)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        evidence.save(path)
    evidence.save(path, overwrite=True)
    assert len(WindowEvidence.load(path)) == 1
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Sir")
    with pytest.raises(FileExistsError, match="not evidence"):
        evidence.save(letter, overwrite=True)
    assert letter.read_text() == "Dear Sir"
    with pytest.raises(FileNotFoundError, match="no folder"):
        evidence.save(tmp_path / "nowhere" / "evidence.safetensors")


def test_the_prior_is_named_and_can_be_given_again(path, tmp_path):
    loaded = WindowEvidence.load(path)
    assert "ConstantPrior" in repr(loaded.prior)
    assert WindowEvidence.load(path, prior=ConstantPrior(0.2)).prior.value == 0.2
    with pytest.raises(ValueError, match="another prior"):
        WindowEvidence.load(path, prior=ConstantPrior(0.3))
    default = EfficientPDA(make_classifier()).evidence(
        make_images(1, 3, 12, 12), sliding_window_shapes=6
    )
    default.save(tmp_path / "default.safetensors")
    assert WindowEvidence.load(tmp_path / "default.safetensors").prior is None
    with pytest.raises(ValueError, match="loaded from a file"):
        loaded[0].self_test(1)


def test_a_measure_of_ones_own_comes_back_by_its_name(tmp_path):
    @dataclass(frozen=True)
    class Scaled(Measure):
        name, label, unit = "scaled_in_a_test", "scaled", "of it"
        by: float = 2.0

        def value(self, scores):
            return self.by * scores

        def slope(self, scores):
            return torch.full_like(scores, self.by)

    pda = EfficientPDA(make_classifier(), measure=Scaled(3.0), engine="dense")
    evidence = pda.evidence(make_images(1, 3, 12, 12), sliding_window_shapes=6)
    path = tmp_path / "evidence.safetensors"
    evidence.save(path)
    assert_same_evidence(WindowEvidence.load(path), evidence)
    assert WindowEvidence.load(path).measure == Scaled(3.0)
    text = path.read_bytes().replace(b"scaled_in_a_test", b"scaled_elsewhere")
    path.write_bytes(text)
    with pytest.raises(ValueError, match="import the module that defines it"):
        WindowEvidence.load(path)


def changed_file(path, change):
    """Write the file again with other settings, tensors or header."""
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        header = dict(file.metadata())
    settings = json.loads(header["settings"])
    change(settings, tensors, header)
    if json.loads(header["settings"]) is not None:
        header["settings"] = json.dumps(settings)
    save_file(tensors, path, metadata=header)


HOSTILE = {
    "a newer version": (lambda s, t, h: h.update(version="2"), "newer captum_pda"),
    "a prior": (lambda s, t, h: h.update(format="captum_pda prior"), "does not say"),
    "no parts": (lambda s, t, h: s.pop("parts"), "lack 'parts'"),
    "parts that are none": (lambda s, t, h: s.update(parts=["x"]), "not a table"),
    "a context": (lambda s, t, h: s["parts"][0].update(context="x"), "a context that is unknown"),
    "sets of windows": (
        lambda s, t, h: (
            s["regions"].append(
                {"kind": "windows", "space": [20, 26], "window": [5, 5], "strides": [5, 5]}
            )
            or s["parts"][0].update(regions=len(s["regions"]) - 1, context="random")
        ),
        "windows in a context of superpixels",
    ),
    "a tensor": (lambda s, t, h: s["parts"][0].update(tensor=4), "unknown"),
    "negative regions": (lambda s, t, h: s["parts"][0].update(regions=-1), "is -1"),
    "other outputs": (lambda s, t, h: s.update(output_shape=[5]), "where"),
    "huge outputs": (lambda s, t, h: s.update(output_shape=[2**30, 2**30]), "where"),
    "an unknown output": (lambda s, t, h: s.update(output="magic"), "not known"),
    "an unknown measure": (lambda s, t, h: s["measure"].update(name="os.system"), "not known"),
    "arguments of a measure": (lambda s, t, h: s["measure"].update(fields={"x": 1}), "argument"),
    "missing scores": (lambda s, t, h: t.pop("part.0.scores"), "lacks the tensors"),
    "an extra tensor": (lambda s, t, h: t.update(more=torch.zeros(1)), "do not belong"),
    "fewer examples": (lambda s, t, h: t.update({"input.0": t["input.0"][:1].clone()}), "shape"),
    "another space": (
        lambda s, t, h: t.update({"input.0": t["input.0"][..., 1:].clone()}),
        "regions in",
    ),
    "whole numbers": (
        lambda s, t, h: t.update({"scores": t["scores"].long()}),
        "dtype torch.int64",
    ),
    "regions beyond the last": (
        lambda s, t, h: t["regions.0.numbers"].fill_(99),
        "regions that are not there",
    ),
    "labels twice": (lambda s, t, h: t["regions.0.labels"].fill_(1), "not in order"),
    "a huge grid": (
        lambda s, t, h: s["regions"].append(
            {"kind": "windows", "space": [2**30] * 2, "window": [1, 1], "strides": [1, 1]}
        ),
        "more than is read",
    ),
    "a long grid": (
        lambda s, t, h: s["regions"].append(
            {"kind": "windows", "space": [2**28], "window": [1], "strides": [1]}
        ),
        "more than is read",
    ),
    "windows that do not fit": (
        lambda s, t, h: s["regions"].append(
            {"kind": "windows", "space": [9, 9], "window": [10, 1], "strides": [1, 1]}
        ),
        "do not fit",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_does_not_belong_together_is_refused(path, kind):
    change, says = HOSTILE[kind]
    changed_file(path, change)
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        WindowEvidence.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path} is not evidence that can be used: ")
    assert "\n" not in message
    assert len(message) < len(str(path)) + 400


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", pickle.dumps({"scores": 1}), struct.pack("<Q", 2**40) + b"{}"],
    ids=["empty", "zip", "pickle", "huge header"],
)
def test_files_of_another_kind_are_refused(tmp_path, content):
    path = tmp_path / "evidence.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not evidence that can be used"):
        WindowEvidence.load(path)
    with pytest.raises(FileNotFoundError, match="no evidence at"):
        WindowEvidence.load(tmp_path / "nothing")
    assert FORMAT == "captum_pda evidence"  # what files say; readers of old files know it


def test_regions_of_another_kind_are_not_half_saved(tmp_path):
    class Own:
        def __init__(self, regions):
            self.regions = regions

        def __getattr__(self, name):
            return getattr(self.regions, name)

    evidence = superpixels_of(1)
    object.__setattr__(evidence.parts[0], "regions", Own(evidence.parts[0].regions))
    with pytest.raises(TypeError, match="Own cannot be saved"):
        evidence.save(tmp_path / "evidence.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_is_printed_names_the_top_classes_and_the_questions():
    evidence = superpixels_of(6)
    text = str(evidence)
    top = int(evidence.scores[0].argmax())
    assert evidence.top(0) == top
    assert f"[0] most probable: {top} (" in text
    assert "and 2 more examples" in text
    assert "without each region: 6 and 12 superpixels" in text
    assert "each region by itself: 6 and 12 superpixels" in text
    assert "1 example " in str(evidence[0])
    assert "without each region: windows of 43, 86 and 129\n" in str(signal())
    assert "most probable" not in str(masks_of_each())


def test_a_notebook_shows_pictures_and_words_and_asks_nothing(tmp_path):
    evidence = superpixels_of(5)
    page = evidence._repr_html_()
    assert page.count("data:image/jpeg;base64,") == 3
    assert "2 more examples" in page
    assert len(page) < 500_000
    assert not re.search(r"<script|https?:", page)
    for other in (two_tensors(), masks_of_each()):  # nothing to draw, or no top class
        assert "<img" not in other._repr_html_()
        assert "Evidence of 2 examples" in other._repr_html_()


def test_show_draws_the_top_class_unless_told_otherwise():
    matplotlib.use("Agg")
    evidence = superpixels_of(2)
    with pytest.raises(ValueError, match="example=0"):
        evidence.show()
    _, axes = evidence[1].show(use_pyplot=False)
    assert axes[0].get_title().startswith(f"most probable: output {evidence.top(1)} (")
    assert len(axes) == 3
    _, axes = evidence.show(2, name="husky", example=1, test=False, use_pyplot=False)
    assert axes[0].get_title() == "husky"
    assert len(axes) == 2
    with pytest.raises(ValueError, match="none is the top class"):
        masks_of_each().show(example=0)


def test_a_report_comes_as_a_string_or_as_a_file(tmp_path):
    evidence = superpixels_of(2)
    page = evidence.to_html(example=1, labels=list("abcd"), test=False)
    assert page.startswith("<!doctype html>")
    written = evidence[1].to_html(tmp_path / "why.html", target=2, labels=list("abcd"), test=False)
    assert written == tmp_path / "why.html"
    evidence.save(tmp_path / "evidence.safetensors")
    loaded = WindowEvidence.load(tmp_path / "evidence.safetensors")
    assert "<canvas" in loaded.to_html(example=0)


def test_methods_say_what_they_are_in_a_line():
    model = make_convolutional()
    methods = (
        PDA(model),
        EfficientPDA(lambda x: model(x)),
        SampledPDA(model, prior=ConstantPrior(0.0)),
        GradientPDA(model),
        LayerPDA(model, model[2]),
    )
    for method in methods:
        text = str(method)
        assert text.startswith(type(method).__name__)
        assert "\n" not in text
        assert "Prior" in text
        assert " object at " not in text
        assert len(text) < 160
