"""The pictures of the README's gallery, one for each task: python docs/pictures/gallery.py

Photos are scikit-image's and the network of the first two is EfficientNet-lite0, all from pip. The
other networks are small ones, trained here in about a minute on scikit-learn's digits, on scenes of
several digits, and on invented volumes.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn

from captum_pda import PDA, EfficientPDA, WindowEvidence
from captum_pda.evidence.strongest import strongest_regions
from captum_pda.visualization.drawing import draw_map, innermost, picture_of_map
from captum_pda.visualization.regions import draw_outlines
from captum_pda.visualization.space import draw_slices

FOLDER = Path(__file__).parent
SIDE = 2.1  # inches of a panel
BYTES = 60_000


def panels(n: int) -> tuple[Figure, list]:
    """Axes in a row, without ticks."""
    figure = Figure(figsize=(n * SIDE, SIDE + 0.3), layout="constrained")
    axes = list(np.ravel(figure.subplots(1, n)))
    for one in axes:
        one.set_xticks([])
        one.set_yticks([])
    return figure, axes


def save(figure: Figure, name: str) -> None:
    """As a JPEG of at most 60 kB."""
    for quality in (88, 80, 70, 60):
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=110)
        small = io.BytesIO()
        Image.open(content).convert("RGB").save(small, "JPEG", quality=quality, optimize=True)
        if small.tell() <= BYTES:
            break
    (FOLDER / f"gallery_{name}.jpg").write_bytes(small.getvalue())
    print(name, small.tell())


def pair(
    evidence: WindowEvidence,
    values: Tensor,
    image: np.ndarray,
    titles: tuple[str, str],
    name: str,
    kinds: tuple | None = None,
    box: tuple[int, int, int, int] | None = None,
) -> None:
    """The input and its map."""
    figure, axes = panels(2)
    axes[0].imshow(image, cmap="gray")
    if kinds:
        draw_outlines(axes[0], *kinds)
    own = values.numpy()
    draw_map(axes[1], own, float(np.abs(own).max()), image if image.ndim == 3 else image[..., None])
    for one, title in zip(axes, titles, strict=True):
        one.set_title(title, fontsize=9)
        if box:
            top, left, tall, wide = box
            one.add_patch(
                Rectangle((left - 0.5, top - 0.5), wide, tall, fill=False, color="#e08214")
            )
    save(figure, name)


def photos() -> None:
    """A class, and a class rather than another, of photos."""
    from skimage import data

    from captum_pda.cli.models import load_classifier

    classifier = load_classifier("efficientnet_lite0")
    for name, photo, rather in (
        ("classification", data.astronaut(), None),
        ("contrast", data.chelsea(), 285),
    ):
        image = classifier.preprocessing(Image.fromarray(photo))
        evidence = PDA(classifier.model).evidence(image, effort="quick")
        top = evidence.top()
        shown = ((image[0] - image.min()) / (image.max() - image.min())).permute(1, 2, 0).numpy()
        kinds = strongest_regions(evidence, top, 2, rather)
        values = evidence.attribution(top) if rather is None else evidence.contrast(top, rather)
        title = classifier.labels[top].split(",")[0]
        said = f'why "{title}"?'
        if rather is not None:
            said = f'rather than "{classifier.labels[rather].split(",")[0]}"'
        pair(evidence, values[0, 0], shown, (title, said), name, kinds)


def digits(side: int) -> tuple[Tensor, Tensor]:
    """Scikit-learn's digits, enlarged, and their classes."""
    found = load_digits()
    images = torch.tensor(found.images[:, None] / 16, dtype=torch.float32)
    return F.interpolate(images, size=(side, side), mode="bilinear"), torch.tensor(found.target)


class Transformer(nn.Module):
    """A vision transformer of three blocks with patches of 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 64, 8, 8)
        self.place = nn.Parameter(0.02 * torch.randn(1, 64, 64))
        block = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.place
        return self.head(self.blocks(tokens).mean(dim=1))


def train(model: nn.Module, batches, steps: int, loss) -> nn.Module:
    """A model after some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for step in range(steps):
        inputs, targets = batches()
        error = loss(model(inputs), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        if step % 100 == 0:
            print(step, round(float(error), 3), flush=True)
    return model.eval()


def transformer() -> None:
    """A digit somewhere on a canvas, among blots that mean nothing."""
    images, labels = digits(24)

    def canvas(pick: int) -> Tensor:
        made = 0.05 * torch.rand(1, 64, 64)
        for _ in range(2):
            top, left = torch.randint(0, 56, (2,)).tolist()
            made[:, top : top + 8, left : left + 8] += 0.6
        top, left = torch.randint(0, 40, (2,)).tolist()
        made[:, top : top + 24, left : left + 24] += images[pick]
        return made.clamp(0, 1)

    def batches():
        some = torch.randint(0, 1500, (64,))
        return torch.stack([canvas(int(pick)) for pick in some]), labels[some]

    model = train(Transformer(), batches, 2500, F.cross_entropy)
    torch.manual_seed(3)
    picks = range(1500, 1700)
    shown = torch.stack([canvas(pick) for pick in picks])
    print("right", float((model(shown).argmax(1) == labels[1500:1700]).float().mean()))
    digit = shown[100:101]
    evidence = PDA(model).evidence(digit, effort="thorough")
    top = evidence.top()
    titles = (f"a {top}, by a transformer", f"why {top}?")
    pair(evidence, evidence.attribution(top)[0, 0], digit[0, 0].numpy(), titles, "transformer")


def scene(images: Tensor, labels: Tensor, picks: list[int]) -> tuple[Tensor, Tensor]:
    """Two digits of 24 pixels on a canvas of 64, and the class of each pixel (10: nothing)."""
    canvas, classes = 0.05 * torch.rand(1, 64, 64), torch.full((64, 64), 10)
    for place, pick in enumerate(picks):
        top = int(torch.randint(0, 40, ()))
        left = 32 * place + int(torch.randint(0, 8, ()))
        canvas[:, top : top + 24, left : left + 24] += images[pick]
        inside = images[pick, 0] > 0.3
        classes[top : top + 24, left : left + 24][inside] = labels[pick]
    return canvas, classes


class Pixels(nn.Module):
    """Scores of 11 classes for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels, dilation in ((1, 1), (24, 2), (24, 4), (24, 6), (24, 4)):
            layers += [nn.Conv2d(channels, 24, 3, 1, dilation, dilation), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(24, 11, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def scenes() -> None:
    """The mask of a digit, the class of a box, and several labels, of one network."""
    images, labels = digits(24)

    def batches():
        made = [scene(images, labels, torch.randint(0, 1500, (2,)).tolist()) for _ in range(12)]
        return torch.stack([one for one, _ in made]), torch.stack([one for _, one in made])

    weight = torch.tensor([1.0] * 10 + [0.1])
    model = train(Pixels(), batches, 900, lambda out, y: F.cross_entropy(out, y, weight))
    torch.manual_seed(5)
    threes, sevens = ((labels[1500:] == k).nonzero()[3, 0] + 1500 for k in (3, 7))
    canvas, classes = scene(images, labels, [int(threes), int(sevens)])
    canvas = canvas[None]
    shown = canvas[0, 0].clamp(0, 1).numpy()
    mask = model(canvas)[0].argmax(0) == 3
    evidence = PDA(model).evidence(canvas, effort="thorough")
    target = (3, mask)
    titles = ("a scene", 'why the mask of "3"?')
    pair(evidence, evidence.attribution(target)[0, 0], shown, titles, "segmentation")
    rows, columns = (classes == 7).nonzero().unbind(1)
    box = (
        int(rows.min()),
        int(columns.min()),
        int(rows.max() - rows.min()) + 1,
        int(columns.max() - columns.min()) + 1,
    )
    top, left, tall, wide = box
    detector = PDA(
        lambda x: model(x)[:, :, top : top + tall, left : left + wide].mean((2, 3)), output="logits"
    )
    evidence = detector.evidence(canvas, effort="thorough")
    titles = ("a box", 'why a "7" in it?')
    pair(evidence, evidence.attribution(7)[0, 0], shown, titles, "detector", box=box)
    several = PDA(
        # The log-odds of a digit, where it is seen best.
        lambda x: model(x).softmax(1)[:, :10].logit(1e-6).flatten(2).topk(60).values.mean(2),
        output="multilabel",
    )
    evidence = several.evidence(canvas, effort="thorough")
    figure, axes = panels(3)
    axes[0].imshow(shown, cmap="gray")
    axes[0].set_title("two labels", fontsize=9)
    maps = [evidence.attribution(label)[0, 0].numpy() for label in (3, 7)]
    scale = max(float(np.abs(one).max()) for one in maps)
    for one, label, values in zip(axes[1:], (3, 7), maps, strict=True):
        draw_map(one, values, scale, shown[..., None])
        one.set_title(f'why "{label}"?', fontsize=9)
    save(figure, "several_labels")


def volume() -> None:
    """A lesion in an invented scan."""
    grid = torch.stack(torch.meshgrid(*(torch.arange(32.0),) * 3, indexing="ij"))

    def made() -> tuple[Tensor, int]:
        """A ball with a cavity, and in half of the volumes a bright lesion."""
        away = lambda place: (grid - place.reshape(3, 1, 1, 1)).square().sum(0).sqrt()  # noqa: E731
        values = 0.5 * (away(torch.full((3,), 15.5)) < 14) + 0.05 * torch.randn(32, 32, 32)
        values = values - 0.3 * (away(8 + 16 * torch.rand(3)) < 4)
        has = int(torch.rand(()) < 0.5)
        return (values + 0.4 * has * (away(8 + 16 * torch.rand(3)) < 3.5))[None], has

    def batches():
        some = [made() for _ in range(8)]
        return torch.stack([one for one, _ in some]), torch.tensor([one for _, one in some])

    layers = nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 8, 3, padding=1), nn.ReLU()
    model = nn.Sequential(*layers, nn.AdaptiveMaxPool3d(1), nn.Flatten(), nn.Linear(8, 2))
    model = train(model, batches, 150, F.cross_entropy)
    torch.manual_seed(2)
    scan = next(one for one, has in iter(made, None) if has)[None]
    evidence = EfficientPDA(model).evidence(scan, superpixels=(25, 60))
    kinds = strongest_regions(evidence, 1, 1)
    values = evidence.attribution(1)[0, 0].numpy()
    figure, axes = panels(3)
    draw_slices(
        axes,
        picture_of_map(scan, scan.shape[1:], None, None),
        innermost(kinds[0][0].pixels),
        values=values,
        scale=float(np.abs(values).max()),
    )
    for one, title in zip(axes, ("slice", "row", "column"), strict=True):
        one.set_title(f'"lesion": {title}' if one is axes[0] else title, fontsize=9)
    save(figure, "volume")


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["photos", "transformer", "scenes", "volume"]
    for task in chosen:
        torch.manual_seed(0)  # a task is the same alone and among others
        globals()[task]()
