"""Write an explanation: a picture for people, and numbers for programs."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from safetensors.torch import save as to_safetensors

from captum_pda.basics.files import write_whole
from captum_pda.cli.explanation import Explanation
from captum_pda.cli.models import Classifier
from captum_pda.cli.usage_errors import CommandError
from captum_pda.visualization import visualize_evidence_multiple

RAW_FORMATS = ("npz", "safetensors", "none")
DPI = 110


def make_folder(folder: Path) -> None:
    """Make the folder for results, before the work rather than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error) from error


def write_result(path: Path, content: bytes) -> None:
    """Write a file, or say in one line that it cannot be."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise _not_written(path, error) from error


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    write_result(path, content.getvalue())


def write_picture(path: Path, explanation: Explanation, classifier: Classifier) -> None:
    """The photo as the model sees it, and the map of each answer on one scale."""
    titles = []
    for answer in explanation.answers:
        shares = [float(explanation.probabilities[number]) for number in answer.classes]
        name = answer.name.replace(" rather than ", "\nrather than ")
        titles.append(f"{name}\n" + " : ".join(f"{share:.1%}" for share in shares))
    figure, _ = visualize_evidence_multiple(
        [answer.bits for answer in explanation.answers],
        explanation.image,
        titles=titles,
        mean=classifier.preprocessing.mean,
        std=classifier.preprocessing.std,
        image_title="the photo as the model sees it",
        n_columns=4,
        use_pyplot=False,
    )
    write_figure(path, figure)


def write_numbers(path: Path, explanation: Explanation, settings: Mapping[str, Any]) -> None:
    """The maps in bits, with everything that is needed to know what they are.

    A file of NumPy's (npz) or of safetensors, by its ending: "bits" (answers, H, W), "first" and
    "second" (the class of each answer and the one it is told apart from, or -1), "probabilities"
    (classes); and the settings and names as JSON, in the array "settings" or the file's header.
    """
    second = [
        answer.classes[1] if len(answer.classes) > 1 else -1 for answer in explanation.answers
    ]
    tensors = {
        "bits": torch.stack([answer.bits for answer in explanation.answers]).cpu().float(),
        "first": torch.tensor([answer.classes[0] for answer in explanation.answers]),
        "second": torch.tensor(second),
        "probabilities": explanation.probabilities.cpu().float(),
    }
    names = [answer.name for answer in explanation.answers]
    header = json.dumps({**settings, "answers": names}, ensure_ascii=False)
    if path.suffix == ".safetensors":
        write_result(path, to_safetensors(tensors, metadata={"settings": header}))
        return
    content = io.BytesIO()
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    np.savez_compressed(content, settings=np.array(header), **arrays)
    write_result(path, content.getvalue())


def _not_written(path: Path, error: OSError) -> CommandError:
    return CommandError(
        f"{path} cannot be written ({error.strerror or error}); choose another place with --output"
    )
