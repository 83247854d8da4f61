"""Layers of a model: finding one, the feature map that it holds, and the model from there on."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from captum_pda._torch import without_compiler
from captum_pda.model.call import ModelCall, copied
from captum_pda.model.evaluation_mode import model_of
from captum_pda.model.outputs import agree, one_row_each, scores_of, unit_of_rounding

#: A transformer has at most this many tokens (class token, registers) besides its patches.
MOST_EXTRA_TOKENS = 8


@dataclass(frozen=True)
class MapLayout:
    """Where channels and places of a feature map are in a tensor."""

    #: The map's spatial shape.
    space: tuple[int, ...]
    #: How many tokens come before those of the places, and are left alone.
    extra: int = 0
    #: "channels first", "channels last" or "tokens" (N, tokens, channels).
    kind: str = "channels first"

    def to_map(self, values: Tensor) -> Tensor:
        """The feature map (N, C, *space) of a layer's output."""
        if self.kind == "channels first":
            return values
        if self.kind == "channels last":
            return values.movedim(-1, 1)
        places = values[:, self.extra :].transpose(1, 2)
        return places.reshape(*places.shape[:2], *self.space)

    def put(self, maps: Tensor, values: Tensor) -> Tensor:
        """A layer's output for feature maps (rows, C, *space); ``values`` is its output for one of
        them or for all, whose extra tokens are kept."""
        if self.kind == "channels first":
            return maps
        if self.kind == "channels last":
            return maps.movedim(1, -1)
        places = maps.flatten(2).transpose(1, 2)
        if self.extra == 0:
            return places
        kept = values[:, : self.extra].expand(len(maps), -1, -1)
        return torch.cat([kept, places], dim=1)


@lru_cache(maxsize=1024)
def map_layout(shape: tuple[int, ...], space: tuple[int, ...]) -> MapLayout | None:
    """How a tensor of this shape holds a feature map of inputs with this spatial shape.

    Channels are first, or last if only the dimensions in the middle have the input's proportions.
    For images, (N, tokens, channels) is the grid of a transformer's patches, after its class token
    and registers. None for others, such as pooled features.
    """
    #: Of square patches of every side.
    grids = [tuple(size // side for size in space) for side in range(1, min(space) + 1)]
    if len(shape) == len(space) + 2:
        first, last = shape[2:], shape[1:-1]
        if not _in_proportion(first, space) and last in grids:
            return MapLayout(last, kind="channels last")
        return MapLayout(first)
    if len(shape) != 3 or len(space) != 2:
        return None
    found = [
        MapLayout(grid, shape[1] - math.prod(grid), "tokens")
        for grid in grids
        if 0 <= shape[1] - math.prod(grid) <= MOST_EXTRA_TOKENS and math.prod(grid) > 1
    ]
    return min(found, key=lambda layout: layout.extra, default=None)


def _in_proportion(places: tuple[int, ...], space: tuple[int, ...]) -> bool:
    """Whether sides are alike shares of the input's, within a factor of two."""
    shares = sorted(size / whole for size, whole in zip(places, space, strict=True))
    return all(large <= 2 * small for small, large in pairwise(shares)) and shares[-1] <= 2


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a model: what it returns or, ``at_input``, what it is called with."""

    module: nn.Module
    name: str
    at_input: bool = False

    @contextmanager
    def exchanged(self, exchange: Callable[[Any], Any], n_passes: int = 0) -> Iterator[None]:
        """Let ``exchange`` replace what the layer returns or is called with; None leaves it.

        Only calls from this thread count: others may run the same model meanwhile. A layer that is
        not called once in each of ``n_passes`` is refused. Compiled code calls no layers, so the
        model runs as it was written.
        """
        n_visits = 0
        thread = threading.get_ident()

        def hook(module: nn.Module, *seen: Any) -> Any:
            nonlocal n_visits
            if threading.get_ident() != thread:
                return None
            n_visits += 1
            return exchange(seen[-1])

        if self.at_input:
            handle = self.module.register_forward_pre_hook(hook)
        else:
            handle = self.module.register_forward_hook(hook)
        try:
            with without_compiler():
                yield
        finally:
            handle.remove()
        if n_passes and not n_visits:
            raise ValueError(
                f"layer {self.name!r} is not called when the model runs; choose a layer of this "
                "model, and pass the model as it was before torch.compile, torch.jit or "
                "DataParallel"
            )
        if n_passes and n_visits != n_passes:
            raise ValueError(
                f"layer {self.name!r} is called {n_visits // n_passes} times in one pass, so it "
                "has several feature maps; choose a module that is called once, such as the block "
                "that contains it"
            )


@contextmanager
def kept_outputs(layer: Layer, model: nn.Module | None) -> Iterator[dict[nn.Module, Tensor]]:
    """What the modules of a model (None: all there are) return until a layer is reached, in a pass
    of one example: the outputs of the outermost ones that are called once and return a tensor."""
    kept: dict[nn.Module, Tensor] = {}
    calls: Counter[nn.Module] = Counter()
    is_reached = False
    thread = threading.get_ident()

    def enter(module: nn.Module, _: Any) -> None:
        if threading.get_ident() == thread:
            calls[module] += 1

    def leave(module: nn.Module, _: Any, output: Any) -> None:
        if threading.get_ident() != thread or is_reached:
            return
        for inner in module.modules():  # itself among them
            kept.pop(inner, None)
        if isinstance(output, Tensor) and output.shape[:1] == (1,):
            kept[module] = output.clone()  # the rest of the model may write into it

    def reach(values: Any) -> None:
        nonlocal is_reached
        is_reached = True

    with ExitStack() as hooks:
        if model is None:
            handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        else:  # compiled modules warn of hooks of all modules
            handles = [one.register_forward_pre_hook(enter) for one in model.modules()]
            handles += [one.register_forward_hook(leave) for one in model.modules()]
        for handle in handles:
            hooks.callback(handle.remove)
        hooks.enter_context(layer.exchanged(reach))
        yield kept
    for module in [module for module in kept if calls[module] > 1]:
        del kept[module]


#: Held while modules are skipped: threads that share a model wait for each other.
_SKIPPING = threading.RLock()


@contextmanager
def skipped(outputs: Mapping[nn.Module, Tensor], n_rows: int) -> Iterator[None]:
    """Let modules return what they returned before, once for each of ``n_rows``, in this thread."""
    thread = threading.get_ident()

    def returning(output: Tensor, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return forward(*args, **kwargs)
        return output.expand(n_rows, *output.shape[1:]).clone()

    with _SKIPPING, ExitStack() as stack:
        for module, output in outputs.items():
            known = vars(module)
            if "forward" in known:  # the module has one of its own
                stack.callback(known.__setitem__, "forward", known["forward"])
            else:
                stack.callback(known.pop, "forward", None)
            known["forward"] = partial(returning, output, module.forward)
        yield


class LayerCall:
    """Runs a model with other feature maps in one of its layers.

    Modules that are done before the layer is reached are run once, and return the same again for
    each copy (``runs_rest_only``). Where that gives other outputs, the whole model is run on all
    copies. ``inputs`` are the feature maps, each (N, C, *space); tokens of a transformer as a grid.
    """

    def __init__(self, call: ModelCall, layer: Layer) -> None:
        self.given = call.given
        self._call = call
        self.layer = layer
        self.is_tuple = False
        passes: list[list[Any]] = []

        def keep(values: Any) -> None:
            is_several = isinstance(values, tuple | list)
            self.is_tuple = is_several and not (layer.at_input and len(values) == 1)
            # Copies, since the rest of the model may write into them.
            passes.append(copied(values if is_several else [values]))

        n_passes = len(call.given[0]) if call.one_at_a_time else 1
        with layer.exchanged(keep, n_passes):
            self._outputs = call.as_given()
        items = [
            torch.cat(each) if isinstance(each[0], Tensor) and each[0].dim() > 0 else each[0]
            for each in zip(*passes, strict=True)
        ]
        layouts = [_layout(item, call.given[0]) for item in items]
        #: The position of each feature map among what the layer returns, and how it is held.
        self._maps = [(place, layout) for place, layout in enumerate(layouts) if layout]
        if not self._maps:
            shapes = [getattr(item, "shape", None) for item in items]
            found = " and ".join(
                type(item).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
                for item, shape in zip(items, shapes, strict=True)
            )
            raise ValueError(
                f"layer {layer.name!r} holds no spatial feature map: it has {found}; choose a "
                "layer before pooling and flattening"
            )
        self.inputs = tuple(layout.to_map(items[n]).contiguous() for n, layout in self._maps)
        #: An example, and what modules before the layer return for it.
        self._of_example: tuple[int, dict[nn.Module, Tensor]] = (-1, {})
        self.runs_rest_only = self._can_run_rest_only()

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
        known = self._known(example) if self.runs_rest_only else {}
        return partial(self._run, known, example, position)

    def _known(self, example: int) -> dict[nn.Module, Tensor]:
        if self._of_example[0] != example:
            with kept_outputs(self.layer, model_of(self._call.forward_func)) as known:
                self._call.repeated(example, 1)
            self._of_example = (example, known)
        return self._of_example[1]

    def _run(
        self, known: Mapping[nn.Module, Tensor], example: int, position: int, maps: Tensor
    ) -> Tensor:
        if self._call.one_at_a_time and len(maps) > 1:
            each = [self._run(known, example, position, one[None]) for one in maps]
            return torch.cat(each)
        exchange = partial(self._exchange, position, maps)
        with skipped(known, len(maps)), self.layer.exchanged(exchange, n_passes=1):
            outputs = self._call.repeated(example, len(maps))
        return one_row_each(outputs, len(maps))

    def _exchange(self, position: int, maps: Tensor, values: Any) -> Any:
        """What a layer returns, with other maps in one place and all else once for each of them."""
        place, layout = self._maps[position]
        if isinstance(values, Tensor):
            return layout.put(maps, values)
        items = list(values)
        for number, item in enumerate(items):
            if number == place:
                items[number] = layout.put(maps, item)
            elif isinstance(item, Tensor) and item.dim() > 0 and len(item) == 1:
                items[number] = item.expand(len(maps), *item.shape[1:]).clone()
        # A named tuple takes its items one by one.
        return type(values)(*items) if hasattr(values, "_fields") else type(values)(items)

    def _can_run_rest_only(self) -> bool:
        """Whether the model gives the outputs of three copies that are run as a whole."""
        with torch.no_grad():
            copies = _with_noise(self.inputs[0][:1], 3)
            expected = self._run({}, 0, 0, copies.clone())
            try:
                return agree(self._run(self._known(0), 0, 0, copies.clone()), expected)
            except Exception:  # what can go wrong is up to the model
                return False


def _with_noise(maps: Tensor, n_copies: int) -> Tensor:
    """Copies of maps (1, C, *space) that differ at every place, always in the same way."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(n_copies, *maps.shape[1:], generator=generator, device="cpu").to(maps)
    scale = maps.float().std().nan_to_num(1).clamp_min(0.1).to(maps)
    return maps + scale * noise


def _layout(item: Any, given: Tensor) -> MapLayout | None:
    """How a tensor holds a feature map of at least two places; None for anything else."""
    if not isinstance(item, Tensor) or not item.is_floating_point():
        return None
    if item.dim() < 3 or len(item) != len(given):
        return None
    layout = map_layout(tuple(item.shape), tuple(given.shape[2:]))
    return layout if layout is not None and max(layout.space) > 1 else None


#: A map of fewer places hardly tells one place of the input from another.
MIN_PLACES = 16
#: How many maps are tested for an influence on the outputs, from the last one backwards.
MAX_TESTED_MAPS = 40
#: How many maps with an influence are tested for whether the rest of the model runs by itself.
MAX_INFLUENTIAL_MAPS = 3


class NoFeatureMapError(ValueError):
    """A model has no layer whose feature map can be explained."""


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
            f"layer={layer!r} is not a module of the model; it has {names_of_children}, and "
            "model.named_modules() lists them all"
        ) from None


def last_feature_map(forward_func: Callable[..., Any], call: ModelCall) -> LayerCall:
    """The model from its last layer with a spatial feature map on.

    Modules are tried from the last one backwards. One must be called once, not return the outputs
    themselves, have places in the proportions of the input (at least 16, if any layer has), and
    influence the outputs: at the end of a vision transformer only the class token has, so the
    choice falls on what the last attention gets. Layers from which the rest of the model can be run
    alone come first.
    """
    model = model_of(forward_func)
    if model is None:
        raise NoFeatureMapError(
            "the model is a function, so its layers cannot be listed; pass layer=, a module that "
            "it calls"
        )
    influential: list[LayerCall] = []
    with torch.no_grad():
        found = _candidates(model, call)
        enough = [each for each in found if math.prod(each[1].space) >= MIN_PLACES]
        for layer, layout, values in (enough or found)[: -MAX_TESTED_MAPS - 1 : -1]:
            if _has_influence(layer, layout, values, call):
                try:
                    influential.append(LayerCall(call, layer))
                except ValueError:  # it is called once for each of several copies
                    continue
                if influential[-1].runs_rest_only:
                    return influential[-1]
                if len(influential) == MAX_INFLUENTIAL_MAPS:
                    break
    if influential:
        return influential[0]
    raise NoFeatureMapError(
        f"{type(model).__name__} has no layer with a spatial feature map that is called once and "
        "that its outputs depend on; name one with layer=, or use EfficientPDA, which needs none"
    )


def _candidates(model: nn.Module, call: ModelCall) -> list[tuple[Layer, MapLayout, Tensor]]:
    """The modules that return a feature map, in the order in which they return."""
    returned: list[tuple[Layer, Any]] = []
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name:
                layer = Layer(module, name)
                keep = partial(lambda layer, values: returned.append((layer, values)), layer)
                hooks.enter_context(layer.exchanged(keep))
        outputs = scores_of(call.repeated(0, 1))
    first = call.given[0][:1]
    space = tuple(first.shape[2:])
    n_calls = Counter(layer.name for layer, _ in returned)
    tensors = [values for _, values in returned if isinstance(values, Tensor)]
    tokens = {values.shape[1] for values in tensors if values.dim() == 3}
    found = []
    for layer, values in returned:
        layout = _layout(values, first)
        if n_calls[layer.name] > 1 or values is outputs or layout is None:
            continue
        # A square with the side of a transformer's tokens is its table of attention.
        is_attention = layout.kind == "channels first" and set(layout.space) <= tokens
        if _in_proportion(layout.space, space) and not (is_attention and len(space) > 1):
            found.append((layer, layout, values))
    return found


def _has_influence(layer: Layer, layout: MapLayout, values: Tensor, call: ModelCall) -> bool:
    """Whether the outputs change when noise is added to the places of a map."""
    maps = layout.to_map(values.clone())
    outputs = []
    for changed in (maps, _with_noise(maps, 1)):
        put = layout.put(changed, values).clone()
        with layer.exchanged(partial(lambda put, _: put, put)):
            outputs.append(one_row_each(call.repeated(0, 1), 1))
    before, after = outputs
    # Both are the same single pass, so hardly anything but the noise can tell them apart.
    return not agree(after, before, share=unit_of_rounding(before))


#: A model as a function of tensors whose regions are hidden: its inputs, or a layer's maps.
Call: TypeAlias = ModelCall | LayerCall
