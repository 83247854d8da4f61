"""How long the factors of covariances take, told before the time is spent."""

from __future__ import annotations

import torch

from captum_pda.basics.device_sync import double_device
from captum_pda.basics.errors import warn_user

#: What one thread of a CPU multiplies and adds in double precision.
MULTIPLICATIONS_PER_SECOND = 1.2e10
#: Seconds from which on the user is told.
LONG = 60.0


def warn_if_long(n_factors: int, values: int, device: torch.device, exact: bool) -> bool:
    """Tell of factors that will take more than a minute, and return whether that was so.

    Args:
        n_factors: how many covariances are factored.
        values: how many values vary together in each; a factor takes values^3 / 3 multiplications.
        device: where; a graphics card's time is not known, and short.
        exact: whether every pixel around a window was asked for.
    """
    if double_device(device).type != "cpu":
        return False
    each_second = MULTIPLICATIONS_PER_SECOND * torch.get_num_threads()
    seconds = n_factors * values**3 / 3 / each_second
    is_long = seconds > LONG
    if is_long:
        cheaper = "exact=False" if exact else "covariance='stationary'"
        warn_user(
            f"the prior will take a while, about {seconds / 60:.0f} min: {n_factors:,} covariances "
            f"of {values:,} values are factored, one for each place of a window in its outer "
            f"patch. {cheaper} takes less, and so does a smaller patch_size or margin."
        )
    return is_long
