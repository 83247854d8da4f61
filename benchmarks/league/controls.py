"""Maps that no method should be behind: they know nothing of the network, or only its gradient.

Tests that remove pixels reward smooth maps and maps of the centre, where photographers put what a
photo shows. How much, these rows say.
"""

from __future__ import annotations

import torch
from captum.attr import Saliency
from scipy.ndimage import gaussian_filter, sobel
from torch import Tensor

from league.networks import Network, Photo
from league.store import MakeMap, Method


def random_map(network: Network, photo: Photo) -> Tensor:
    return torch.rand(photo.image.shape[2:], generator=torch.Generator().manual_seed(1))


def centred_gaussian(network: Network, photo: Photo) -> Tensor:
    """A bell in the middle; its width does not matter, since only the order of pixels counts."""
    rows, columns = ((torch.arange(n) - (n - 1) / 2).square() / n**2 for n in photo.image.shape[2:])
    return torch.exp(-8 * (rows[:, None] + columns))


def blurred_edges(share: float) -> MakeMap:
    """The strength of the photo's edges (Sobel), blurred."""

    def make(network: Network, photo: Photo) -> Tensor:
        grey = photo.image[0].mean(0).double().numpy()
        strength = (sobel(grey, 0) ** 2 + sobel(grey, 1) ** 2) ** 0.5
        return _blurred(torch.from_numpy(strength), share)

    return make


def blurred_noise(share: float) -> MakeMap:
    """White noise, blurred; another one for each photo."""

    def make(network: Network, photo: Photo) -> Tensor:
        generator = torch.Generator().manual_seed(sum(photo.name.encode()))
        return _blurred(torch.randn(photo.image.shape[2:], generator=generator), share)

    return make


def blurred_saliency(share: float) -> MakeMap:
    def make(network: Network, photo: Photo) -> Tensor:
        found = Saliency(network.model).attribute(photo.image, target=photo.target)
        return _blurred(found[0].sum(0), share)

    return make


def _blurred(values: Tensor, share: float) -> Tensor:
    smooth = gaussian_filter(values.double().numpy(), share * values.shape[-1])
    return torch.from_numpy(smooth).float()


#: The blur's standard deviation over the photo's side: about that of the smoother peers' maps.
BLUR = 16 / 224

CONTROLS: dict[str, Method] = {
    "random": Method(random_map, group="control"),
    "centred Gaussian": Method(centred_gaussian, group="control"),
    "blurred edges": Method(blurred_edges(BLUR), {"share": BLUR}, group="control"),
    "blurred noise": Method(blurred_noise(BLUR), {"share": BLUR}, group="control"),
    "Saliency, blurred": Method(
        blurred_saliency(BLUR), {"share": BLUR}, inside=True, group="control"
    ),
}
