"""A model as a function of a layer's feature maps: only what follows the layer is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from captum_pda.model.layer_hooks import exchanged
from captum_pda.model.map_layout import MapLayout, map_layout
from captum_pda.model.model_call import ModelCall
from captum_pda.model.outputs import agree, one_row_each
from captum_pda.model.repeated_tensor import RepeatedTensor

#: How what comes before the layer can be run: on a single copy; on a batch that is computed on one
#: of its rows; and on all copies.
WAYS = ("one copy", "one row", "all")


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a model.

    Args:
        module: the layer.
        name: what to call it.
        at_input: whether its inputs are meant, in place of what it returns.
    """

    module: nn.Module
    name: str
    at_input: bool = False


class LayerCall:
    """Runs a model with other feature maps in one of its layers.

    The part of the model that comes before the layer is run on a single copy, and in the layer
    that copy becomes as many as there are maps. A model that can't go on from there, because it
    looks at the batch size early or joins the layer's output with earlier tensors, is run on a
    batch that is computed on one of its rows up to the layer (RepeatedTensor); where that gives
    other outputs too, as a whole on all copies. Which it is, is found out on three maps.

    Args:
        call: the model with the user's inputs.
        layer: whose feature maps are changed.

    Attributes:
        layer: the layer.
        inputs: the feature maps, each (N, C, *space); tokens of a transformer as a grid.
        way: how what comes before the layer is run, one of WAYS.
    """

    def __init__(self, call: ModelCall, layer: Layer) -> None:
        self.given = call.given
        self._call = call
        self.layer = layer
        returned: list[Any] = []
        n_passes = len(call.given[0]) if call.one_at_a_time else 1
        with exchanged(layer.module, layer.at_input, partial(_keep, returned)) as visits:
            self._outputs = call.as_given()
        if visits.count != n_passes:
            raise ValueError(_called_otherwise(layer, visits.count // n_passes))
        values = _joined(returned)
        self.is_tuple = isinstance(values, tuple | list) and not (
            layer.at_input and len(values) == 1
        )
        space = tuple(call.given[0].shape[2:])
        items = values if isinstance(values, tuple | list) else (values,)
        #: The position of each feature map among what the layer returns, and how it is held.
        self._maps = [
            (position, layout)
            for position, item in enumerate(items)
            if (layout := _layout(item, len(call.given[0]), space)) is not None
        ]
        if not self._maps:
            raise ValueError(
                f"layer {layer.name!r} holds no spatial feature map: it has "
                f"{_described(items)}; choose a layer before pooling and flattening"
            )
        self.inputs = tuple(
            layout.to_map(items[place]).contiguous() for place, layout in self._maps
        )
        #: Not of the whole model, which is slower than what follows the layer.
        self.seconds_per_pass = 0.0
        self._one_row_came = False
        self.way = self._cheapest_way()

    @property
    def runs_rest_only(self) -> bool:
        """Whether what comes before the layer is computed only once for all copies."""
        return self.way != "all"

    def unperturbed(self) -> Tensor:
        """The model's outputs for the inputs as they are, (N, ...)."""
        return self._outputs

    @property
    def values_per_example(self) -> int:
        """How many numbers go into what is run with each copy."""
        values = sum(maps[0].numel() for maps in self.inputs)
        return values if self.runs_rest_only else values + self._call.values_per_example

    def for_example(self, example: int, position: int) -> Callable[[Tensor], Tensor]:
        """A function from one example's maps ``position``, changed, to the model's outputs."""
        return partial(self._run, self.way, example, position)

    def _run(self, way: str, example: int, position: int, maps: Tensor) -> Tensor:
        if self._call.one_at_a_time and len(maps) > 1:
            return torch.cat([self._run(way, example, position, each[None]) for each in maps])
        exchange = partial(self._exchange, position, maps)
        n_copies = 1 if way == "one copy" else len(maps)
        with exchanged(self.layer.module, self.layer.at_input, exchange) as visits:
            outputs = self._call.repeated(example, n_copies, as_one_row=way == "one row")
        if visits.count != 1:
            raise ValueError(_called_otherwise(self.layer, visits.count))
        return one_row_each(outputs, len(maps))

    def _exchange(self, position: int, maps: Tensor, values: Any) -> Any:
        """What a layer returns, with other maps in one place and all else once for each of them."""
        place, layout = self._maps[position]
        item = values if isinstance(values, Tensor) else values[place]
        self._one_row_came = isinstance(item, RepeatedTensor)
        if isinstance(values, Tensor):
            return layout.put(maps, values)
        items = [
            layout.put(maps, item) if number == place else _repeated(item, len(maps))
            for number, item in enumerate(values)
        ]
        # A named tuple takes its items one by one.
        return type(values)(*items) if hasattr(values, "_fields") else type(values)(items)

    def _cheapest_way(self) -> str:
        """The first of WAYS in which the model gives the outputs of three copies run as a whole."""
        if self._call.one_at_a_time:
            return WAYS[-1]
        with torch.no_grad():
            copies = with_noise(self.inputs[0][:1], 3)
            expected = self._run("all", 0, 0, copies.clone())
            for way in WAYS[:-1]:
                try:
                    outputs = self._run(way, 0, 0, copies.clone())
                except Exception:  # what can go wrong is up to the model
                    continue
                # All rows that come to the layer were computed: nothing would be saved.
                in_vain = way == "one row" and not self._one_row_came
                if not in_vain and agree(outputs, expected):
                    return way
        return WAYS[-1]


def with_noise(maps: Tensor, n_copies: int) -> Tensor:
    """Copies of maps (1, C, *space) that differ at every place, always in the same way."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(n_copies, *maps.shape[1:], generator=generator, device="cpu").to(maps)
    scale = maps.float().std().nan_to_num(1).clamp_min(0.1).to(maps)
    return maps + scale * noise


def _keep(returned: list[Any], values: Any) -> None:
    # Copies, since the rest of the model may write into them.
    if isinstance(values, tuple | list):
        returned.append([item.clone() if isinstance(item, Tensor) else item for item in values])
    else:
        returned.append(values.clone() if isinstance(values, Tensor) else values)


def _joined(passes: list[Any]) -> Any:
    """What a layer returned in several passes, as if it had been one."""
    if len(passes) == 1 or isinstance(passes[0], Tensor):
        return passes[0] if len(passes) == 1 else torch.cat(passes)
    return [
        torch.cat(items) if isinstance(items[0], Tensor) and items[0].dim() > 0 else items[0]
        for items in zip(*passes, strict=True)
    ]


def _layout(item: Any, n_examples: int, space: tuple[int, ...]) -> MapLayout | None:
    """How a tensor holds a feature map of at least two places; None for anything else."""
    if not isinstance(item, Tensor) or not item.is_floating_point():
        return None
    if item.dim() < 3 or len(item) != n_examples:
        return None
    layout = map_layout(tuple(item.shape), space)
    return layout if layout is not None and max(layout.space) > 1 else None


def _repeated(item: Any, n_copies: int) -> Any:
    if not isinstance(item, Tensor) or item.dim() == 0 or len(item) != 1:
        return item
    return item.expand(n_copies, *item.shape[1:]).clone()


def _described(items: Any) -> str:
    found = (
        f"a tensor of shape {tuple(item.shape)}"
        if isinstance(item, Tensor)
        else type(item).__name__
        for item in items
    )
    return " and ".join(found)


def _called_otherwise(layer: Layer, count: int) -> str:
    if count > 1:
        return (
            f"layer {layer.name!r} is called {count} times in one pass, so it has several feature "
            "maps; choose a module that is called once, such as the block that contains it"
        )
    return (
        f"layer {layer.name!r} is not called when the model runs; choose a layer of this model, "
        "and pass the model as it was before torch.compile, torch.jit or DataParallel"
    )
