"""Which layer of a model to explain: one of its modules by name, or its last feature map."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from captum_pda import device_sync
from captum_pda.model.layer_call import Layer, LayerCall, with_noise
from captum_pda.model.layer_hooks import exchanged
from captum_pda.model.map_layout import MapLayout, in_proportion, map_layout
from captum_pda.model.model_call import ModelCall
from captum_pda.model.outputs import one_row_each, scores_of, unit_of_rounding

#: A map of fewer places hardly tells one place of the input from another.
ENOUGH_PLACES = 16
#: So many maps are tried for a say in the outputs, from the last one backwards.
MOST_TRIED = 40
#: So many of those with a say are tried for whether the rest of the model can be run alone.
MOST_WITH_A_SAY = 3


class NoFeatureMapError(ValueError):
    """A model has no layer whose feature map can be explained."""


@dataclass(frozen=True, eq=False)
class _Candidate:
    name: str
    module: nn.Module
    layout: MapLayout
    values: Tensor


def model_of(forward_func: Callable[..., Any]) -> nn.Module | None:
    """The module behind a model, a method of it, or a partial call of one; None for functions."""
    function: Any = forward_func
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", function)
    return owner if isinstance(owner, nn.Module) else None


def named_layer(
    forward_func: Callable[..., Any], layer: nn.Module | str, at_input: bool = False
) -> Layer:
    """A module of a model with its name, given as either."""
    model = model_of(forward_func)
    if isinstance(layer, nn.Module):
        names = {module: name for name, module in model.named_modules()} if model else {}
        return Layer(layer, names.get(layer) or type(layer).__name__, at_input)
    if not isinstance(layer, str):
        raise TypeError(f"layer must be a module of the model or its name, got {layer!r}")
    if model is None:
        raise TypeError(
            f"layer={layer!r} is a name, and the model is a function whose modules have none here; "
            "pass the module itself"
        )
    try:
        return Layer(model.get_submodule(layer), layer, at_input)
    except AttributeError:
        names_of_children = ", ".join(name for name, _ in model.named_children())
        raise ValueError(
            f"layer={layer!r} is no module of the model; it has {names_of_children}, and "
            "model.named_modules() lists them all"
        ) from None


def last_feature_map(forward_func: Callable[..., Any], call: ModelCall) -> LayerCall:
    """The model from its last layer with a spatial feature map on.

    Modules are tried from the last one backwards. One must be called once, not return the outputs
    themselves (as the last module of a segmentation model does), have places in the
    proportions of the input (at least 16 of them, if any layer has), and a say in the outputs: at
    the end of a vision transformer only the class token has, so the choice falls on what the last
    attention gets. Layers from which the rest of the model can be run alone come first.
    """
    model = model_of(forward_func)
    if model is None:
        raise NoFeatureMapError(
            "the model is a function, so its layers can't be listed; pass layer=, a module that it "
            "calls"
        )
    with_a_say: list[LayerCall] = []
    with torch.no_grad():
        found = _candidates(model, call)
        enough = [each for each in found if _n_places(each) >= ENOUGH_PLACES]
        for candidate in (enough or found)[: -MOST_TRIED - 1 : -1]:
            if _has_a_say(candidate, call):
                with_a_say.append(LayerCall(call, Layer(candidate.module, candidate.name)))
                if with_a_say[-1].runs_rest_only:
                    return with_a_say[-1]
                if len(with_a_say) == MOST_WITH_A_SAY:
                    break
    if with_a_say:
        return with_a_say[0]
    raise NoFeatureMapError(
        f"{type(model).__name__} has no layer with a spatial feature map that is called once and "
        "that its outputs depend on; name one with layer=, or use EfficientPDA, which needs none"
    )


def _candidates(model: nn.Module, call: ModelCall) -> list[_Candidate]:
    """The modules that return a feature map, in the order in which they return."""
    returned: list[tuple[str, nn.Module, Any]] = []

    def keep(name: str, module: nn.Module, values: Any) -> None:
        returned.append((name, module, values))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name:
                hooks.enter_context(exchanged(module, False, partial(keep, name, module)))
        outputs = scores_of(call.repeated(0, 1))
    space = tuple(call.given[0].shape[2:])
    names = [name for name, _, _ in returned]
    tokens = {values.shape[1] for _, _, values in returned if _is_tensor(values, 3)}
    return [
        _Candidate(name, module, layout, values)
        for name, module, values in returned
        if names.count(name) == 1
        and values is not outputs
        and (layout := _layout(values, space, tokens)) is not None
    ]


def _is_tensor(values: Any, dims: int) -> bool:
    return isinstance(values, Tensor) and values.dim() == dims


def _layout(values: Any, space: tuple[int, ...], tokens: set[int]) -> MapLayout | None:
    if not isinstance(values, Tensor) or not values.is_floating_point() or values.dim() < 3:
        return None
    layout = map_layout(tuple(values.shape), space)
    if layout is None or max(layout.space) < 2 or not in_proportion(layout, space):
        return None
    # A square with the side of a transformer's tokens is its table of attention.
    is_attention = layout.kind == "channels first" and set(layout.space) <= tokens
    return None if is_attention and len(space) > 1 else layout


def _n_places(candidate: _Candidate) -> int:
    return int(torch.Size(candidate.layout.space).numel())


def _has_a_say(candidate: _Candidate, call: ModelCall) -> bool:
    """Whether the outputs change when noise is added to the places of a map."""
    maps = candidate.layout.to_map(candidate.values.clone())
    before, after = (
        _outputs_with(candidate, call, changed) for changed in (maps, with_noise(maps, 1))
    )
    # Both are the same single pass, so hardly anything but the noise can tell them apart.
    tolerance = unit_of_rounding(before) * device_sync.as_float(before.abs().max())
    return device_sync.is_true(((after - before).abs() > tolerance).any())


def _outputs_with(candidate: _Candidate, call: ModelCall, maps: Tensor) -> Tensor:
    values = candidate.layout.put(maps, candidate.values)
    with exchanged(candidate.module, False, lambda _: values.clone()):
        return one_row_each(call.repeated(0, 1), 1)
