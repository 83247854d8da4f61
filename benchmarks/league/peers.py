"""Maps of other methods, each as its authors define it, (H, W) for one photo and class."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from captum.attr import (
    DeepLift,
    IntegratedGradients,
    KernelShap,
    LayerGradCam,
    Lime,
    NoiseTunnel,
    Occlusion,
    Saliency,
)
from torch import Tensor, nn

from league.deep_lift import for_deep_lift
from league.networks import BATCH, Network, Photo

MakeMap = Callable[[Network, Photo], Tensor]
N_SUPERPIXELS = 100
RISE_CELLS, RISE_KEPT = 7, 0.5


def grad_cam(network: Network, photo: Photo) -> Tensor:
    cam = LayerGradCam(network.model, network.pooling).attribute(
        photo.image, target=photo.target, attribute_to_layer_input=True
    )
    return F.interpolate(cam, size=photo.image.shape[2:], mode="bilinear")[0, 0]


def score_cam(network: Network, photo: Photo) -> Tensor:
    from pytorch_grad_cam import ScoreCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    before = nn.Identity()
    model = _WithMap(network, before)
    # Its target layer is one whose output is the last feature map.
    hook = network.pooling.register_forward_pre_hook(lambda _, inputs: (before(inputs[0]),))
    try:
        with ScoreCAM(model, [before]) as method:
            method.batch_size = BATCH
            method.uses_gradients = False
            cam = method(photo.image, [ClassifierOutputTarget(photo.target)])
    finally:
        hook.remove()
    return torch.from_numpy(cam[0])


class _WithMap(nn.Module):
    """The network with hooks where gradients are on, and in its quick form elsewhere."""

    def __init__(self, network: Network, before: nn.Module) -> None:
        super().__init__()
        self.inner, self.before, self._network = network.model, before, [network]

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images) if torch.is_grad_enabled() else self._network[0].forward(images)


def integrated_gradients(network: Network, photo: Photo) -> Tensor:
    method = IntegratedGradients(network.model)
    found = method.attribute(
        photo.image, target=photo.target, n_steps=50, internal_batch_size=BATCH
    )
    return found[0].sum(0)


def noise_tunnel(network: Network, photo: Photo) -> Tensor:
    """Integrated gradients, squared over noisy copies, as Captum's tutorial has it."""
    torch.manual_seed(0)
    method = NoiseTunnel(IntegratedGradients(network.model))
    found = method.attribute(
        photo.image,
        nt_samples=10,
        nt_samples_batch_size=1,
        nt_type="smoothgrad_sq",
        stdevs=0.2,
        target=photo.target,
        n_steps=20,
        internal_batch_size=BATCH,
    )
    return found[0].sum(0)


def saliency(network: Network, photo: Photo) -> Tensor:
    return Saliency(network.model).attribute(photo.image, target=photo.target)[0].sum(0)


def deep_lift(network: Network, photo: Photo) -> Tensor:
    model = copy.deepcopy(network.model)
    model._forward_pre_hooks.clear()
    method = DeepLift(for_deep_lift(model, photo.image))
    network.passes += 2
    return method.attribute(photo.image, target=photo.target)[0].sum(0)


def occlusion(size: int, stride: int) -> MakeMap:
    """Captum's Occlusion of the class's output, with the mean colour in the window."""

    def make(network: Network, photo: Photo) -> Tensor:
        side = photo.image.shape[-1]
        found = Occlusion(network.forward).attribute(
            photo.image,
            target=photo.target,
            sliding_window_shapes=(3, min(size, side), min(size, side)),
            strides=(3, stride, stride),
            baselines=0.0,
            perturbations_per_eval=BATCH,
        )
        return found[0].mean(0)

    return make


def superpixels(photo: Photo) -> Tensor:
    from skimage.segmentation import slic

    pixels = photo.image[0].permute(1, 2, 0).double().numpy()
    low, high = pixels.min(), pixels.max()
    found = slic((pixels - low) / (high - low), n_segments=N_SUPERPIXELS, start_label=0)
    return torch.from_numpy(found.astype(np.int64))[None, None]


def kernel_shap(network: Network, photo: Photo) -> Tensor:
    return _of_superpixels(KernelShap(network.forward), photo)


def lime(network: Network, photo: Photo) -> Tensor:
    return _of_superpixels(Lime(network.forward), photo)


def _of_superpixels(method: KernelShap | Lime, photo: Photo) -> Tensor:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - what the method itself draws from
    found = method.attribute(
        photo.image,
        target=photo.target,
        feature_mask=superpixels(photo),
        n_samples=1000,
        perturbations_per_eval=BATCH,
    )
    return found[0].mean(0)


def shap_partition(network: Network, photo: Photo) -> Tensor:
    import shap

    image = photo.image[0].permute(1, 2, 0).numpy()
    # Its masker paints in numbers from 0 to 255.
    low, high = float(image.min()), float(image.max())

    def predict(images: np.ndarray) -> np.ndarray:
        scaled = torch.from_numpy(images).float() / 255 * (high - low) + low
        outputs = network.outputs(scaled.permute(0, 3, 1, 2).contiguous())
        return outputs[:, photo.target : photo.target + 1].numpy()

    masker = shap.maskers.Image("blur(28,28)", image.shape)
    explainer = shap.Explainer(predict, masker, algorithm="partition")
    scaled = ((image - low) / (high - low) * 255).astype(np.float32)
    found = explainer(scaled[None], max_evals=1000, batch_size=BATCH, silent=True)
    return torch.from_numpy(np.asarray(found.values, dtype=np.float64))[0, ..., 0].sum(-1)


def rise(n_masks: int) -> MakeMap:
    """Randomized input sampling (Petsiuk et al. 2018): S = sum_i f(x * M_i) M_i / (N E[M])."""

    def make(network: Network, photo: Photo) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        side = photo.image.shape[-1]
        total = torch.zeros(side, side)
        for start in range(0, n_masks, BATCH):
            masks = rise_masks(min(BATCH, n_masks - start), side, generator)
            outputs = network.forward(photo.image * masks).softmax(1)[:, photo.target]
            total += (outputs.view(-1, 1, 1, 1) * masks).sum((0, 1))
        return total / (n_masks * RISE_KEPT)

    return make


def rise_masks(n_masks: int, side: int, generator: torch.Generator) -> Tensor:
    """Random cells, enlarged bilinearly by one cell more than needed, and cut at random."""
    cell = -(-side // RISE_CELLS)
    cells = torch.rand(n_masks, 1, RISE_CELLS, RISE_CELLS, generator=generator) < RISE_KEPT
    large = (RISE_CELLS + 1) * cell
    grown = F.interpolate(cells.float(), size=(large, large), mode="bilinear")
    starts = torch.randint(0, cell, (n_masks, 2), generator=generator).tolist()
    cut = [
        grown[number, :, top : top + side, left : left + side]
        for number, (top, left) in enumerate(starts)
    ]
    return torch.stack(cut)


def random_map(network: Network, photo: Photo) -> Tensor:
    return torch.rand(photo.image.shape[2:], generator=torch.Generator().manual_seed(1))


#: Occlusion's sizes and strides are for a side of 224.
PEERS: dict[str, MakeMap] = {
    "GradCAM": grad_cam,
    "Occlusion 64": occlusion(64, 16),
    "Occlusion 32": occlusion(32, 16),
    "RISE 1000": rise(1000),
    "Integrated gradients": integrated_gradients,
    "Saliency": saliency,
    "DeepLift": deep_lift,
    "random": random_map,
    "Occlusion 10": occlusion(10, 8),
    "IG, noise tunnel": noise_tunnel,
    "LIME": lime,
    "KernelShap": kernel_shap,
    "shap Partition": shap_partition,
    "ScoreCAM": score_cam,
    "RISE 4000": rise(4000),
}


def quietly(make: MakeMap, network: Network, photo: Photo) -> Tensor:
    """Captum says that it sets hooks and gradients for a while."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(network, photo).detach().float()
