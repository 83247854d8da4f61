"""What a model's outputs are: logits of classes or of labels, probabilities, or plain numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from captum_pda.basics.errors import warn_user
from captum_pda.cli.usage_errors import UsageError
from captum_pda.prediction.model_call import evaluation_mode
from captum_pda.prediction.outputs import scores_of
from captum_pda.prediction.readout import OUTPUTS

#: Modules whose outputs are probabilities.
ENDINGS = (nn.Sigmoid, nn.Softmax, nn.Softmax2d, nn.Hardsigmoid)
#: Modules that only pass values on.
PASSING = (nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout)


def output_kind(asked: str | None, stated: str | None, model: nn.Module, image: Tensor) -> str:
    """How to read a model's outputs: as asked, as the model's source states, or as logits.

    A model that ends in a sigmoid or softmax returns no logits: refused unless something else was
    asked or stated, in which case a contradiction is warned of.
    """
    if stated is not None and stated not in OUTPUTS:
        raise UsageError(
            f"the model's output_kind is {stated!r}; it must be one of {', '.join(OUTPUTS)}"
        )
    kind = asked or stated
    ending = probability_ending(model, image) if kind in (None, "logits", "multilabel") else None
    if ending is None:
        return kind or "logits"
    name, module = ending
    found = (
        f"the model ends in a {type(module).__name__} ({name}), so its outputs are probabilities"
    )
    if kind is None:
        raise UsageError(f"{found}; add --output-kind probabilities")
    warn_user(f"{found}, and they are read as {kind}; use --output-kind probabilities")
    return kind


def probability_ending(model: nn.Module, image: Tensor) -> tuple[str, nn.Module] | None:
    """The sigmoid or softmax module that made a model's outputs, with its name."""
    last: list[tuple[str, nn.Module, object]] = []

    def remember(name: str, module: nn.Module, outputs: object) -> None:
        if not isinstance(module, PASSING):
            last[:] = [(name, module, outputs)]

    handles = [
        module.register_forward_hook(
            lambda module, _, outputs, name=name: remember(name, module, outputs)
        )
        for name, module in model.named_modules()
        if not any(module.children())
    ]
    try:
        with torch.no_grad(), evaluation_mode(model):
            outputs = scores_of(model(image))
    finally:
        for handle in handles:
            handle.remove()
    if not last or not isinstance(last[0][1], ENDINGS):
        return None
    name, module, made = last[0]
    # A sigmoid may also be a gate inside of the last layer.
    is_output = isinstance(made, Tensor) and torch.equal(made.flatten(), outputs.flatten())
    return (name, module) if is_output else None
