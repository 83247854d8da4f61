"""Random tasks through all three classes give the oracle's map.

200 tasks in the ordinary run; ``pytest -m long`` draws thousands of new ones.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tiny_networks import HEADS, LAYERS, make_network
from torch import Tensor, nn
from torch.autograd.graph import allow_mutation_on_saved_tensors

from captum_pda import (
    ConstantPrior,
    EfficientPDA,
    EmpiricalMeanPrior,
    GaussianFieldPrior,
    GaussianPatchPrior,
    GradientPDA,
    IncrementalError,
    MarginalPrior,
    SampledPDA,
)
from captum_pda.priors import field

ORDINARY, LONG = 100, 2500

ALGORITHMS = {
    EfficientPDA: reference.efficient_pda,
    SampledPDA: reference.sampled_pda,
    GradientPDA: reference.gradient_pda,
}
MEASURES = ("weight_of_evidence", "probability_difference", "information_difference")
#: How far beyond rounding errors of the outputs a map may be from the oracle's.
ROUNDINGS = {torch.float64: 1e6, torch.float32: 3e3}
#: Advice about the model or the data, which random ones deserve now and then.
ADVICE = (
    "output='logits' but the model's outputs all lie between 0 and 1",
    "some probabilities were rounded to exactly 0 or 1",
)


@dataclass(frozen=True)
class Task:
    """Everything that decides one run, so that a failure can be repeated."""

    method: type
    channels: int
    space: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    n_examples: int
    classes: int
    recipe: tuple[tuple[str, int], ...]
    head: str
    kind: str
    measure: str
    prior: str
    patch: int
    target: int
    target_form: str
    dtype: torch.dtype
    layout: str
    engine: str
    rows: int | None
    every: bool
    second_input: bool
    pixelwise: bool
    seed: int

    @property
    def output(self) -> str:
        return {"softmax": "probabilities", "sigmoid": "probabilities"}.get(self.kind, self.kind)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    def choose(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    dims = choose(2, 2, 1, 3)
    space = tuple(draw(st.integers(1, {1: 24, 2: 11, 3: 5}[dims])) for _ in range(dims))
    window = tuple(draw(st.integers(1, -(-size // choose(2, 1)))) for size in space)
    strides = tuple(draw(st.integers(1, max(1, width // 2))) for width in window)
    classes = choose(2, 1, 3, 6)
    kind = choose("logits", "logits", "softmax" if classes > 1 else "sigmoid", "sigmoid", "raw")
    head = choose(*HEADS)
    layer = st.tuples(st.sampled_from(LAYERS), st.integers(0, 63))
    return Task(
        method=choose(*ALGORITHMS),
        channels=choose(1, 2, 3, 5, 16),
        space=space,
        window=window,
        strides=strides,
        n_examples=choose(1, 2, 3),
        classes=classes,
        recipe=tuple(draw(layer) for _ in range(draw(st.integers(0, 6)))),
        head=head,
        kind=kind,
        measure="weight_of_evidence" if kind == "raw" else choose(*MEASURES),
        prior=choose("none", "stationary", "full", "independent", "marginal", "constant", "drawn"),
        patch=max(window) + draw(st.integers(1, 4)),
        target=draw(st.integers(-classes, classes - 1)),
        target_form=choose("int", "list", "tensor"),
        dtype=choose(torch.float64, torch.float32),
        layout=choose("contiguous", "channels last", "sliced", "requires grad"),
        engine=choose("auto", "incremental", "dense"),
        rows=choose(None, 1, 2, 7),
        every=draw(st.booleans()),
        second_input=head != "places" and choose(False, False, True),
        pixelwise=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )


# What a task is made of


class SeveralInputs(nn.Module):
    """Adds up one network an input tensor, scales the sum, and ends as ``kind`` says."""

    def __init__(self, networks: list[nn.Module], kind: str) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.kind = kind

    def forward(self, *arguments: Tensor) -> Tensor:
        *inputs, scale = arguments
        outputs = sum(network(x) for network, x in zip(self.networks, inputs, strict=True))
        outputs = outputs * scale.to(outputs).reshape(-1, *(1 for _ in outputs.shape[1:]))
        if self.kind == "softmax":
            return torch.softmax(outputs, dim=1)
        return torch.sigmoid(outputs) if self.kind == "sigmoid" else outputs


class Recorded:
    """A prior that remembers what it was asked for: its fills are the oracle's too."""

    def __init__(self, prior: Any) -> None:
        self.prior = prior
        self.by_corner: dict[bytes, dict[tuple[int, ...], list[np.ndarray]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def conditional_mean(self, example: Tensor, regions: Any) -> Tensor:
        fills = self.prior.conditional_mean(example, regions)
        self._note(example, regions, fills[None])
        return fills

    def sample(
        self, example: Tensor, regions: Any, n_samples: int, generator: Any = None
    ) -> Tensor:
        fills = self.prior.sample(example, regions, n_samples, generator)
        self._note(example, regions, fills)
        return fills

    def _note(self, example: Tensor, regions: Any, fills: Tensor) -> None:
        known = self.by_corner[example.numpy().tobytes()]
        for number, corner in enumerate(regions.corners.tolist()):
            known[tuple(corner)].extend(fills[:, number].double().numpy())

    def fills(self, example: Tensor, corners: list[tuple[int, ...]], n_samples: int) -> np.ndarray:
        """The fills of an example's windows, (S, W, C, *window)."""
        known = self.by_corner[example.numpy().tobytes()]
        return np.stack([np.stack(known[corner][:n_samples]) for corner in corners], axis=1)


def make_images(task: Task, number: int, channels: int, space: tuple[int, ...], seed: int):
    generator = np.random.default_rng([task.seed, seed])
    images = generator.normal(size=(number, channels, *space))
    for axis in range(2, images.ndim):
        images = images + 0.7 * np.roll(images, 1, axis)
    scale = generator.uniform(0.3, 2, size=(1, channels, *(1 for _ in space)))
    # Rounded, so that the oracle in double precision sees the same numbers.
    return torch.from_numpy(images * scale + generator.normal()).to(task.dtype)


def make_model(task: Task) -> tuple[nn.Module, list[Tensor], Tensor, tuple[int, ...]]:
    """The model, its inputs, its additional argument, and the shape of an example's outputs."""
    inputs = [make_images(task, task.n_examples, task.channels, task.space, seed=0)]
    if task.second_input:
        inputs.append(make_images(task, task.n_examples, task.channels, task.space, seed=1))
    networks: list[nn.Module] = []
    shape: tuple[int, ...] = ()
    for number, tensor in enumerate(inputs):
        network, shape = make_network(
            task.recipe, task.head, tensor.shape[1], task.space, task.classes, task.seed + number
        )
        networks.append(network)
    model = SeveralInputs(networks, task.kind).to(task.dtype).requires_grad_(False).eval()
    scale = torch.linspace(0.5, 2, task.n_examples)
    return model, inputs, scale, shape


def laid_out(images: Tensor, layout: str) -> Tensor:
    """The same values, otherwise in memory."""
    if layout == "channels last" and images.dim() > 3:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return images.contiguous(memory_format=formats[images.dim()])
    if layout == "sliced":
        return images.repeat_interleave(2, dim=-1)[..., ::2]
    return images.clone().requires_grad_() if layout == "requires grad" else images


def fitted_images(task: Task) -> Tensor:
    space = task.space
    if task.prior in ("full", "stationary", "independent"):
        space = tuple(max(size, task.patch) for size in task.space)
    return make_images(task, 3, task.channels, space, seed=99)


def make_prior(task: Task) -> Any:
    if task.prior == "none":
        return None
    if task.prior == "constant":
        return ConstantPrior(torch.linspace(-1, 1, task.channels))
    images = fitted_images(task)
    if task.prior == "marginal":
        return MarginalPrior().fit(images)
    covariance = "full" if task.prior == "full" else "stationary"
    channels = "independent" if task.prior == "independent" else "joint"
    prior = GaussianPatchPrior(task.patch, covariance, channels, 1e-3).fit(images)
    return EmpiricalMeanPrior(prior, n_samples=3) if task.prior == "drawn" else prior


# The oracle


def oracle_prior_means(task: Task, example: np.ndarray) -> np.ndarray | None:
    """The conditional means (W, C, *window) of the Gaussian priors, from the definitions."""
    if task.prior == "none":
        return reference.field_means(example, task.window, task.strides)
    if task.prior in ("stationary", "independent", "full"):
        gaussian = oracle_gaussian(task)
    else:
        return None
    return reference.conditional_means(gaussian, example, task.window, task.strides)


@lru_cache(maxsize=1)
def oracle_gaussian(task: Task) -> reference.PatchGaussian:
    """The fit to other images."""
    patch = (task.patch,) * len(task.space)
    if task.prior != "full":  # lags beyond the image are never asked for
        patch = tuple(min(task.patch, size) for size in task.space)
    return reference.fit_gaussian(
        list(fitted_images(task).double().numpy()),
        patch,
        "full" if task.prior == "full" else "stationary",
        "independent" if task.prior == "independent" else "joint",
        1e-3,
    )


class OracleModel:
    """One input of one example through the model in its own precision, as the oracle calls it."""

    def __init__(self, task: Task, model: nn.Module, arguments: list[Tensor], place: Any) -> None:
        self.task = task
        self.model = model
        self.arguments = arguments
        self.place = place
        self.position = 0
        #: How many roundings of the outputs' size an error of one may have become in the evidence.
        self.sensitivity = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        # Copies, since a network may write into its input.
        arguments = [argument.clone() for argument in self.arguments]
        arguments[self.position] = x.to(self.task.dtype).clone()
        outputs = self.model(*arguments)
        outputs = outputs.reshape(1, outputs.shape[1], -1)[..., self.place].double()
        seen = outputs.detach()
        if self.task.output == "probabilities":
            # An error of p is one of p / (p (1 - p)) in its log-odds.
            self.sensitivity = max(self.sensitivity, float((1 / (1 - seen)).max()))
            self.sensitivity = max(self.sensitivity, float((1 / seen).max()))
        else:
            self.sensitivity = max(self.sensitivity, float(seen.abs().max()))
        return outputs


def check(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a task, and compare with the oracle or expect its error."""
    model, inputs, scale, shape = make_model(task)

    recorded: list[Recorded] = []

    def record(prior: Any) -> Recorded:
        recorded.append(Recorded(prior))
        return recorded[-1]

    columns = [task.target] * task.n_examples
    if task.target_form != "int" and 0 <= task.target < task.classes:
        columns = [(task.target + n) % task.classes for n in range(task.n_examples)]
    n_samples = 2 if task.method is SampledPDA else 1

    def attributions(engine: str) -> tuple[Tensor, ...]:
        recorded.clear()
        monkeypatch.setattr(field, "DEFAULT_PRIOR", record(GaussianFieldPrior()))
        prior = make_prior(task)
        options: dict[str, Any] = {"output": task.output, "measure": task.measure}
        arguments: dict[str, Any] = {
            "additional_forward_args": scale,
            "sliding_window_shapes": (task.window,) * len(inputs),
            "strides": (task.strides,) * len(inputs),
        }
        if task.method is GradientPDA:
            arguments["pixelwise"] = task.pixelwise
        else:
            options["engine"] = engine
            arguments["perturbations_per_eval"] = task.rows
        if task.method is SampledPDA:
            arguments |= {"n_samples": n_samples, "generator": torch.Generator().manual_seed(7)}
        pda = task.method(model, None if prior is None else record(prior), **options)
        given_inputs = tuple(laid_out(tensor, task.layout) for tensor in inputs)
        target = target_argument(task, columns, shape)
        if task.every and task.method is not GradientPDA:
            result = pda.evidence(given_inputs, **arguments).attribution(target)
        else:
            result = pda.attribute(given_inputs, target=target, **arguments)
        return result

    try:
        actual = attributions(task.engine)
    except IncrementalError:
        assert task.engine == "incremental"
        actual = attributions("auto")
    assert isinstance(actual, tuple)
    corners = reference.window_corners(task.space, task.window, task.strides)
    for position, tensor in enumerate(inputs):
        assert actual[position].dtype == torch.promote_types(task.dtype, torch.float32)
        for number, column in enumerate(columns):
            row = slice(number, number + 1)
            fills = next(
                prior.fills(tensor[row], corners, n_samples)
                for prior in recorded
                if tensor[row].numpy().tobytes() in prior.by_corner
            )
            image = tensor[number].double().numpy()
            check_fills(task, image, fills)
            oracle = OracleModel(task, model, [t[row] for t in (*inputs, scale)], place_of(shape))
            oracle.position = position
            algorithm = ALGORITHMS[task.method]
            if task.method is GradientPDA and task.pixelwise:
                algorithm = reference.pixelwise_gradient_pda
            # Layers in place may write over what PyTorch's backward pass needs to know.
            with allow_mutation_on_saved_tensors():
                expected = algorithm(
                    oracle,
                    image,
                    fills if task.method is SampledPDA else fills[0],
                    task.window,
                    task.strides,
                    column % task.classes,
                    task.output,
                    task.measure,
                )
            assert_close(task, actual[position][number], expected, oracle.sensitivity)


def place_of(shape: tuple[int, ...]) -> int:
    """The place that is explained where an output has several."""
    return int(np.prod(shape[1:])) - 1


def target_argument(task: Task, columns: list[int], shape: tuple[int, ...]) -> Any:
    place = tuple(size - 1 for size in shape[1:])
    if place:
        targets = [(column, *place) for column in columns]
        return targets[0] if task.target_form == "int" else targets
    if task.target_form == "int":
        return columns[0]
    return columns if task.target_form == "list" else torch.tensor(columns)


def check_fills(task: Task, image: np.ndarray, fills: np.ndarray) -> None:
    """The prior itself against the definitions."""
    expected = None if task.method is SampledPDA else oracle_prior_means(task, image)
    if expected is not None:
        allowed = {torch.float64: 1e-7, torch.float32: 1e-3}[task.dtype]
        size = np.abs(image).max() + np.abs(expected).max()
        np.testing.assert_allclose(fills[0], expected, rtol=allowed, atol=allowed * size)


def assert_close(task: Task, actual: Tensor, expected: np.ndarray, sensitivity: float) -> None:
    expected = np.broadcast_to(expected, actual.shape)
    roundings = ROUNDINGS[task.dtype] * torch.finfo(task.dtype).eps
    atol = roundings * (sensitivity + np.abs(expected).max())
    torch.testing.assert_close(
        actual.detach().double(), torch.tensor(expected), rtol=roundings, atol=atol
    )


def run(task: Task) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch, warnings.catch_warnings():
        for advice in ADVICE:
            warnings.filterwarnings("ignore", message=advice)
        check(task, monkeypatch)


SETTINGS: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
}


@settings(max_examples=ORDINARY, derandomize=True, **SETTINGS)
@given(tasks())
def test_random_tasks_agree_with_the_oracle(task):
    run(task)


@pytest.mark.long
@settings(max_examples=LONG, phases=[Phase.generate, Phase.shrink], **SETTINGS)
@given(tasks())
def test_many_random_tasks_agree_with_the_oracle(task):
    run(task)
