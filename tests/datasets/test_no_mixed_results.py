"""A stored result counts only for the same input, target, settings and model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from captum.attr import IntegratedGradients, NoiseTunnel, Saliency
from conftest import make_classifier, make_images
from torch import Tensor, nn

from captum_pda import (
    PDA,
    ConstantPrior,
    DatasetSummary,
    DenseEngine,
    EfficientPDA,
    EmpiricalMeanPrior,
    GaussianFieldPrior,
    GaussianPatchPrior,
    IncrementalEngine,
    LayerPDA,
    MarginalPrior,
    ResultFolder,
    SampledPDA,
    SettingsError,
    explain_dataset,
)
from captum_pda.model.measures import WeightOfEvidence
from captum_pda.priors import EmptyContext, MapMeanPrior

N = 3
IMAGES = make_images(N, 3, 6, 7)
#: What is said of a model with noise.
DIFFERENTLY = "answers the same input differently"


def explain(
    folder: Path, attribution: Any, data: Any = None, target: Any = 1, **arguments: Any
) -> DatasetSummary:
    data = list(IMAGES) if data is None else data
    return explain_dataset(attribution, data, ResultFolder(folder), target=target, **arguments)


def efficient(forward: Callable[[Tensor], Tensor] | None = None, **options: Any) -> EfficientPDA:
    return EfficientPDA(forward or make_classifier(), **{"engine": "dense", **options})


def counts(summary: DatasetSummary) -> tuple[int, int]:
    return summary.explained, summary.done_before


def maps(folder: Path) -> Tensor:
    return torch.cat([ResultFolder(folder).read(number) for number in range(N)])


class Scaled(nn.Module):
    """A classifier with a temperature that is no weight."""

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.inner, self.temperature = make_classifier(), temperature

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) / self.temperature


def dilated(dilation: int) -> nn.Module:
    model = make_classifier()
    model[0].dilation = (dilation, dilation)
    model[0].padding = (dilation, dilation)
    return model


def called_through(way: str, seed: int) -> Callable[..., Tensor]:
    model = make_classifier(seed=seed)
    if way == "lambda":
        return lambda x: model(x)
    if way == "forward":
        return model.forward
    return functools.partial(torch.nn.Sequential.__call__, model)


# What the model is cannot always be seen, and then shows in what it says.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda: called_through("lambda", 0), lambda: called_through("lambda", 1)),
        (lambda: called_through("partial", 0), lambda: called_through("partial", 1)),
        (lambda: Scaled(1.0).eval(), lambda: Scaled(1.01).eval()),
        (lambda: dilated(1), lambda: dilated(2)),
    ],
    ids=["lambda", "partial", "temperature", "dilation"],
)
def test_another_model_that_looks_the_same_is_explained_anew(tmp_path, before, after):
    explain(tmp_path, efficient(before()))
    assert counts(explain(tmp_path, efficient(before()))) == (0, N)
    with pytest.warns(
        UserWarning, match="3 of 3 stored results .* explained anew; .*outputs differ"
    ):
        summary = explain(tmp_path, efficient(after()))
    assert counts(summary) == (N, 0)
    assert list(summary.outdated) == list(range(N))
    expected = efficient(after()).attribute(IMAGES, target=1)
    torch.testing.assert_close(maps(tmp_path), expected)
    assert counts(explain(tmp_path, efficient(after()))) == (0, N)


def test_other_weights_of_a_bound_method_are_refused(tmp_path):
    explain(tmp_path, efficient(called_through("forward", 0)))
    assert counts(explain(tmp_path, efficient(called_through("forward", 0)))) == (0, N)
    with pytest.raises(SettingsError, match="weights_sha256 was"):
        explain(tmp_path, efficient(called_through("forward", 1)))


def test_rounding_does_not_make_another_model(tmp_path):
    model = make_classifier()
    explain(tmp_path, efficient(lambda x: model(x)))
    assert counts(explain(tmp_path, efficient(lambda x: model(x) * (1 + 1e-15)))) == (0, N)


def test_a_model_whose_noise_nobody_can_repeat_is_explained_anew(tmp_path):
    model = make_classifier()
    calls = []

    def drifting(x: Tensor) -> Tensor:
        calls.append(1)
        return model(x) * (1 + 0.01 * len(calls))

    with pytest.warns(UserWarning, match=DIFFERENTLY):
        assert counts(explain(tmp_path, efficient(drifting))) == (N, 0)
    with (
        pytest.warns(UserWarning, match=DIFFERENTLY),
        pytest.warns(UserWarning, match="outputs differ from those stored"),
    ):
        assert counts(explain(tmp_path, efficient(drifting))) == (N, 0)


# The examples


def test_reversed_data_are_explained_anew(tmp_path):
    explain(tmp_path, efficient())
    summary = explain(tmp_path, efficient(), list(IMAGES.flip(0)))
    assert counts(summary) == (N - 1, 1)  # the middle one is where it was
    assert summary.outdated == dict.fromkeys((0, 2), "the input is another one")
    torch.testing.assert_close(maps(tmp_path), efficient().attribute(IMAGES.flip(0), target=1))


def test_other_targets_of_the_items_are_explained_anew(tmp_path):
    explain(tmp_path, efficient(), [(image, 0) for image in IMAGES], target=None)
    changed = [(image, int(number == 1)) for number, image in enumerate(IMAGES)]
    summary = explain(tmp_path, efficient(), changed, target=None)
    assert counts(summary) == (1, N - 1)
    assert summary.outdated == {1: "the target was 0 and is now 1"}


# The settings


class CallablePrior:
    """A prior that can be called, as a distribution of Pyro's can."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self) -> float:
        return self.value

    def conditional_mean(self, example: Tensor, regions: Any) -> Tensor:
        return ConstantPrior(self.value).conditional_mean(example, regions)


class Slotted:
    """A prior without a table of attributes."""

    __slots__ = ("__value", "unset")

    def __init__(self, value: float) -> None:
        self.__value = value

    def conditional_mean(self, example: Tensor, regions: Any) -> Tensor:
        return ConstantPrior(self.__value).conditional_mean(example, regions)


class ModulePrior(nn.Module):
    """A prior with weights, and a number beside them."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def conditional_mean(self, example: Tensor, regions: Any) -> Tensor:
        return ConstantPrior(self.value).conditional_mean(example, regions)


class OwnEngine(DenseEngine):
    settings = None

    def __init__(self, option: int) -> None:
        self.option = option


@pytest.mark.parametrize(
    ("make", "changed"),
    [
        (lambda v: efficient(prior=CallablePrior(v)), "prior.sha256 was"),
        (lambda v: efficient(prior=Slotted(v)), "prior.sha256 was"),
        (lambda v: efficient(prior=ModulePrior(v)), "prior.sha256 was"),
        (lambda v: efficient(prior=ConstantPrior(v)), "prior.value was 0.5 and is now 1.0"),
        (
            lambda v: efficient(engine=IncrementalEngine() if v < 1 else DenseEngine()),
            'engine.kind was "IncrementalEngine" and is now "DenseEngine"',
        ),
        (lambda v: efficient(engine=OwnEngine(int(2 * v))), "engine.sha256 was"),
        (lambda v: efficient(output="logits" if v < 1 else "raw"), "output was"),
        (
            lambda v: NoiseTunnel(Saliency(make_classifier()) if v < 1 else efficient()),
            "attribution_method",
        ),
        (
            lambda v: IntegratedGradients(make_classifier(), multiply_by_inputs=v < 1),
            "multiply_by_inputs was true and is now false",
        ),
    ],
)
def test_other_settings_are_refused_and_the_same_are_not(tmp_path, make, changed):
    explain(tmp_path, make(0.5))
    assert counts(explain(tmp_path, make(0.5))) == (0, N)
    with pytest.raises(SettingsError, match=changed):
        explain(tmp_path, make(1.0))


class Level:
    """A prior that describes itself, and whose fills come from its class."""

    level = 0.5

    def conditional_mean(self, example: Tensor, regions: Any) -> Tensor:
        return ConstantPrior(self.level).conditional_mean(example, regions)

    def settings(self) -> dict[str, Any]:
        return {"kind": "Level"}


class Halved(WeightOfEvidence):
    name = "halved"
    factor = 0.5

    def value(self, scores: Tensor) -> Tensor:
        return super().value(scores) * self.factor


class Zeroed(EfficientPDA):
    level = 0.5

    def _fills(self, prior: Any, example: Tensor, windows: Any, sampling: Any) -> Tensor:
        fills = super()._fills(prior, example, windows, sampling)
        return torch.full_like(fills, self.level)


@pytest.mark.parametrize(
    ("make", "edited", "attribute", "changed"),
    [
        (lambda: efficient(prior=Level()), Level, "level", r"prior\.code_sha256 was"),
        (lambda: efficient(measure=Halved()), Halved, "factor", r"measure\.code_sha256 was"),
        (lambda: Zeroed(make_classifier(), engine="dense"), Zeroed, "level", "code_sha256 was"),
    ],
    ids=["prior", "measure", "method"],
)
def test_results_of_code_that_was_edited_since_are_refused(
    tmp_path, monkeypatch, make, edited, attribute, changed
):
    explain(tmp_path, make())
    assert counts(explain(tmp_path, make())) == (0, N)
    monkeypatch.setattr(edited, attribute, 1.0)
    with pytest.raises(SettingsError, match=changed):
        explain(tmp_path, make())
    # A class that states its version says itself when results are no longer the same.
    monkeypatch.setattr(edited, "version", "a", raising=False)
    explain(tmp_path / "stated", make())
    monkeypatch.setattr(edited, attribute, 2.0)
    assert counts(explain(tmp_path / "stated", make())) == (0, N)
    monkeypatch.setattr(edited, "version", "b")
    with pytest.raises(SettingsError, match='version was "a" and is now "b"'):
        explain(tmp_path / "stated", make())


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: efficient(), GaussianFieldPrior),
        (lambda: efficient(), EmptyContext),
        (lambda: efficient(prior=GaussianPatchPrior(5).fit(IMAGES)), GaussianPatchPrior),
        (lambda: efficient(prior=ConstantPrior(0.5)), ConstantPrior),
        (lambda: efficient(prior=MarginalPrior().fit(IMAGES)), MarginalPrior),
        (lambda: efficient(prior=EmpiricalMeanPrior(MarginalPrior().fit(IMAGES))), MarginalPrior),
        (lambda: efficient(prior=EmpiricalMeanPrior(ConstantPrior(0.5))), EmpiricalMeanPrior),
        (lambda: LayerPDA(make_classifier()), MapMeanPrior),
        (lambda: PDA(make_classifier(), engine="dense"), MapMeanPrior),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_results_of_another_version_of_a_prior_are_refused(tmp_path, monkeypatch, make, kind):
    explain(tmp_path, make())
    assert counts(explain(tmp_path, make())) == (0, N)
    version = kind.version
    monkeypatch.setattr(kind, "version", version + 1)
    with pytest.raises(SettingsError, match=f"version was {version} and is now {version + 1}"):
        explain(tmp_path, make())


def test_a_seed_is_a_setting_of_samples_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "initial_seed", lambda: 5)
    sampled = SampledPDA(make_classifier(), engine="dense")
    explain(tmp_path / "sampled", sampled, n_samples=2)
    explain(tmp_path / "efficient", efficient())
    monkeypatch.setattr(torch, "initial_seed", lambda: 6)
    with pytest.raises(SettingsError, match="seed was 5 and is now 6"):
        explain(tmp_path / "sampled", sampled, n_samples=2)
    assert counts(explain(tmp_path / "efficient", efficient())) == (0, N)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_generator_draws_the_same_for_an_example_whenever_it_is_explained(tmp_path, monkeypatch):
    sampled = SampledPDA(make_classifier(), engine="dense")
    given = generator(1)
    explain(tmp_path / "a", sampled, n_samples=2, generator=given)
    monkeypatch.setattr(torch, "initial_seed", lambda: 6)
    assert counts(explain(tmp_path / "a", sampled, n_samples=2, generator=given)) == (0, N)
    assert counts(explain(tmp_path / "a", sampled, n_samples=2, generator=generator(1))) == (0, N)
    with pytest.raises(SettingsError, match=r"arguments\.generator"):
        explain(tmp_path / "a", sampled, n_samples=2, generator=generator(2))
    before = maps(tmp_path / "a")
    assert not torch.equal(before[0], before[1])
    ResultFolder(tmp_path / "a").place(1).unlink()
    assert counts(explain(tmp_path / "a", sampled, n_samples=2, generator=given)) == (1, N - 1)
    torch.testing.assert_close(maps(tmp_path / "a"), before, rtol=0, atol=0)


def test_what_nobody_can_describe_is_explained_anew(tmp_path):
    """An object of which which pickle stores nothing: here, a generator."""
    prior = CallablePrior(0.5)
    prior.value = 0.5
    prior.hidden = (number for number in [1])
    explain(tmp_path, efficient(prior=prior))
    with pytest.warns(UserWarning, match=r"generator is the same; give .* settings\(\)"):
        assert counts(explain(tmp_path, efficient(prior=prior))) == (N, 0)


# The files


@pytest.mark.parametrize("place", [-1, -9, -200])
def test_a_flipped_bit_is_noticed(tmp_path, place):
    explain(tmp_path, efficient())
    before = maps(tmp_path)
    path = ResultFolder(tmp_path).place(1)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"000001.safetensors is damaged"):
        ResultFolder(tmp_path).read(1)
    assert counts(explain(tmp_path, efficient())) == (1, N - 1)
    torch.testing.assert_close(maps(tmp_path), before, rtol=0, atol=0)


def test_what_a_killed_run_has_left_is_removed(tmp_path):
    explain(tmp_path, efficient())
    (tmp_path / f".{'0' * 32}.part").write_bytes(b"half")
    (tmp_path / ".mine.part").write_bytes(b"somebody's own")
    assert counts(explain(tmp_path, efficient())) == (0, N)
    assert [path.name for path in tmp_path.glob(".*")] == [".mine.part"]
