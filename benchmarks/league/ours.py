"""Our maps, (H, W) for one photo and class, by what the package exports and nothing else."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import captum_pda
from captum_pda import PDA, EfficientPDA, GradientPDA, LayerPDA, SampledPDA, TreePDA
from league.networks import BATCH, Network, Photo
from league.store import MakeMap, Method

EFFORTS = ("quick", "thorough", 1200)


def ours(kind: type, **arguments: Any) -> MakeMap:
    """A method of the package with these arguments to it or to ``attribute``."""

    def make(network: Network, photo: Photo) -> Tensor:
        torch.manual_seed(0)
        quick = network.fast is not None and kind is not GradientPDA
        model = WithQuickPasses(network) if quick else network.model
        given = dict(arguments)
        if quick:
            given |= {"engine": "dense", "perturbations_per_eval": BATCH}
        made = kind(model, **_known(kind, given))
        found = made.attribute(photo.image, target=photo.target, **_known(kind.attribute, given))
        if found.shape[2:] != photo.image.shape[2:]:
            found = LayerPDA.interpolate(found, tuple(photo.image.shape[2:]), "bilinear")
        # All channels of a pixel share one value, except where each has a gradient of its own.
        return found[0].sum(0) if kind is GradientPDA else found[0, 0]

    return make


def pda(network: Network, photo: Photo) -> Tensor:
    return ours(PDA)(network, photo)


class BoxBlur:
    """What stands in for what shap's Partition hides: the mean of 28 x 28 pixels around each."""

    SIDE = 28

    def nothing_seen(self, example: Tensor) -> Tensor:
        before, after = self.SIDE // 2, (self.SIDE - 1) // 2
        padded = F.pad(example[None], (before, after) * 2, mode="reflect")
        return F.avg_pool2d(padded, self.SIDE, stride=1)[0]

    def settings(self) -> dict[str, int]:
        return {"box_blur": self.SIDE}


class WithQuickPasses(nn.Module):
    """The network's quick form, except where its layers are looked into or gradients are wanted."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.inner = network.model
        self._network = [network]  # in a list, so as not to be a submodule

    def forward(self, images: Tensor) -> Tensor:
        watched = any(
            module._forward_hooks or module._forward_pre_hooks
            for module in self.inner.modules()
            if module is not self.inner  # which counts its passes
        )
        if watched or type(images) is not Tensor or torch.is_grad_enabled():
            return self.inner(images)
        return self._network[0].forward(images)


def plain(value: Any) -> Any:
    """A setting as a plain value, to be stored."""
    return value.settings() if hasattr(value, "settings") else value


def _known(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of some arguments that a function has."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in known}


def fingerprint() -> str:
    """A hash of the package's files, since our maps are those of one state of it."""
    folder = Path(captum_pda.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def our_methods(code: str) -> dict[str, Method]:
    """Our methods by name; ``code`` is the name of the state of the package that makes the maps."""
    kinds: dict[str, tuple[type, dict[str, Any]]] = {
        "PDA": (PDA, {}),
        "EfficientPDA": (EfficientPDA, {}),
        "LayerPDA": (LayerPDA, {}),
        "GradientPDA": (GradientPDA, {}),
        "SampledPDA": (SampledPDA, {"n_samples": 3}),
        "TreePDA 300": (TreePDA, {"n_evaluations": 300}),
        "TreePDA 1000": (TreePDA, {"n_evaluations": 1000}),
        "TreePDA 300, fill of Partition": (TreePDA, {"n_evaluations": 300, "prior": BoxBlur()}),
        "TreePDA 1000, fill of Partition": (TreePDA, {"n_evaluations": 1000, "prior": BoxBlur()}),
        "EfficientPDA, empty": (EfficientPDA, {"context": "empty"}),
        "EfficientPDA, both": (EfficientPDA, {"context": "both"}),
    }
    for kind in (PDA, EfficientPDA):
        if _known(kind, {"effort": 0}) or _known(kind.attribute, {"effort": 0}):
            for effort in EFFORTS:
                kinds[f"{kind.__name__}, {effort}"] = (kind, {"effort": effort})
    return {
        name: Method(
            ours(kind, **arguments),
            {name: plain(value) for name, value in arguments.items()} | {"code": code},
            inside=kind in (PDA, LayerPDA, GradientPDA),
            group="ours",
        )
        for name, (kind, arguments) in kinds.items()
    }
