"""The pictures of the README's gallery, one for each task: python docs/pictures/gallery.py TASK

Tasks are photos, transformer, scenes and volume; all by default. Photos are scikit-image's, and the
network of the first two is EfficientNet-lite0, all from pip. The other networks are small ones,
trained here in minutes on discs that are cut from such photos, and on invented volumes.
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
from torch import Tensor, nn

from captum_pda import PDA, EfficientPDA, WindowEvidence
from captum_pda.evidence.strongest import strongest_regions
from captum_pda.visualization.drawing import draw_map, innermost, picture_of_map
from captum_pda.visualization.regions import draw_outlines
from captum_pda.visualization.space import draw_slices

FOLDER = Path(__file__).parent
SIDE = 2.1  # inches of a panel
BYTES = 70_000


def panels(n: int) -> tuple[Figure, list]:
    """Axes in a row, without ticks."""
    figure = Figure(figsize=(n * SIDE, SIDE + 0.3), layout="constrained")
    axes = list(np.ravel(figure.subplots(1, n)))
    for one in axes:
        one.set_xticks([])
        one.set_yticks([])
    return figure, axes


def save(figure: Figure, name: str) -> None:
    """As a JPEG of at most 70 kB."""
    for quality in (88, 80, 70, 60):
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=150)
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
    mask: np.ndarray | None = None,
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
                Rectangle((left - 0.5, top - 0.5), wide, tall, fill=False, color="#e08214", lw=1.5)
            )
        if mask is not None:
            one.contour(mask, [0.5], colors=["#e08214"], linewidths=1.2)
    save(figure, name)


def photos() -> None:
    """A class, and a class rather than another, of photos."""
    from skimage import data

    from captum_pda.cli.models import load_classifier

    classifier = load_classifier("efficientnet_lite0")
    for name, photo, rather in (
        ("classification", data.astronaut(), None),
        ("contrast", data.coffee(), 968),
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


#: What is pasted into scenes: the squares of scikit-image's photos that are cut to discs.
OBJECTS = {
    "cat": ("chelsea", (10, 60, 280)),
    "cup": ("coffee", (0, 75, 395)),
    "astronaut": ("astronaut", (0, 115, 215)),
    "photographer": ("camera", (45, 190, 160)),
    "moon": ("moon", (40, 60, 120)),
}
SIZE, DISC = 96, 42


def discs() -> dict[str, Tensor]:
    """The objects as they are pasted, (3, DISC, DISC)."""
    from skimage import data

    found = {}
    for name, (photo, (top, left, side)) in OBJECTS.items():
        values = np.atleast_3d(getattr(data, photo)())[top : top + side, left : left + side]
        square = torch.from_numpy(values.copy()).movedim(2, 0)[None] / 255
        found[name] = F.interpolate(square, (DISC, DISC), mode="area")[0].expand(3, -1, -1)
    return found


class Scenes:
    """Discs of objects on gravel, left and right."""

    def __init__(self) -> None:
        from skimage import data

        gravel = torch.from_numpy(data.gravel() / 255).float()[None, None]
        self.gravel = F.interpolate(gravel, (256, 256), mode="area")[0]
        self.objects = discs()
        self.names = list(OBJECTS)
        away = torch.arange(DISC) - (DISC - 1) / 2
        self.inside = away[:, None].square() + away.square() < (DISC / 2) ** 2

    def __call__(self, left: str, right: str, whole: bool = True) -> tuple[Tensor, Tensor]:
        """A scene (3, SIZE, SIZE), and the object at each pixel (their number: gravel). Networks
        are trained on discs that are not whole, and learn to use all of an object."""
        row, column = torch.randint(0, 256 - SIZE, (2,)).tolist()
        scene = self.gravel[:, row : row + SIZE, column : column + SIZE].repeat(3, 1, 1)
        where = torch.full((SIZE, SIZE), len(self.names))
        for half, name in enumerate((left, right)):
            disc = self.objects[name] * (0.8 + 0.4 * torch.rand(()))
            disc = disc.flip(2) if torch.rand(()) < 0.5 else disc
            top = int(torch.randint(0, SIZE - DISC + 1, ()))
            start = half * SIZE // 2 + int(torch.randint(0, SIZE // 2 - DISC + 1, ()))
            box = (..., slice(top, top + DISC), slice(start, start + DISC))
            inside = self.inside.clone()
            if not whole:
                down, across = torch.randint(-DISC // 2, DISC, (2,)).clamp_min(0).tolist()
                inside[down : down + 2 * DISC // 3, across : across + 2 * DISC // 3] = False
                disc = disc.mean(0, keepdim=True) if torch.rand(()) < 0.3 else disc
            scene[box] = torch.where(inside, disc, scene[box])
            where[box] = where[box].masked_fill(inside, self.names.index(name))
        return scene.clamp(0, 1), where

    def drawn(self, n: int, other: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Random scenes, the object at each pixel, and the first object of each."""
        made = []
        for _ in range(n):
            first, second = torch.randperm(len(self.names) - 1)[:2].tolist()
            pair = self.names[first], other or self.names[second]
            pair = pair if torch.rand(()) < 0.5 else pair[::-1]
            made.append((*self(*pair, whole=False), first))
        return (
            torch.stack([one for one, _, _ in made]),
            torch.stack([one for _, one, _ in made]),
            torch.tensor([one for _, _, one in made]),
        )


def shown(scene: Tensor) -> np.ndarray:
    """A scene as Matplotlib draws it."""
    return scene[0].movedim(0, 2).numpy()


class Transformer(nn.Module):
    """A vision transformer of three blocks with patches of 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 48, 8, 8)
        self.place = nn.Parameter(0.02 * torch.randn(1, (SIZE // 8) ** 2, 48))
        block = nn.TransformerEncoderLayer(48, 4, 96, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
        self.head = nn.Linear(48, 4)

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
    """An object, beside a disc that means nothing."""
    scenes = Scenes()

    def batches():
        images, _, labels = scenes.drawn(32, "moon")
        return images, labels

    model = train(Transformer(), batches, 500, F.cross_entropy)
    images, _, labels = scenes.drawn(100, "moon")
    print("right", float((model(images).argmax(1) == labels).float().mean()))
    torch.manual_seed(12)
    scene = scenes("moon", "astronaut")[0][None]
    evidence = PDA(model).evidence(scene, effort="thorough")
    top = evidence.top()
    titles = ("seen by a transformer", f'why "{scenes.names[top]}"?')
    pair(evidence, evidence.attribution(top)[0, 0], shown(scene), titles, "transformer")


class Pixels(nn.Module):
    """Scores of five objects and of gravel for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels, dilation in ((3, 1), (16, 2), (16, 4), (16, 8), (16, 4)):
            layers += [nn.Conv2d(channels, 16, 3, 1, dilation, dilation), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(16, 6, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def scenes() -> None:
    """The mask of an object, the class of a box, and several labels, of one network."""
    made = Scenes()
    model = train(Pixels(), lambda: made.drawn(8)[:2], 600, F.cross_entropy)
    torch.manual_seed(1)
    scene, where = made("cup", "astronaut")
    scene, image = scene[None], shown(scene[None])
    head, cup = made.names.index("astronaut"), made.names.index("cup")
    mask = model(scene)[0].argmax(0) == head
    evidence = PDA(model).evidence(scene, effort="thorough")
    values = evidence.attribution((head, mask))[0, 0]
    titles = ('the mask of "astronaut"', "why these pixels?")
    pair(evidence, values, image, titles, "segmentation", mask=mask.numpy())

    rows, columns = (where == cup).nonzero().unbind(1)
    top, left, bottom, right = (
        int(one) for one in (rows.min(), columns.min(), rows.max(), columns.max())
    )
    detector = PDA(
        lambda x: model(x)[:, :, top : bottom + 1, left : right + 1].mean((2, 3)), output="logits"
    )
    evidence = detector.evidence(scene, effort="thorough")
    titles = ("a box", 'why "cup" in it?')
    box = (top, left, bottom - top + 1, right - left + 1)
    pair(evidence, evidence.attribution(cup)[0, 0], image, titles, "detector", box=box)

    several = PDA(
        # The log-odds of an object, where it is seen best.
        lambda x: model(x).softmax(1)[:, :5].logit(1e-6).flatten(2).topk(200).values.mean(2),
        output="multilabel",
    )
    evidence = several.evidence(scene, effort="thorough")
    figure, axes = panels(3)
    axes[0].imshow(image)
    axes[0].set_title("two labels", fontsize=9)
    maps = [evidence.attribution(label)[0, 0].numpy() for label in (head, cup)]
    scale = max(float(np.abs(one).max()) for one in maps)
    for one, label, values in zip(axes[1:], ("astronaut", "cup"), maps, strict=True):
        draw_map(one, values, scale, image)
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
    evidence = EfficientPDA(model).evidence(scan, superpixels=250)
    kinds = strongest_regions(evidence, 1, 1)
    values = evidence.attribution(1)[0, 0].numpy()
    figure, axes = panels(4)
    place, picture = (
        innermost(kinds[0][0].pixels),
        picture_of_map(scan[0], scan.shape[2:], None, None),
    )
    axes[0].imshow(picture[place[0]], cmap="gray")
    axes[0].set_title("a slice of the scan", fontsize=9)
    draw_slices(
        axes[1:],
        picture,
        place,
        values=values,
        scale=float(np.abs(values).max()),
    )
    for one, title in zip(axes[1:], ("slice", "row", "column"), strict=True):
        one.set_title(f'why "lesion"? {title}', fontsize=9)
    save(figure, "volume")


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["photos", "transformer", "scenes", "volume"]
    for task in chosen:
        torch.manual_seed(0)  # a task is the same alone and among others
        globals()[task]()
