"""Maps of other methods, each as its authors define it, (H, W) for one photo and class."""

from __future__ import annotations

import copy
import warnings

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
from league.lrp import lrp
from league.networks import BATCH, Network, Photo
from league.store import MakeMap, Method, method

RISE_CELLS, RISE_KEPT = 7, 0.5
#: Passes of EfficientPDA's default, for what is compared with it at equal cost.
EQUAL_PASSES = 470


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


def smooth_grad(n_samples: int) -> MakeMap:
    """The gradient's size, averaged over noisy copies."""

    def make(network: Network, photo: Photo) -> Tensor:
        torch.manual_seed(0)
        found = NoiseTunnel(Saliency(network.model)).attribute(
            photo.image,
            nt_samples=n_samples,
            nt_samples_batch_size=BATCH,
            nt_type="smoothgrad",
            stdevs=0.15 * float(photo.image.max() - photo.image.min()),
            target=photo.target,
        )
        return found[0].sum(0)

    return make


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


def occlusion_of(size: int, passes: int) -> MakeMap:
    """Occlusion with the stride that brings the number of windows nearest to some passes."""

    def make(network: Network, photo: Photo) -> Tensor:
        side = photo.image.shape[-1]
        return occlusion(size, stride_for(side, min(size, side), passes))(network, photo)

    return make


def stride_for(side: int, size: int, passes: int) -> int:
    """Captum's Occlusion has 1 + ceil((side - size) / stride) windows along each axis."""
    return min(
        range(1, max(size, 2)),
        key=lambda stride: abs((1 - (size - side) // stride) ** 2 - passes),
    )


def superpixels(photo: Photo, n_superpixels: int) -> Tensor:
    from skimage.segmentation import slic

    found = slic(_shown(photo), n_segments=n_superpixels, start_label=0)
    return torch.from_numpy(found.astype(np.int64))[None, None]


def _shown(photo: Photo) -> np.ndarray:
    """The photo (H, W, 3) in numbers from 0 to 1."""
    pixels = photo.image[0].permute(1, 2, 0).double().numpy()
    low, high = pixels.min(), pixels.max()
    return (pixels - low) / (high - low)


def of_superpixels(kind: type[KernelShap | Lime], n_samples: int, n_superpixels: int) -> MakeMap:
    """Captum's Lime or KernelShap on superpixels (SLIC), with the mean colour where they go."""

    def make(network: Network, photo: Photo) -> Tensor:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - what the method itself draws from
        found = kind(network.forward).attribute(
            photo.image,
            target=photo.target,
            feature_mask=superpixels(photo, n_superpixels),
            n_samples=n_samples,
            perturbations_per_eval=BATCH,
        )
        return found[0].mean(0)

    return make


def kernel_shap(**settings: int) -> MakeMap:
    return of_superpixels(KernelShap, **settings)


def lime(**settings: int) -> MakeMap:
    return of_superpixels(Lime, **settings)


def lime_of_its_authors(n_samples: int) -> MakeMap:
    """The package ``lime`` as it comes: quickshift superpixels, each in its mean colour."""

    def make(network: Network, photo: Photo) -> Tensor:
        from lime.lime_image import LimeImageExplainer

        low, high = float(photo.image.min()), float(photo.image.max())

        def predict(images: np.ndarray) -> np.ndarray:
            scaled = torch.from_numpy(images).float() * (high - low) + low
            outputs = network.outputs(scaled.permute(0, 3, 1, 2).contiguous())
            return outputs.softmax(1).numpy()

        found = LimeImageExplainer(random_state=0).explain_instance(
            _shown(photo),
            predict,
            labels=(photo.target,),
            top_labels=None,
            num_samples=n_samples,
            batch_size=BATCH,
            random_seed=0,
        )
        weights = np.zeros(found.segments.max() + 1)
        for segment, weight in found.local_exp[photo.target]:
            weights[segment] = weight
        return torch.from_numpy(weights[found.segments])

    return make


def shap_partition(passes: int) -> MakeMap:
    def make(network: Network, photo: Photo) -> Tensor:
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
        found = explainer(scaled[None], max_evals=passes, batch_size=BATCH, silent=True)
        return torch.from_numpy(np.asarray(found.values, dtype=np.float64))[0, ..., 0].sum(-1)

    return make


def shap_bpt(passes: int, background: str) -> MakeMap:
    """Owen values on a binary tree of regions of similar colour (Rashid et al. 2026).

    What is not seen has the mean colour, or a blur such as shap's Partition is given.
    """

    def make(network: Network, photo: Photo) -> Tensor:
        import shap_bpt as package

        nothing = torch.zeros_like(photo.image)
        if background == "blur":
            kernel = [28 * photo.image.shape[-1] // 224 | 1] * 2
            nothing = F.avg_pool2d(
                F.pad(photo.image, [kernel[0] // 2] * 4, mode="reflect"), kernel, stride=1
            )

        def predict(masks: np.ndarray) -> np.ndarray:
            seen = torch.from_numpy(masks)[:, None]
            outputs = network.outputs(torch.where(seen, photo.image, nothing))
            return outputs[:, photo.target : photo.target + 1].numpy()

        shown = (_shown(photo) * 255).round().astype(np.uint8)
        explainer = package.Explainer(predict, shown, num_explained_classes=1)
        # Two passes are its own: with all and with nothing seen.
        found = explainer.explain_instance(passes - 2, method="BPT", batch_size=BATCH)
        return torch.from_numpy(found[0])

    return make


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


#: Cheap and important ones first. Occlusion's sizes and strides are in pixels.
PEERS: dict[str, Method] = {
    "GradCAM": Method(grad_cam, inside=True),
    "Occlusion 64": method(occlusion, size=64, stride=16),
    "Occlusion 32": method(occlusion, size=32, stride=16),
    "LRP": method(lrp, inside=True, composite="EpsilonPlusFlat"),
    "LRP, no bias": method(lrp, inside=True, composite="EpsilonPlusFlat", zero_params="bias"),
    "Saliency": Method(saliency, inside=True),
    "shap Partition 1000": method(shap_partition, passes=1000),
    "shap Partition 300": method(shap_partition, passes=300),
    f"LIME {EQUAL_PASSES}": method(lime, n_samples=EQUAL_PASSES, n_superpixels=100),
    **{
        f"Occlusion {size}, {EQUAL_PASSES} passes": method(
            occlusion_of, size=size, passes=EQUAL_PASSES
        )
        for size in (16, 32, 48, 64, 96)
    },
    "RISE 1000": method(rise, n_masks=1000),
    "LIME 1000": method(lime, n_samples=1000, n_superpixels=100),
    "ShapBPT 1000": method(shap_bpt, passes=1000, background="blur"),
    "ShapBPT 1000, mean colour": method(shap_bpt, passes=1000, background="mean"),
    "KernelShap 1000": method(kernel_shap, n_samples=1000, n_superpixels=100),
    "ScoreCAM": Method(score_cam, inside=True),
    "DeepLift": Method(deep_lift, inside=True),
    "Integrated gradients": Method(integrated_gradients, inside=True),
    "SmoothGrad": method(smooth_grad, inside=True, n_samples=40),
    "IG, noise tunnel": Method(noise_tunnel, inside=True),
    "LIME of its authors 1000": method(lime_of_its_authors, n_samples=1000),
    "Occlusion 10": method(occlusion, size=10, stride=8),
    "RISE 4000": method(rise, n_masks=4000),
}


def quietly(make: MakeMap, network: Network, photo: Photo) -> Tensor:
    """Captum says that it sets hooks and gradients for a while."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(network, photo).detach().float()
