"""A copy of a model that Captum's DeepLift understands."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def for_deep_lift(model: nn.Module, image: Tensor) -> nn.Module:
    """A copy of a model that Captum's DeepLift understands.

    It knows no ReLU6, and needs a module of its own for every call; otherwise it falls back to
    the gradient without a word. So min(max(x, 0), 6) becomes relu(x) - relu(x - 6), with as many
    modules as there are calls.
    """
    copied = copy.deepcopy(model)
    calls: dict[str, int] = {}

    def count(name: str) -> None:
        calls[name] = calls.get(name, 0) + 1

    hooks = [
        module.register_forward_hook(lambda *_, name=name: count(name))
        for name, module in copied.named_modules()
        if isinstance(module, nn.ReLU6)
    ]
    with torch.no_grad():
        copied(image)
    for hook in hooks:
        hook.remove()
    for name, n_calls in calls.items():
        parent, _, own_name = name.rpartition(".")
        setattr(copied.get_submodule(parent), own_name, _SeparateReLU6(n_calls))
    return copied


class _SeparateReLU6(nn.Module):
    """ReLU6 of two ReLUs, with a pair of its own for each of n calls in a forward pass."""

    def __init__(self, n_calls: int) -> None:
        super().__init__()
        self.lower = nn.ModuleList(nn.ReLU() for _ in range(n_calls))
        self.upper = nn.ModuleList(nn.ReLU() for _ in range(n_calls))
        self.call = 0

    def forward(self, x: Tensor) -> Tensor:
        which = self.call % len(self.lower)
        self.call += 1
        # Captum replaces the gradient of what enters a ReLU, so each gets a tensor of its own.
        return torch.sub(self.lower[which](x.clone()), self.upper[which](x - 6))
