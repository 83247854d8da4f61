"""Where windows lie, how their values come back to pixels, and which sizes they have by default."""

import numpy as np
import pytest
import torch

from captum_pda import WindowGrid
from captum_pda.regions.choice import make_grids
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.regions.protocol import block_pixels
from captum_pda.regions.windows import MOST_WINDOWS, default_grids, scale_grids

GRIDS = [
    WindowGrid((7,), (3,), (2,)),
    WindowGrid((10,), (4,), (3,)),
    WindowGrid((5, 8), (5, 3), (1, 2)),
    WindowGrid((6, 7), (2, 3), (2, 3)),
    WindowGrid((4, 5, 6), (2, 3, 4), (1, 2, 3)),
    WindowGrid((3, 3), (1, 1), (1, 1)),
    WindowGrid((3, 3), (3, 3), (2, 2)),
]


def slices(grid: WindowGrid):
    for corner in grid.corners.tolist():
        yield tuple(
            slice(start, start + width) for start, width in zip(corner, grid.window, strict=True)
        )


def test_windows_are_in_row_major_order_and_the_last_is_moved_back_to_the_border():
    assert WindowGrid((10,), (4,), (3,)).corners.tolist() == [[0], [3], [6]]
    assert WindowGrid((3, 3), (2, 2), (1, 1)).corners.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    grid = WindowGrid((10, 7), (4, 3), (4, 3))
    assert [starts.tolist() for starts in grid.starts] == [[0, 4, 6], [0, 3, 4]]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_every_pixel_is_covered_by_whole_windows(grid: WindowGrid):
    counts = torch.zeros(grid.space)
    for place in slices(grid):
        assert counts[place].shape == grid.window
        counts[place] += 1
    assert counts.min() >= 1
    torch.testing.assert_close(grid.coverage().float(), counts)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_averaging_is_a_mean_over_covering_windows(grid: WindowGrid):
    values = torch.randn(2, len(grid), dtype=torch.float64)
    total, counts = torch.zeros(2, *grid.space).double(), torch.zeros(grid.space).double()
    for number, place in enumerate(slices(grid)):
        total[(slice(None), *place)] += values[:, number].reshape(2, *[1] * len(grid.space))
        counts[place] += 1
    torch.testing.assert_close(grid.average(values), total / counts)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_pixels_have_flat_numbers(grid: WindowGrid):
    numbers = torch.arange(int(np.prod(grid.space))).reshape(grid.space)
    expected = torch.stack([numbers[place].flatten() for place in slices(grid)])
    torch.testing.assert_close(grid.pixels(), expected)


def test_a_value_that_is_not_finite_stays_where_its_window_is():
    grid = WindowGrid((9,), (3,), (1,))
    values = torch.zeros(1, len(grid))
    values[0, 0] = torch.nan
    assert grid.average(values).isnan()[0].tolist() == [True] * 3 + [False] * 6


def test_slices_are_grids_and_know_their_place():
    grid = WindowGrid((9, 9), (3, 3), (2, 2))
    part = grid[5:9]
    assert len(part) == 4
    assert part.first == 5
    torch.testing.assert_close(part.corners, grid.corners[5:9])
    assert part[1:3].first == 6


@pytest.mark.parametrize("wrong", [3, slice(0, 4, 2)])
def test_a_grid_takes_plain_slices_only(wrong):
    with pytest.raises((TypeError, ValueError), match="slice"):
        WindowGrid((9,), (3,), (1,))[wrong]


def test_windows_that_do_not_fit_and_parts_that_are_no_map():
    with pytest.raises(ValueError, match="does not fit"):
        WindowGrid((5,), (10,), (1,))
    with pytest.raises(ValueError, match="whole grid"):
        WindowGrid((9,), (3,), (1,))[:3].average(torch.zeros(3))


def test_block_pixels_are_flat_numbers():
    assert block_pixels(np.array([[1, 2]]), (2, 2), (4, 5)).tolist() == [[7, 8, 12, 13]]


def grid_for(shape, window=None, stride=None) -> WindowGrid:
    return make_grids((torch.zeros(shape),), window, stride)[0]


@pytest.mark.parametrize(
    ("shape", "window", "stride"),
    [
        ((1, 3, 224, 224), (10, 10), (2, 2)),
        ((1, 1, 28, 28), (4, 4), (1, 1)),
        ((1, 1, 63, 224), (4, 4), (1, 1)),
        ((1, 2, 100), (10,), (2,)),
        ((1, 1, 64, 64, 70), (10, 10, 10), (2, 2, 2)),
        ((1, 1, 3, 9), (3, 4), (1, 1)),
    ],
)
def test_default_windows_and_strides(shape, window, stride):
    grid = grid_for(shape)
    assert (grid.window, grid.strides) == (window, stride)


@pytest.mark.parametrize("window", [4, (4, 4), (3, 4, 4), [4, 4], np.int64(4)])
@pytest.mark.parametrize("stride", [2, (2, 2), (3, 2, 2), [2, 2]])
def test_ints_spatial_tuples_and_full_tuples_mean_the_same(window, stride):
    assert grid_for((1, 3, 9, 9), window, stride) == WindowGrid((9, 9), (4, 4), (2, 2))


def test_each_tensor_of_several_has_its_own_windows():
    tensors = (torch.zeros(1, 3, 9, 9), torch.zeros(1, 2, 12))
    assert [grid.window for grid in make_grids(tensors, 3, None)] == [(3, 3), (3,)]
    assert [grid.window for grid in make_grids(tensors, ((3, 4), 5), (1, 2))] == [(3, 4), (5,)]
    assert [grid.strides for grid in make_grids(tensors, ((3, 4), 5), (1, 2))] == [(1, 1), (2,)]


@pytest.mark.parametrize(
    ("window", "stride", "error", "says"),
    [
        (12, None, ValueError, "larger than the input"),
        ((3, 12), None, ValueError, "larger than the input"),
        (3, 4, ValueError, "at most 3"),
        (0, None, ValueError, "positive"),
        (3, 0, ValueError, "positive"),
        ((1, 3, 3), None, ValueError, "covers 1 of 3 channels"),
        ((3,), None, ValueError, "entries"),
        ((3, 3, 3, 3), None, ValueError, "entries"),
        (2.5, None, TypeError, "int"),
        (True, None, TypeError, "int"),
        ("3", None, TypeError, "int"),
        (((3, 3), (3, 3)), None, ValueError, "2 entries for 1 input"),
    ],
)
def test_windows_that_make_no_sense(window, stride, error, says):
    with pytest.raises(error, match=says):
        grid_for((1, 3, 9, 9), window, stride)


def test_a_stride_may_exceed_a_window_that_covers_the_axis():
    assert grid_for((1, 3, 9, 4), (3, 4), (3, 9)).shape == (3, 1)


def test_picked_windows_are_those_of_the_grid():
    grid = WindowGrid((12, 9), (4, 3), (2, 2))
    picked = grid[5:].pick([7, 0, 2])
    assert len(picked) == 3
    assert picked.first == 12
    assert np.array_equal(picked.corner_array, grid.corner_array[[12, 5, 7]])
    assert np.array_equal(picked[1:].corner_array, grid.corner_array[[5, 7]])
    with pytest.raises(ValueError, match="whole grid"):
        picked.average(torch.zeros(3))


def described(grids):
    return [(grid.window, grid.strides) for grid in grids]


def test_a_photo_gets_three_sizes_in_proportion_to_its_shorter_side():
    assert described(default_grids((224, 224))) == [
        ((32, 32), (16, 16)),
        ((64, 64), (16, 16)),
        ((96, 96), (16, 16)),
    ]
    assert described(default_grids((448, 600)))[0] == ((64, 64), (32, 32))
    alone = default_grids((224, 224), context=CONTEXTS["empty"])
    assert [grid.window for grid in alone] == [(64, 64), (96, 96)]


def test_a_digit_gets_two_sizes():
    assert described(default_grids((28, 28))) == [((4, 4), (1, 1)), ((8, 8), (2, 2))]
    assert described(default_grids((28, 28), context=CONTEXTS["empty"])) == [
        ((8, 8), (2, 2)),
        ((12, 12), (3, 3)),
    ]


@pytest.mark.parametrize("context", ["full", "empty"])
@pytest.mark.parametrize(
    "space", [(1,), (3,), (7, 2), (64,), (5000,), (63, 63), (64, 64), (32, 32, 32), (64, 80, 96)]
)
def test_inputs_of_any_shape_get_windows_that_fit_cover_them_and_are_not_too_many(space, context):
    grids = default_grids(space, context=CONTEXTS[context])
    assert len({grid.window for grid in grids}) == len(grids) > 0
    for grid in grids:
        assert len(grid) <= MOST_WINDOWS
        assert (grid.coverage() > 0).all()


def test_strides_that_are_given_hold_for_all_sizes_up_to_their_width():
    assert described(default_grids((28, 28), 6)) == [((4, 4), (4, 4)), ((8, 8), (6, 6))]
    assert [grid.strides for grid in default_grids((32, 32, 32), 1)] == [(1, 1, 1)] * 2


def test_sizes_that_are_given_have_strides_of_a_quarter_unless_those_are_given_too():
    assert described(scale_grids((40, 60), (3, 16, (8, 20)), None)) == [
        ((3, 3), (1, 1)),
        ((16, 16), (4, 4)),
        ((8, 20), (2, 5)),
    ]
    assert described(scale_grids((40, 60), (4, 16), (2, 8)))[1] == ((16, 16), (8, 8))
    assert described(scale_grids((40, 60), 16, 5)) == [((16, 16), (5, 5))]
