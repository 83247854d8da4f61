"""Fill large regions of one shape, given some of the pixels around them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from captum_pda.basics.device_sync import in_double, moved_like
from captum_pda.priors.gaussian.conditioning import diagonal_loading, loaded_factor
from captum_pda.priors.gaussian.moments import Moments
from captum_pda.priors.gaussian.thinned import Booleans, ThinnedRegion
from captum_pda.regions.protocol import Integers, row_major_steps

#: Values of a region whose conditional variance is worked out to learn its mean.
LOOKED_AT = 120


class ThinnedWindows:
    """The distribution of a large region given the nodes around it, n for nodes, t for targets:

        mean at the targets = m_t + S_tn S_nn^-1 (x_n - m_n)

    and between targets it is interpolated. Nodes o outside the input are left out. With P = S_nn^-1
    and d_o = 0 the weights of the others follow from P alone, whatever is left out:

        S_ii^-1 d_i = (P d)_i - P_io P_oo^-1 (P d)_o

    Args:
        moments: where mean and covariance come from.
        region: the region's nodes and targets.
        regularization: the relative diagonal loading.
        alone: whether there is no other region of this shape, so that S_ii is cheaper than P.
    """

    def __init__(
        self, moments: Moments, region: ThinnedRegion, regularization: float, alone: bool
    ) -> None:
        nodes, targets = region.nodes, region.targets
        self.region = region
        self._moments = moments
        self._loading = diagonal_loading(moments, regularization)
        self._own = moments.covariance(nodes, nodes)
        self._cross = moments.covariance(nodes, targets)
        # The same everywhere, as the covariance is stationary.
        self._mean = moments.mean(nodes[:1])
        self._alone = alone

    @cached_property
    def _inverse(self) -> Tensor:
        """S_nn^-1, (groups, values, values)."""
        return torch.cholesky_inverse(loaded_factor(self._own, self._loading))

    @property
    def size(self) -> int:
        """How many values are kept; in double precision, so each counts twice."""
        return 2 * (self._own.numel() * (1 if self._alone else 2) + self._cross.numel())

    def around(
        self, pixels: Tensor, corners: Integers, space: tuple[int, ...]
    ) -> tuple[Tensor, Booleans]:
        """The deviation of each region's nodes from the mean (W, nodes, C) in double precision, and
        which nodes are inside the input (W, nodes)."""
        places = corners[:, None] + self.region.nodes
        inside = np.asarray(((places >= 0) & (places < space)).all(axis=2))
        numbers = np.where(inside, places @ row_major_steps(space), 0)
        values = in_double(pixels[torch.from_numpy(numbers).to(pixels.device)])
        values = values.to(self._mean.device) - self._mean.reshape(-1)
        return values.masked_fill_(_outside(inside, values), 0), inside

    def explain(self, deviation: Tensor, inside: Booleans) -> tuple[Tensor, Tensor]:
        """What nodes say of a region.

        Args:
            deviation: x_n - m_n, (S, W, nodes, C).
            inside: which nodes are inside the input, (W, nodes).

        Returns:
            The region's expected deviation from the mean, (S, W, pixels, C), and how much the nodes
            vary as a multiple of what is expected, d^T S_nn^-1 d / n_n, (S, W, 1, 1 or C).
        """
        samples, windows, _, channels = deviation.shape
        joint = self._moments.joint
        by_group = deviation.flatten(2).unsqueeze(0) if joint else deviation.movedim(3, 0)
        weights = (
            by_group @ self._inverse.unsqueeze(1) if not self._alone else torch.zeros_like(by_group)
        )
        packed = np.packbits(inside, axis=1)
        _, first, which = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        for number, example in enumerate(first):
            members = torch.from_numpy(np.flatnonzero(which.reshape(-1) == number))
            members = members.to(weights.device)
            given = inside[example].repeat(channels if joint else 1)
            # Whichever system is smaller: of those that are given, or of those that are left out.
            solve = self._solve if self._alone or given.mean() < 0.5 else self._without
            weights[:, :, members] = solve(by_group[:, :, members], weights[:, :, members], given)
        count = torch.from_numpy(inside.sum(axis=1)).clamp_min(1).to(weights.device)
        energy = (weights * by_group).sum(dim=3) / (count * (channels if joint else 1))
        # With nothing around a region, nothing says that it varies less than others.
        energy = torch.where(torch.from_numpy(inside.any(axis=1)).to(energy.device), energy, 1)
        expected = weights.flatten(1, 2) @ self._cross
        expected = expected.reshape(*weights.shape[:3], -1)
        if joint:
            by_pixel = expected[0].reshape(samples, windows, -1, channels)
        else:
            by_pixel = expected.movedim(0, -1)
        return self.region.spread(by_pixel), energy.movedim(0, -1).unsqueeze(2)

    def residual(self, drawn: Tensor, inside: Booleans) -> Tensor:
        """What a region's draw has beyond what its nodes say, (S, W, pixels, C).

        Matheron's rule: with z drawn from the distribution of the whole patch, z_w - S_wn S_nn^-1
        z_n is distributed as the region about its conditional mean.

        Args:
            drawn: draws of whole patches with mean zero, (S, W, *patch, C).
            inside: which nodes are inside the input, (W, nodes).
        """
        region = self.region
        flat = drawn.flatten(2, -2)
        at_nodes, own = (
            flat[:, :, torch.from_numpy(places @ row_major_steps(region.patch)).to(flat.device)]
            for places in (region.nodes + region.before, region.shape.places + region.before)
        )
        at_nodes = in_double(at_nodes).to(self._mean.device)
        at_nodes.masked_fill_(_outside(inside, at_nodes), 0)
        explained, _ = self.explain(at_nodes, inside)
        return in_double(own).to(explained.device) - explained

    @cached_property
    def variance(self) -> Tensor:
        """The mean conditional variance S_tt - S_tn S_nn^-1 S_nt over some targets, (groups, 1)."""
        place = self.region.nodes[:1]
        variances = self._moments.covariance(place, place).diagonal(dim1=1, dim2=2)
        count = self._cross.shape[2]
        chosen = torch.linspace(0, count - 1, min(count, LOOKED_AT), device="cpu").long()
        chosen = chosen.to(variances.device)
        cross = self._cross[:, :, chosen]
        explained = cross * torch.cholesky_solve(cross, loaded_factor(self._own, self._loading))
        own = variances[:, chosen % variances.shape[1]]
        return (own - explained.sum(dim=1)).mean(dim=1, keepdim=True)

    def mean_like(self, values: Tensor) -> Tensor:
        """The mean of each channel, (C,)."""
        return moved_like(self._mean.reshape(-1), values)

    def _solve(self, deviation: Tensor, weights: Tensor, inside: Booleans) -> Tensor:
        """S_ii^-1 d_i of (groups, S, W, values), and zero for the others."""
        given = _places(inside, weights)
        own = self._own[:, given[:, None], given]
        factor = loaded_factor(own, self._loading)
        some = deviation[..., given]
        solved = torch.cholesky_solve(some.flatten(1, 2).mT, factor).mT
        weights = torch.zeros_like(weights)
        weights[..., given] = solved.reshape(some.shape)
        return weights

    def _without(self, deviation: Tensor, weights: Tensor, inside: Booleans) -> Tensor:
        """The same from P d of (groups, S, W, values), where P is the inverse of all of S_nn."""
        left_out = _places(~inside, weights)
        factor, _ = torch.linalg.cholesky_ex(self._inverse[:, left_out[:, None], left_out])
        theirs = weights[..., left_out].flatten(1, 2)
        solved = torch.zeros_like(weights)
        solved[..., left_out] = torch.cholesky_solve(theirs.mT, factor).mT.reshape(
            *weights.shape[:3], -1
        )
        rest = weights - (solved.flatten(1, 2) @ self._inverse).reshape(weights.shape)
        rest[..., left_out] = 0
        return rest


def _places(chosen: Booleans, like: Tensor) -> Tensor:
    """The numbers of the chosen values. To index by truth, the host would wait for the device."""
    return torch.from_numpy(np.flatnonzero(chosen)).to(like.device)


def _outside(inside: Booleans, like: Tensor) -> Tensor:
    """Which nodes are outside the input, (W, nodes, 1)."""
    return torch.from_numpy(~inside).to(like.device).unsqueeze(-1)
