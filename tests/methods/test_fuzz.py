"""Random tasks through all three classes and all engines give the oracle's map."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import reference
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_networks import HEADS, LAYERS, make_network
from torch import Tensor, nn
from torch.autograd.graph import allow_mutation_on_saved_tensors

from captum_pda import EfficientPDA, GradientPDA, IncrementalError, SampledPDA

N_TASKS = 150
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

    @property
    def n_samples(self) -> int:
        return 2 if self.method is SampledPDA else 1


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    def choose(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    dims = choose(2, 2, 1, 3)
    space = tuple(draw(st.integers(1, {1: 24, 2: 11, 3: 5}[dims])) for _ in range(dims))
    window = tuple(draw(st.integers(1, -(-size // choose(2, 1)))) for size in space)
    classes = choose(2, 1, 3, 6)
    kind = choose("logits", "logits", "softmax" if classes > 1 else "sigmoid", "sigmoid", "raw")
    head = choose(*HEADS)
    layer = st.tuples(st.sampled_from(LAYERS), st.integers(0, 63))
    return Task(
        method=choose(*ALGORITHMS),
        channels=choose(1, 2, 3, 5, 16),
        space=space,
        window=window,
        strides=tuple(draw(st.integers(1, max(1, width // 2))) for width in window),
        n_examples=choose(1, 2, 3),
        classes=classes,
        recipe=tuple(draw(layer) for _ in range(draw(st.integers(0, 6)))),
        head=head,
        kind=kind,
        measure="weight_of_evidence" if kind == "raw" else choose(*MEASURES),
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


class SeveralInputs(nn.Module):
    """Adds up one network for each input tensor, scales the sum, and ends as ``kind`` says."""

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


class OwnPrior:
    """Fills that depend on the image, the place and the sample, which the oracle knows too."""

    def sample(self, example: Tensor, regions: Any, n_samples: int, generator: Any = None):
        fills = self.fills(example, regions.corners.tolist(), regions.window, n_samples)
        return torch.from_numpy(fills).to(example)

    def conditional_mean(self, example: Tensor, regions: Any) -> Tensor:
        return self.sample(example, regions, 1)[0]

    @staticmethod
    def fills(example: Tensor, corners: Any, window: tuple[int, ...], n: int) -> np.ndarray:
        """(S, W, C, *window), of numbers that single precision has too."""
        image = example.double().numpy()
        slope = np.linspace(-1, 1, int(np.prod(window))).reshape(window)
        colour = image.reshape(len(image), -1).mean(axis=1).reshape(-1, *(1 for _ in window))
        fills = [[colour + slope + 0.1 * sum(at) - 0.4 * s for at in corners] for s in range(n)]
        return np.array(fills).astype(np.float32).astype(np.float64)


def make_images(task: Task, seed: int) -> Tensor:
    generator = np.random.default_rng([task.seed, seed])
    images = generator.normal(size=(task.n_examples, task.channels, *task.space))
    for axis in range(2, images.ndim):
        images = images + 0.7 * np.roll(images, 1, axis)
    # Rounded, so that the oracle in double precision sees the same numbers.
    return torch.from_numpy(images + generator.normal()).to(task.dtype)


def make_model(task: Task) -> tuple[nn.Module, list[Tensor], Tensor, tuple[int, ...]]:
    """The model, its inputs, its additional argument, and the shape of an example's outputs."""
    inputs = [make_images(task, seed) for seed in range(1 + task.second_input)]
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


class OracleModel:
    """One input of one example through the model in its own precision, as the oracle calls it."""

    def __init__(
        self, task: Task, model: nn.Module, arguments: list[Tensor], position: int
    ) -> None:
        self.task, self.model = task, model
        self.arguments, self.position = arguments, position
        #: How many roundings of the outputs' size an error of one may have become in the evidence.
        self.sensitivity = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        # Copies, since a network may write into its input.
        arguments = [argument.clone() for argument in self.arguments]
        arguments[self.position] = x.to(self.task.dtype).clone()
        # Where an output has several places, the last one is explained.
        outputs = self.model(*arguments)
        outputs = outputs.reshape(1, outputs.shape[1], -1)[..., -1].double()
        seen = outputs.detach()
        # An error of p is one of p / (p (1 - p)) in its log-odds.
        is_probability = self.task.output == "probabilities"
        roundings = 1 / seen.minimum(1 - seen) if is_probability else seen.abs()
        self.sensitivity = max(self.sensitivity, float(roundings.max()))
        return outputs


def attributions(task: Task, engine: str, columns: list[int]) -> tuple[Tensor, ...]:
    """The library's maps."""
    model, inputs, scale, shape = make_model(task)
    place = tuple(size - 1 for size in shape[1:])
    targets: Any = [(column, *place) for column in columns] if place else columns
    if task.target_form == "int":
        targets = targets[0]
    elif task.target_form == "tensor" and not place:
        targets = torch.tensor(targets)
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
        arguments["n_samples"] = task.n_samples
    pda = task.method(model, OwnPrior(), **options)
    given_inputs = tuple(laid_out(tensor, task.layout) for tensor in inputs)
    if task.every and task.method is not GradientPDA:
        return pda.evidence(given_inputs, **arguments).attribution(targets)
    return pda.attribute(given_inputs, target=targets, **arguments)


def check(task: Task) -> None:
    """Run a task, and compare with the oracle."""
    columns = [task.target] * task.n_examples
    if task.target_form != "int" and task.target >= 0:
        columns = [(task.target + n) % task.classes for n in range(task.n_examples)]
    try:
        actual = attributions(task, task.engine, columns)
    except IncrementalError:
        assert task.engine == "incremental"
        actual = attributions(task, "auto", columns)
    algorithm = ALGORITHMS[task.method]
    if task.method is GradientPDA and task.pixelwise:
        algorithm = reference.pixelwise_gradient_pda
    model, inputs, scale, _ = make_model(task)
    corners = reference.window_corners(task.space, task.window, task.strides)
    windows = task.window, task.strides
    for position, tensor in enumerate(inputs):
        assert actual[position].dtype == task.dtype
        for number, column in enumerate(columns):
            fills = OwnPrior.fills(tensor[number], corners, task.window, task.n_samples)
            rows = [t[number : number + 1] for t in (*inputs, scale)]
            oracle = OracleModel(task, model, rows, position)
            question = column % task.classes, task.output, task.measure
            fills = fills if task.method is SampledPDA else fills[0]
            # Layers in place may write over what PyTorch's backward pass needs to know.
            with allow_mutation_on_saved_tensors():
                found = algorithm(
                    oracle, tensor[number].double().numpy(), fills, *windows, *question
                )
            expected = torch.tensor(np.broadcast_to(found, tensor.shape[1:]))
            rtol = ROUNDINGS[task.dtype] * torch.finfo(task.dtype).eps
            atol = rtol * (oracle.sensitivity + float(expected.abs().max()))
            own = actual[position][number].detach().double()
            torch.testing.assert_close(own, expected, rtol=rtol, atol=atol)


@settings(
    max_examples=N_TASKS,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(tasks())
def test_random_tasks_agree_with_the_oracle(task):
    with warnings.catch_warnings():
        for advice in ADVICE:
            warnings.filterwarnings("ignore", message=advice)
        check(task)
