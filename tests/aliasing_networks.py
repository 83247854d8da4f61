"""Random networks that view, write, cast and change whatever they get hold of.

A network is a list of steps over a pool of maps; each is small and named, so that a failure can be
read. Every map of the pool reaches the output, so that a wrong value anywhere shows. Weights and
constants are set back at the start of each pass, so that a pass does not depend on those before.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHANNELS = 4


def scripted(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(func)


def _write_in_a_script(x: Tensor) -> Tensor:
    x.mul_(0.5)
    y = x[:, 0]
    y.add_(1.0)
    return torch.tanh(x)


def _view_in_a_script(x: Tensor) -> Tensor:
    return x.transpose(1, 2).transpose(1, 2)


WRITE_IN_A_SCRIPT = scripted(_write_in_a_script)
VIEW_IN_A_SCRIPT = scripted(_view_in_a_script)


class ScriptedPart(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x += 0.25
        return torch.relu_(x)


SCRIPTED_PART = scripted(ScriptedPart())

#: Views of maps (N, 4, H, W), of all kinds.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "narrow places": lambda x: x.narrow(2, 1, 2),
    "select": lambda x: x.select(1, 0),
    "select a place": lambda x: x.select(3, 1),
    "unbind": lambda x: x.unbind(1)[2],
    "data": lambda x: x.data,
    "detach": lambda x: x.detach(),
    "view_as": lambda x: x.view_as(x),
    "transpose": lambda x: x.transpose(1, 2),
    "mT": lambda x: x.mT,
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "movedim by name": lambda x: x.movedim(source=1, destination=-1),
    "chunk": lambda x: x.chunk(chunks=2, dim=1)[1],
    "split": lambda x: torch.split(x, 1, 1)[3],
    "slice": lambda x: x[:, 1:3],
    "every other": lambda x: x[:, ::2],
    "rows": lambda x: x[:, :, 1:],
    "expand": lambda x: x.unsqueeze(0).expand(1, *x.shape)[0],
    "as_strided": lambda x: x.as_strided(x.shape, x.stride()),
    "diagonal": lambda x: x.diagonal(0, 2, 3),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "swapaxes": lambda x: x.swapaxes(axis0=1, axis1=3),
    "contiguous": lambda x: x.contiguous(),
    "positive": lambda x: +x,
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "same type": lambda x: x.double(),
    "same type by to": lambda x: x.to(torch.float64),
    "type_as": lambda x: x.type_as(x),
    "cpu": lambda x: x.cpu(),
    "itself": lambda x: x,
    "clone": lambda x: x.clone(),
    "copied by to": lambda x: x.to(torch.float64, copy=True),
    "numpy": lambda x: torch.from_numpy(x.numpy()),
    "broadcast": lambda x: torch.broadcast_tensors(x, torch.zeros(1, dtype=x.dtype))[0],
    "in a script": VIEW_IN_A_SCRIPT,
}

#: Ways to write into a tensor of any shape.
WRITES: dict[str, Callable[[Tensor], object]] = {
    "relu_": lambda x: x.relu_(),
    "ReLU": nn.ReLU(inplace=True),
    "relu by position": lambda x: F.relu(x, True),
    "silu": lambda x: F.silu(x, inplace=True),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.5, True),
    "add_": lambda x: x.add_(0.5),
    "mul_": lambda x: x.mul_(-1.5),
    "+=": lambda x: x.__iadd__(1.0),
    "sub by operator": lambda x: torch.ops.aten.sub_(x, 0.25),
    "gt_": lambda x: x.gt_(0.0),
    "clamp_": lambda x: x.clamp_(min=-0.2),
    "cumsum_": lambda x: x.cumsum_(1),
    "fill_": lambda x: x.fill_(0.75),
    "zero_": lambda x: x.zero_(),
    "copy_": lambda x: x.copy_(x.flip(1).clone()),
    "setitem": lambda x: x.__setitem__((slice(None), 0), 1.0),
    "setitem by mask": lambda x: x.__setitem__(x > 0.3, -1.0),
    "index_fill_": lambda x: x.index_fill_(1, torch.tensor([0]), 2.0),
    "out": lambda x: torch.sin(x, out=x),
    "masked_fill_": lambda x: x.masked_fill_(x < 0, 0.1),
    "lerp_": lambda x: x.lerp_(torch.ones_like(x), 0.3),
    "through data": lambda x: x.data.mul_(2.0),
    "through a slice": lambda x: x[:, 0].add_(3.0),
    "through two views": lambda x: x.transpose(0, 1)[0].sub_(0.5),
    "in place of itself": lambda x: x.set_(x.clone()),
    "other data": lambda x: setattr(x, "data", x.data * 2),
    "unsqueeze_": lambda x: x.unsqueeze_(1).squeeze_(1),
    "script": lambda x: WRITE_IN_A_SCRIPT(x) if x.dim() > 1 else x.add_(1),
    "scripted module": lambda x: SCRIPTED_PART(x),
    "foreach": lambda x: torch._foreach_add_([x], 1.0),
    "nothing": lambda x: x,
}

#: From maps to maps of the same shape, some without a rule.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": lambda x: torch.sigmoid(input=x),
    "roll": lambda x: x.roll(1, 1),
    "flip": lambda x: x.flip(3),
    "cumsum": lambda x: x.cumsum(2) * 0.1,
    "sort": lambda x: x.sort(1).values,
    "softmax": lambda x: x.softmax(dim=1),
    "max pool": lambda x: F.max_pool2d(x, 3, 1, 1),
    "average pool": lambda x: F.avg_pool2d(input=x, kernel_size=3, stride=1, padding=1),
    "shuffle": lambda x: x.view(len(x), 2, 2, *x.shape[2:]).transpose(1, 2).reshape(x.shape),
    "gate": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "half and back": lambda x: x.float().double(),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "written into a new tensor": lambda x: _assembled(x),
    "pad": lambda x: F.pad(x, (1, 1, 0, 0))[..., 1:-1],
    "cat": lambda x: torch.cat(tensors=[x[:, 2:], x[:, :2]], dim=1),
    "add to a new tensor": lambda x: torch.zeros_like(x).add_(x),
    "layer norm": lambda x: torch.layer_norm(x.permute(0, 2, 3, 1), [4]).permute(0, 3, 1, 2),
}


def _assembled(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    made[:, :2] = x[:, 2:]
    made[:, 2:] = x[:, :2] * 2
    return made


#: What a step does, as often as it is named.
KINDS = (
    *("convolve", "norm", "add", "function", "function", "constant", "mutate", "mutate"),
    *("view", "view", "view", "view and write", "view and write", "write"),
)
#: What a network changes of itself.
MUTATIONS = (
    "weight",
    "constant",
    "constant by the input",
    "constant in a script",
    "scalar",
    "norm",
)


class AliasingNetwork(nn.Module):
    """A network of random steps.

    Args:
        seed: decides everything.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)

        def weights(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64) * 0.5

        self.kept = [weights(CHANNELS, CHANNELS, 3, 3) for _ in range(2)]
        self.weights = nn.ParameterList([nn.Parameter(w.clone()) for w in self.kept])
        self.first = nn.Parameter(weights(CHANNELS, 2, 3, 3))
        self.wide = nn.Parameter(weights(CHANNELS, CHANNELS, 5, 5))
        self.norm = nn.BatchNorm2d(CHANNELS).double().eval()
        self.norm.running_mean.copy_(weights(CHANNELS))
        self.norm.running_var.copy_(weights(CHANNELS) ** 2 + 0.5)
        self.kept_constant = weights(CHANNELS, 1, 1)
        self.register_buffer("constant", self.kept_constant.clone())
        self.register_buffer("scalar", torch.ones((), dtype=torch.float64))
        self.pool = self.draw.choice((1, 2, 4))
        self.recipe = [self._step() for _ in range(self.draw.randint(3, 8))]

    def _step(self) -> tuple[str, ...]:
        draw = self.draw
        kind = draw.choice(KINDS)
        if kind == "function":
            return kind, draw.choice(list(FUNCTIONS))
        if kind == "view":
            return kind, draw.choice(list(VIEWS))
        if kind == "write":
            return kind, draw.choice(list(WRITES))
        if kind == "view and write":
            return kind, draw.choice(list(VIEWS)), draw.choice(list(WRITES))
        if kind == "mutate":
            return kind, draw.choice(MUTATIONS)
        return (kind,)

    def _set_back(self) -> None:
        with torch.no_grad():
            for weight, kept in zip(self.weights, self.kept, strict=True):
                weight.copy_(kept)
            self.constant.copy_(self.kept_constant)
            self.scalar.fill_(1.0)
            self.norm.weight.fill_(1.0)

    def _mutate(self, what: str, maps: Tensor) -> None:
        if what == "weight":
            self.weights[0].mul_(1.5)
        elif what == "constant":
            self.constant += 1.0
        elif what == "scalar":
            self.scalar.mul_(3.0)
        elif what == "norm":
            self.norm.weight.add_(0.5)
        elif what == "constant by the input":
            self.constant.copy_(maps.detach()[0].mean((1, 2)).view(-1, 1, 1) * 0 + 0.3)
        else:
            WRITE_IN_A_SCRIPT(self.constant)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 2, H, W) to (N, outputs)."""
        self._set_back()
        maps = [F.conv2d(x, self.first, padding=1)]
        if self.pool > 1:
            maps.append(F.conv2d(F.max_pool2d(maps[0], self.pool), self.wide, padding=2))
        extra: list[Tensor] = []
        for number, step in enumerate(self.recipe):
            h = maps[(7 * number) % len(maps)]
            if step[0] == "convolve":
                maps.append(F.conv2d(h, self.weights[number % 2], padding=1))
            elif step[0] == "norm":
                maps.append(self.norm(F.conv2d(h, self.weights[0], padding=1)))
            elif step[0] == "add":
                alike = [other for other in maps if other.shape == h.shape]
                maps.append(h + alike[number % len(alike)])
            elif step[0] == "function":
                maps.append(FUNCTIONS[step[1]](h))
            elif step[0] == "constant":
                maps.append((h + self.constant) * self.scalar)
            elif step[0] == "mutate":
                self._mutate(step[1], h)
            elif step[0] == "write":
                WRITES[step[1]](h)
            else:
                view = VIEWS[step[1]](h)
                if len(view) == len(x):
                    extra.append(view)
                if step[0] == "view and write":
                    WRITES[step[2]](view)
        used = [made.flatten(1).mean(1, keepdim=True) for made in extra]
        used += [made.mean((2, 3)) for made in maps]
        used += [made.flatten(1)[:, ::11] for made in (*extra, *maps)]
        return torch.cat(used, 1)
