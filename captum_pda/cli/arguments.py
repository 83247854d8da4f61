"""Options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from captum_pda.cli.torchvision_models import DEFAULT_MODEL
from captum_pda.cli.usage_errors import UsageError
from captum_pda.prediction.readout import OUTPUTS


def positive(given: str) -> int:
    """A whole number of at least 1."""
    try:
        number = int(given)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{given!r} is not a whole number of at least 1")
    return number


def bits(given: str) -> float:
    """A number of at least 0."""
    try:
        number = float(given)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{given!r} is not a number of at least 0")
    return number


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model to explain."""
    model = parser.add_argument_group("the model")
    add_model_name(model)
    model.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="your own weights for it: a state_dict (.pt, .pth) or .safetensors; loaded without "
        "running code",
    )
    model.add_argument(
        "--labels", type=Path, metavar="FILE", help="the names of its classes, one per line"
    )
    model.add_argument(
        "--output-kind",
        choices=OUTPUTS,
        help="what its outputs are. logits: of classes that exclude each other, before a softmax "
        "(default, unless the model says otherwise). multilabel: of labels, each before a sigmoid "
        "of its own. probabilities: of either, after it. raw: plain numbers, as of a regression",
    )
    model.add_argument(
        "--device",
        default="auto",
        metavar="DEVICE",
        help="cpu, cuda, cuda:1, mps ... (default: a GPU if there is one)",
    )


def add_model_name(group: argparse._ActionsContainer) -> None:
    """The option that names a model, and with it the transforms of its photos."""
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="NAME",
        help="a classifier of torchvision, such as resnet50 or vit_b_16, with its own weights and "
        "transforms; timm/NAME; hf/NAME or hf/FOLDER of transformers; package.module:function for "
        "your own; or %(default)s (default), whose weights come by pip",
    )


def add_overwrite(group: argparse._ActionsContainer) -> None:
    """The option that lets a command replace files that it did not write."""
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="replace files of these names even if captum-pda did not write them; never one that "
        "it reads",
    )


def device_for(name: str) -> torch.device:
    """The device of a name, if this machine has it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UsageError(
            f"--device {name} is not on this machine; leave it out, or use cpu"
        ) from None
    return device
