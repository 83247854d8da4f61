"""One photo at each size, context and depth; and rooms that load when they are asked for."""

import subprocess
import sys

import numpy as np
import pytest
from conftest import make_classifier, make_images

import captum_pda
from captum_pda import PDA, ConstantPrior, EfficientPDA
from captum_pda.visualization import visualize_evidence_parts


@pytest.fixture(scope="module")
def evidence():
    pda = PDA(make_classifier(), prior=ConstantPrior(0.2), engine="dense")
    return pda.evidence(make_images(1, 3, 16, 20), scales=(4, 8), strides=4)


def drawn(axes):
    """The map of a panel: the topmost image."""
    return np.ma.getdata(axes.images[-1].get_array())


def test_every_part_has_a_panel_that_says_what_it_shows(evidence):
    _, axes = visualize_evidence_parts(evidence, 1, use_pyplot=False, title="cat")
    titles = [one.get_title() for one in axes]
    assert titles[:2] == ["cat", "all together"]
    assert titles[2:6] == [
        f"windows of {size}x{size}\n{words}"
        for words in ("without each region", "each region by itself")
        for size in (4, 8)
    ]
    assert [title.partition(" of ")[0] for title in titles[6:]] == ["features"]


def test_the_panels_show_the_bits_of_their_parts(evidence):
    _, axes = visualize_evidence_parts(evidence, 1, use_pyplot=False)
    np.testing.assert_allclose(drawn(axes[1]), evidence.attribution(1)[0, 0])
    full = evidence.at_depth("input").in_context("full")
    np.testing.assert_allclose(drawn(axes[3]), full.at(8).attribution(1)[0, 0])
    scales = {one.images[-1].get_clim() for one in axes[1:]}
    assert len(scales) > 1
    _, axes = visualize_evidence_parts(evidence, 1, 2, use_pyplot=False)
    np.testing.assert_allclose(drawn(axes[1]), evidence.contrast(1, 2)[0, 0])


def test_several_examples_are_refused():
    two = EfficientPDA(make_classifier(), engine="dense").evidence(
        make_images(2, 3, 9, 9), sliding_window_shapes=4
    )
    with pytest.raises(ValueError, match="2 examples"):
        visualize_evidence_parts(two, 0)


@pytest.mark.slow
def test_rooms_that_draw_are_there_after_a_plain_import():
    program = (
        "import sys, captum_pda\n"
        "assert not {'captum_pda.visualization', 'captum_pda.report'} & set(sys.modules)\n"
        "assert captum_pda.visualization.visualize_evidence\n"
        "assert captum_pda.report.write_report and captum_pda.atlas.make_atlas\n"
        "assert 'sklearn' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert "visualization" in dir(captum_pda)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        captum_pda.nothing  # noqa: B018
