"""Write an explanation: a picture for people, and numbers for programs."""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from captum_pda.basics.files import write_whole
from captum_pda.cli.classifier import Classifier
from captum_pda.cli.explanation import Explanation
from captum_pda.cli.marks import is_own, mark_options
from captum_pda.cli.places import not_ours
from captum_pda.cli.usage_errors import CommandError
from captum_pda.cli.words import prediction_words
from captum_pda.datasets.result_folder import SETTINGS, json_text, safetensors_file
from captum_pda.visualization import visualize_evidence_multiple

DPI = 110
MOST_COLUMNS = 4
#: Letters that fit above a panel.
TITLE_WIDTH = 30


def write_result(path: Path, content: bytes, overwrite: bool = False) -> None:
    """Write a file, with its folder, or say in one line why not.

    What this command did not write is left as it is, unless ``overwrite``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        there = os.path.lexists(path)
        if there and not overwrite and not is_own(path):
            raise CommandError(not_ours(path))
        write_whole(path, content, overwrite=there)
    except OSError as error:
        raise CommandError(
            f"{path} cannot be written ({error.strerror or error}); choose another place with "
            "--output"
        ) from error


def write_figure(path: Path, figure: Figure, overwrite: bool = False) -> None:
    """Write a figure as PNG or JPEG, by its ending, with a mark of who wrote it."""
    content = io.BytesIO()
    figure.savefig(content, dpi=DPI, **mark_options(path))
    write_result(path, content.getvalue(), overwrite)


def draw_picture(explanation: Explanation, classifier: Classifier) -> Figure:
    """The photo as the model sees it, and the map of each answer on one scale."""
    titles = []
    for answer in explanation.answers:
        shares = [float(explanation.predictions[number]) for number in answer.classes]
        name = answer.name.replace(" rather than ", "\nrather than ")
        chances = " : ".join(prediction_words(share, explanation.measure) for share in shares)
        lines = [*name.splitlines(), chances, explanation.method]
        titles.append("\n".join(textwrap.fill(line, TITLE_WIDTH) for line in lines))
    n_panels = len(titles) + 1
    n_rows = math.ceil(n_panels / MOST_COLUMNS)
    figure, _ = visualize_evidence_multiple(
        [answer.bits for answer in explanation.answers],
        explanation.image,
        titles=titles,
        mean=classifier.preprocessing.mean,
        std=classifier.preprocessing.std,
        image_title="the photo as the model sees it",
        measure=explanation.measure,
        n_columns=math.ceil(n_panels / n_rows),
        use_pyplot=False,
    )
    return figure


def numbers_in_file(
    ending: str, explanation: Explanation, outputs: Tensor | None, settings: Mapping[str, Any]
) -> bytes:
    """The maps, with everything that is needed to know what they are.

    A file of NumPy's (npz) or of safetensors, by its ending: "bits" (answers, H, W; for raw
    outputs in their own unit), "first" and "second" (the class of each answer and the one it is
    told apart from, or -1), "probabilities" (classes; not for raw outputs), "outputs" (what the
    model said of the whole photo); and the settings and names as JSON, in the array "settings" or
    the file's header.
    """
    second = [
        answer.classes[1] if len(answer.classes) > 1 else -1 for answer in explanation.answers
    ]
    tensors = {
        "bits": torch.stack([answer.bits for answer in explanation.answers]).cpu().float(),
        "first": torch.tensor([answer.classes[0] for answer in explanation.answers]),
        "second": torch.tensor(second),
    }
    if explanation.measure.needs_probabilities:
        tensors["probabilities"] = explanation.predictions.cpu().float()
    if outputs is not None:
        tensors["outputs"] = outputs if outputs.dtype == torch.float64 else outputs.float()
    names = [answer.name for answer in explanation.answers]
    header = json_text({**settings, "answers": names})
    if ending == ".safetensors":
        return safetensors_file(tensors, {SETTINGS: header})
    file = io.BytesIO()
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    np.savez_compressed(file, settings=np.array(header), **arrays)
    return file.getvalue()
