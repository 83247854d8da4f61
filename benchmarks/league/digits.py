"""A small vision transformer for digits, trained here: no trained one comes by pip.

A digit of MNIST, 40 pixels wide, stands somewhere on 64 x 64 dark pixels, so that a map of the
centre is of no use. Training takes a few minutes of one core and is kept.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE, DIGIT, PATCH, WIDTH = 64, 40, 8, 64
#: Of MNIST's pixels.
MEAN, DEVIATION = 0.13, 0.31
N_TRAINED, EPOCHS, BATCH = 20_000, 4, 64


class DigitTransformer(nn.Module):
    """64 patches of 8 x 8 pixels and a class token through four layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        n_tokens = (SIDE // PATCH) ** 2 + 1
        self.positions = nn.Parameter(0.02 * torch.randn(1, n_tokens, WIDTH))
        layer = nn.TransformerEncoderLayer(
            *(WIDTH, 4, 2 * WIDTH, 0.0), activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        first = self.class_token.expand(len(tokens), -1, -1)
        tokens = torch.cat([first, tokens], dim=1) + self.positions
        return self.head(self.norm(self.layers(tokens)[:, 0]))


def trained(weights: Path, mnist: Path) -> nn.Module:
    """The transformer with the weights of a file, after training if there is none."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DigitTransformer()
        if weights.exists():
            model.load_state_dict(torch.load(weights, weights_only=True))
            return model
        _train(model, mnist)
    weights.parent.mkdir(parents=True, exist_ok=True)
    partial = weights.with_name(f".{weights.name}.{os.getpid()}")
    torch.save(model.state_dict(), partial)
    partial.replace(weights)
    return model


def _train(model: nn.Module, mnist: Path) -> None:
    images, targets = _mnist(mnist, train=True)
    n_steps = EPOCHS * (N_TRAINED // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=n_steps)
    for step in range(n_steps):
        chosen = torch.randint(0, N_TRAINED, (BATCH,))
        # Every time at another place.
        some = torch.cat(
            [placed(images[i], BATCH * step + n) for n, i in enumerate(chosen.tolist())]
        )
        loss = F.cross_entropy(model(some), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"training: step {step} of {n_steps}, loss {loss.item():.3f}", flush=True)


def unseen_digits(mnist: Path, n_digits: int = 150) -> list[tuple[str, Tensor, int]]:
    """Digits that were not trained on, with a name, (1, 3, 64, 64) and their class."""
    images, targets = _mnist(mnist, train=False)
    return [
        (f"digit{number:04}", placed(images[number], number), int(targets[number]))
        for number in range(n_digits)
    ]


def placed(digit: Tensor, seed: int) -> Tensor:
    """A digit (28, 28) of 0 to 255, enlarged, at a place that the seed decides, (1, 3, 64, 64)."""
    large = F.interpolate(
        digit[None, None] / 255, size=(DIGIT, DIGIT), mode="bilinear", antialias=True
    )
    generator = torch.Generator().manual_seed(seed)
    top, left = torch.randint(0, SIDE - DIGIT + 1, (2,), generator=generator).tolist()
    rest = SIDE - DIGIT
    whole = F.pad(large, (left, rest - left, top, rest - top))
    return ((whole - MEAN) / DEVIATION).expand(-1, 3, -1, -1).contiguous()


def _mnist(folder: Path, train: bool) -> tuple[Tensor, Tensor]:
    from torchvision.datasets import MNIST

    data = MNIST(folder, train=train)
    return data.data.float(), data.targets
