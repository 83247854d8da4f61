"""Which sizes windows have by default, how far apart they are, and how many that makes."""

import pytest

from captum_pda.regions.windows import MOST_WINDOWS, default_grids, scale_grids


def described(grids):
    return [(grid.window, grid.strides) for grid in grids]


def test_a_photo_gets_three_sizes_in_proportion_to_its_shorter_side():
    assert described(default_grids((224, 224))) == [
        ((32, 32), (16, 16)),
        ((64, 64), (16, 16)),
        ((96, 96), (16, 16)),
    ]
    assert described(default_grids((448, 600)))[0] == ((64, 64), (32, 32))
    assert sum(map(len, default_grids((224, 224)))) == 13**2 + 11**2 + 9**2


def test_what_windows_say_by_themselves_is_asked_of_the_larger_ones():
    assert [grid.window for grid in default_grids((224, 224), context="empty")] == [
        (64, 64),
        (96, 96),
    ]


def test_a_digit_gets_two_sizes():
    assert described(default_grids((28, 28))) == [((4, 4), (1, 1)), ((8, 8), (2, 2))]
    assert described(default_grids((28, 28), context="empty")) == [
        ((8, 8), (2, 2)),
        ((12, 12), (3, 3)),
    ]


@pytest.mark.parametrize("context", ["full", "empty"])
@pytest.mark.parametrize(
    "space", [(1,), (3,), (7, 2), (64,), (5000,), (63, 63), (64, 64), (32, 32, 32), (64, 80, 96)]
)
def test_inputs_of_any_shape_get_windows_that_fit_cover_them_and_are_not_too_many(space, context):
    grids = default_grids(space, context=context)
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
