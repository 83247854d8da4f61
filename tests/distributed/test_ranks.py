"""One input over two ranks, and one prior from the data of both: the same as in one process."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
import torch.distributed as dist
from conftest import make_classifier, make_convolutional, make_images
from torch import Tensor, nn

from captum_pda import (
    ConstantPrior,
    EfficientPDA,
    GaussianPatchPrior,
    NonFiniteOutputError,
    SampledPDA,
    WindowGrid,
)
from captum_pda.distributed import OtherRankError, Ranks
from captum_pda.running.run import VALUES_PER_CHUNK, rank_chunks

METHODS = {"efficient": EfficientPDA, "sampled": SampledPDA}
CALL = {"sliding_window_shapes": 3, "strides": 1, "perturbations_per_eval": 7}


def make_model(classes: int = 4) -> nn.Module:
    """In single precision, where another batch would round differently."""
    return make_classifier(classes=classes).float()


def group(rank: int | None):
    return None if rank is None else dist.group.WORLD


# Which windows a rank runs


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize(("per_chunk", "in_batch"), [(100, 7), (20, 4), (5, 3)])
def test_every_window_is_run_once_in_the_batches_of_one_process(count, per_chunk, in_batch):
    grid = WindowGrid((11, 10), (3, 3), (1, 1))
    values_per_pixel = VALUES_PER_CHUNK // (9 * per_chunk)

    def batches(rank: int, count: int) -> list[tuple[int, ...]]:
        found = []
        ranks = Ranks()
        ranks.rank, ranks.count = rank, count
        for chunk in rank_chunks(grid, 0, values_per_pixel, in_batch, ranks):
            assert len(chunk.windows) <= per_chunk
            numbers = chunk.members[chunk.own.start : chunk.own.stop].tolist()
            found += [tuple(numbers[n : n + in_batch]) for n in range(0, len(numbers), in_batch)]
        return found

    alone = batches(0, 1)
    assert sorted(window for batch in alone for window in batch) == list(range(len(grid)))
    shared = [batches(rank, count) for rank in range(count)]
    assert [batch for part in shared for batch in part] == alone
    assert max(map(len, shared)) - min(map(len, shared)) <= 1


# One input over both ranks


def explain(rank: int | None, kind: str, engine: str, every: bool) -> dict:
    """A map, or all that is known of every window."""
    torch.manual_seed(99 if rank else 0)  # ranks need not have the same seed
    images = make_images(2, 3, 9, 11).float()
    pda = METHODS[kind](make_model(), engine=engine, process_group=group(rank))
    extra = {"n_samples": 4} if kind == "sampled" else {}
    if not every:
        return {"map": pda.attribute(images, target=[1, 2], **CALL, **extra)}
    evidence = pda.evidence(images, **CALL, **extra)
    found = {"scores": evidence.parts[0].scores, "drawn": evidence.n_drawn}
    return found | ({"error": evidence.standard_error(0)} if kind == "sampled" else {})


@pytest.mark.parametrize("every", [False, True], ids=["attribute", "evidence"])
@pytest.mark.parametrize("engine", ["dense", "incremental"])
@pytest.mark.parametrize("kind", METHODS)
def test_both_ranks_get_the_map_of_one_process(pool, kind, engine, every):
    alone = explain(None, kind, engine, every)
    for result in pool(explain, kind, engine, every):
        exact = {"rtol": 0, "atol": 0} if (kind, engine) == ("efficient", "dense") else {}
        torch.testing.assert_close(result, alone, **exact)


def explain_with_tolerance(rank: int | None) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    pda = SampledPDA(make_classifier(), engine="dense", process_group=group(rank))
    images = make_images(1, 3, 9, 11)
    evidence = pda.evidence(images, sliding_window_shapes=3, n_samples=40, tolerance=0.01)
    return evidence.n_drawn, evidence.parts[0].scores


def test_a_tolerance_stops_at_the_same_samples(pool):
    alone = explain_with_tolerance(None)
    assert len(set(alone[0].flatten().tolist())) > 1
    for result in pool(explain_with_tolerance):
        torch.testing.assert_close(result, alone)


def explain_few(rank: int | None) -> tuple[Tensor, ...]:
    """Two tensors, one of them with a single batch, so that a rank has none of its windows."""
    torch.manual_seed(0)
    layer = nn.Linear(3 * 36 + 2 * 16, 3).double().eval()
    model = lambda a, b: layer(torch.cat([a.flatten(1), b.flatten(1)], dim=1).tanh())  # noqa: E731
    pda = EfficientPDA(model, engine="dense", process_group=group(rank))
    inputs = make_images(1, 3, 6, 6), make_images(1, 2, 4, 4)
    return pda.attribute(inputs, target=1, sliding_window_shapes=3, perturbations_per_eval=8)


def test_more_ranks_than_batches(pool):
    alone = explain_few(None)
    for result in pool(explain_few):
        torch.testing.assert_close(result, alone, rtol=0, atol=0)


# What goes wrong on one rank


class Failing(nn.Module):
    """Fails on one rank from its n-th pass on."""

    def __init__(self, fails: bool, passes: int) -> None:
        super().__init__()
        self.model, self.fails, self.passes = make_model(), fails, passes

    def forward(self, x: Tensor) -> Tensor:
        self.passes -= 1
        if self.fails and self.passes < 0:
            raise KeyError("no such luck")
        return self.model(x)


def fail(rank: int, failing: int, passes: int) -> Exception:
    model = Failing(rank == failing, passes).eval()
    pda = EfficientPDA(model, engine="dense", process_group=group(rank))
    return pda.evidence(make_images(1, 3, 9, 11).float(), **CALL)


@pytest.mark.parametrize("passes", [0, 3, 4], ids=["unperturbed", "first batch", "later"])
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_on_one_rank_ends_both_and_loses_nothing(pool, failing, passes):
    results = pool(fail, failing, passes)
    own, other = results[failing], results[1 - failing]
    assert isinstance(own, KeyError)
    assert isinstance(other, OtherRankError)
    assert f"rank {failing} of 2 failed" in str(other)
    if passes == 0:
        return
    alone = EfficientPDA(make_model(), engine="dense").evidence(
        make_images(1, 3, 9, 11).float(), **CALL
    )
    done = ~own.result.parts[0].scores.isnan()
    assert done.float().mean() > 0.4
    assert not done.all()
    for error in (own, other):
        found = error.result.parts[0].scores
        torch.testing.assert_close(found[done], alone.parts[0].scores[done], rtol=0, atol=0)
        assert found[~done].isnan().all()


class Broken(nn.Module):
    """NaN for copies whose last pixel was replaced."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x.mean((1, 2, 3)), (x[:, 0, -1, -1] - 5).sqrt()], dim=1)


def explain_broken(rank: int | None) -> Tensor:
    image = torch.full((1, 1, 6, 6), 9.0)
    pda = EfficientPDA(Broken(), ConstantPrior(0.0), engine="dense", process_group=group(rank))
    return pda.attribute(image, target=0, sliding_window_shapes=2, perturbations_per_eval=4)


def test_windows_without_a_number_are_told_on_both_ranks(pool):
    with pytest.raises(NonFiniteOutputError) as alone:
        explain_broken(None)
    for error in pool(explain_broken):
        assert str(error) == str(alone.value)
        torch.testing.assert_close(error.result, alone.value.result, equal_nan=True)


def explain_short_of_memory(rank: int | None) -> Tensor:
    model = make_classifier()

    def limited(x: Tensor) -> Tensor:
        if rank == 1 and len(x) > 5:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return model(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pda = EfficientPDA(limited, engine="dense", process_group=group(rank))
        return pda.attribute(make_images(2, 3, 9, 11), target=1, **CALL)


def test_a_rank_that_is_short_of_memory_still_runs_its_own_windows(pool):
    alone = explain_short_of_memory(None)
    for result in pool(explain_short_of_memory):
        torch.testing.assert_close(result, alone)


class SlightlyOther:
    """A prior of the user's own, known by its attributes."""

    def __init__(self, rank: int) -> None:
        self.values = torch.tensor([0.5 + 1e-3 * rank])

    def conditional_mean(self, example: Tensor, windows: object) -> Tensor:
        return self.values.to(example).expand(len(windows), 3, *windows.window)


class WithAnOffset:
    """No module, and the same weights on all ranks."""

    def __init__(self, model: nn.Module, offset: float) -> None:
        self.model, self.offset = model, offset

    def __call__(self, x: Tensor) -> Tensor:
        return self.model(x) + self.offset * x.mean((1, 2, 3)).unsqueeze(1) * torch.arange(4)


def explain_differently(rank: int, what: str) -> Tensor:
    """What differs on rank 1: a weight by a hair, the prior, what the model adds, or a question."""
    model = make_model()
    if what in ("module", "function", "method", "object", "partial"):
        with torch.no_grad():
            model[0].weight.view(-1)[3] += rank * 1e-4
    if what == "buffer":
        model.register_buffer("unused", torch.full((3,), float(rank)))
    if what == "permuted":
        model.register_buffer("unused", torch.arange(3.0).roll(rank))
    models = {
        "function": lambda x: model(x),
        "method": model.forward,
        "object": WithAnOffset(model, 0.0),
        "partial": functools.partial(lambda model, x: model(x), model),
        "outputs": WithAnOffset(model, 3.0 * rank),
    }
    priors = {
        "value": ConstantPrior(0.1 * rank),
        "fit": GaussianPatchPrior(6).fit(make_images(3, 3, 12, 12, seed=rank).float()),
        "own": SlightlyOther(rank),
    }
    pda = EfficientPDA(
        models.get(what, model),
        priors.get(what),
        measure="probability_difference" if rank and what == "measure" else "weight_of_evidence",
        process_group=group(rank),
    )
    images = make_images(1, 3, 9, 11, seed=rank if what == "inputs" else 0).float()
    strides = 1 + rank if what == "strides" else 1
    return pda.attribute(images, target=1, sliding_window_shapes=3, strides=strides)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("inputs", "different inputs"),
        ("strides", "different arguments"),
        *((what, "different weights") for what in ("module", "function", "method", "object")),
        *((what, "different weights") for what in ("partial", "buffer", "permuted")),
        *((what, "different priors") for what in ("value", "fit", "own")),
        ("outputs", "different outputs"),
        ("measure", "different arguments"),
    ],
)
def test_ranks_that_are_asked_differently_are_refused(pool, what, said):
    for error in pool(explain_differently, what):
        assert isinstance(error, ValueError)
        assert said in str(error)


@pytest.mark.parametrize("made", [lambda g: EfficientPDA(make_model(), process_group=g), Ranks])
def test_a_group_needs_torch_distributed(made):
    with pytest.raises(ValueError, match="init_process_group"):
        made("everyone")


def refused(rank: int) -> list[str]:
    alone = dist.new_group([0])
    said = []
    for given in ("everyone", alone):
        try:
            Ranks(given)
        except (TypeError, ValueError) as error:
            said.append(str(error))
    return said


def test_what_is_no_group_of_this_process_is_refused(pool):
    first, second = pool(refused)
    assert len(first) == 1
    assert "pass torch.distributed.group.WORLD" in first[0]
    assert "not a member" in second[1]


# One prior from the data of both ranks


def fit(rank: int | None, covariance: str, channels: str, images: Tensor, split: int) -> Tensor:
    prior = GaussianPatchPrior(4, covariance, channels)
    if rank is None:
        prior.fit(images)
    else:
        own = images[:split] if rank == 0 else images[split:]
        # A rank may come away empty-handed.
        prior.fit([batch[None] for batch in own], process_group=group(rank))
    return prior.conditional_mean(images[0], WindowGrid((9, 11), (2, 2), (3, 3)))


@pytest.mark.parametrize("split", [2, 5, 0], ids=["both", "second is empty", "first is empty"])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("channels", ["joint", "independent"])
@pytest.mark.parametrize("covariance", ["stationary", "full"])
def test_a_fit_over_both_ranks_is_the_fit_of_one(pool, covariance, channels, offset, split):
    images = make_images(5, 2, 9, 11) + offset
    alone = fit(None, covariance, channels, images, split)
    both = pool(fit, covariance, channels, images, split)
    torch.testing.assert_close(both[0], both[1], rtol=0, atol=0)
    torch.testing.assert_close(both[0], alone, rtol=1e-8, atol=1e-8)


def fit_wrongly(rank: int, what: str) -> GaussianPatchPrior:
    data = {
        "nothing": [],
        "channels": [make_images(1, 1 + rank, 9, 9)],
        "broken": [make_images(1, 1, 9, 9) if rank else torch.full((1, 1, 9, 9), torch.nan)],
    }[what]
    return GaussianPatchPrior(4).fit(data, process_group=group(rank))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nothing", ["no batches to fit on any rank"] * 2),
        ("channels", ["fitted on 1 channel; these images have 2"] * 2),
        ("broken", ["batch 0", "rank 0 of 2 failed"]),
    ],
)
def test_what_cannot_be_fitted_together(pool, what, said):
    for error, message in zip(pool(fit_wrongly, what), said, strict=True):
        assert message in str(error)


# Audits


class WrongOnBoxes(nn.Module):
    """A model that answers otherwise where it is run incrementally."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) if type(x) is Tensor else self.model(x) * 1.05


def explain_with_one_wrong_rank(rank: int | None) -> Tensor:
    model = make_convolutional().eval()
    wrong = WrongOnBoxes(model).eval() if rank == 1 else model
    engine = "dense" if rank is None else "incremental"
    pda = EfficientPDA(wrong, ConstantPrior(0.0), engine=engine, process_group=group(rank))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = pda.attribute(make_images(1, 3, 20, 22).float(), target=1, **CALL)
    if rank is not None:
        assert ["run again densely" in str(one.message) for one in caught] == [True]
        assert pda.engine_report.engine == "dense"
        assert not pda.engine_report.audit.agrees
    return found


def test_where_the_audit_of_one_rank_fails_all_ranks_run_densely(pool):
    expected = explain_with_one_wrong_rank(None)
    for found in pool(explain_with_one_wrong_rank):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
