"""Where outer patches lie, and how windows are grouped by their place in them."""

import numpy as np
import pytest

from captum_pda import WindowGrid
from captum_pda.priors.gaussian.outer_patches import outer_patches


@pytest.mark.parametrize("patch", [(5, 5), (6, 4), (20, 5)])
def test_outer_patches_are_centred_and_moved_inside(patch):
    grid = WindowGrid((9, 10), (3, 2), (2, 3))
    fitted = np.minimum(patch, grid.space)
    seen = []
    for group in outer_patches(grid, patch):
        for member, corner in zip(group.members, group.corners, strict=True):
            window = grid.corner_array[member]
            centred = window - (fitted - grid.window) // 2
            inside = np.clip(centred, 0, np.subtract(grid.space, fitted))
            assert corner.tolist() == inside.tolist()
            assert group.offset == tuple(window - corner)
            seen.append(member)
        assert group.in_whole_grid == len(group.members)
    assert sorted(seen) == list(range(len(grid)))


def test_groups_of_a_slice_count_the_whole_grid():
    grid = WindowGrid((9, 10), (3, 2), (1, 1))
    whole = {group.offset: len(group.members) for group in outer_patches(grid, (5, 5))}
    for group in outer_patches(grid[3:11], (5, 5)):
        assert group.in_whole_grid == whole[group.offset]
