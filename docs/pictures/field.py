"""Draws field.jpg, what the default prior expects in a region: python docs/pictures/field.py"""

from pathlib import Path

import matplotlib.pyplot as plt
import skimage.data
import torch

from captum_pda import GaussianFieldPrior, Superpixels
from captum_pda.regions.protocol import PlacedWindows

SIDE = 160
#: A photo and the first pixel of the crop.
CROPS = {
    "sky": (skimage.data.rocket(), 0, 330),
    "grass": (skimage.data.grass(), 100, 100),
    "brick": (skimage.data.brick(), 100, 100),
    "cat": (skimage.data.chelsea(), 60, 130),
}
TITLES = ("photo", "one region hidden", "conditional mean", "a sample", "another sample")


def main() -> None:
    """Write field.jpg beside this file."""
    figure, axes = plt.subplots(
        len(CROPS), len(TITLES), figsize=(8.6, 7.2), layout="constrained", squeeze=False
    )
    for row, (name, (pixels, top, left)) in zip(axes, CROPS.items(), strict=True):
        photo = torch.from_numpy(pixels[top : top + SIDE, left : left + SIDE] / 255).float()
        image = photo.unsqueeze(0) if photo.dim() == 2 else photo.permute(2, 0, 1)
        numbers = Superpixels(image.unsqueeze(0), 12).numbers
        hidden = numbers == numbers[0, SIDE // 2, SIDE // 2]
        corners = torch.zeros(1, 2, dtype=torch.int64).numpy()
        region = PlacedWindows((SIDE, SIDE), (SIDE, SIDE), corners, hidden)
        prior, generator = GaussianFieldPrior(), torch.Generator().manual_seed(0)
        samples = prior.sample(image, region, 2, generator)
        fills = [torch.full_like(image, torch.nan), prior.conditional_mean(image, region)[0]]
        shown = [image, *(image.where(~hidden, f) for f in (*fills, samples[0, 0], samples[1, 0]))]
        for axis, each, title in zip(row, shown, TITLES, strict=True):
            drawn = each.clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0)
            axis.imshow(drawn.nan_to_num(1.0))
            axis.contour(hidden[0], levels=[0.5], colors="white", linewidths=0.8)
            axis.set(xticks=[], yticks=[], title=title if name == "sky" else "")
        row[0].set_ylabel(name)
    figure.savefig(Path(__file__).with_suffix(".jpg"), dpi=110, pil_kwargs={"quality": 76})


if __name__ == "__main__":
    main()
