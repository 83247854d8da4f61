"""An atlas as an HTML page whose examples are linked to reports, and as a picture."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

from matplotlib.figure import Figure

from captum_pda.atlas.atlas import Atlas
from captum_pda.files import counted, write_whole
from captum_pda.model.inputs import check_count
from captum_pda.model.measures import signed
from captum_pda.report.page_file import Block, Page
from captum_pda.report.pictures import jpeg
from captum_pda.visualization.drawing import AGAINST, FOR, finish, new_figure, show

PAGE = Page("Atlas", "atlas.html", "base atlas", "block elements numbers atlas")
CROP_QUALITY = 80
#: The letters of a group's name that fit in a line.
NAME_LETTERS = 28
#: Inches of the picture: the height of a group, and the widths of a crop and of the words.
ROW_HEIGHT, CROP_WIDTH, WORDS_WIDTH = 1.15, 1.0, 2.4


def write_atlas(atlas: Atlas, path: str | os.PathLike[str], n_examples: int = 24) -> Path:
    """Write an atlas as one HTML page that needs no server and no network; returns its path.

    Args:
        atlas: from ``make_atlas``.
        path: the file to write or replace.
        n_examples: the number of regions of each group to show.
    """
    path = Path(path)
    write_whole(path, atlas_page(atlas, n_examples))
    return path


def atlas_page(atlas: Atlas, n_examples: int = 24) -> bytes:
    """The HTML of the page."""
    block = Block()
    groups = [
        {
            "name": group.name,
            "bits": group.mean_bits,
            "spread": group.spread,
            "photos": len(group.photos),
            "regions": len(group.regions),
            "examples": [
                {
                    "photo": region.photo,
                    "bits": region.bits,
                    "link": region.link,
                    "crop": block.add_bytes(jpeg(region.crop, CROP_QUALITY)),
                }
                for region in group.examples(n_examples)
            ],
        }
        for group in atlas.groups
    ]
    header = {"label": atlas.label, "photos": atlas.n_photos, "left": atlas.n_left_out}
    return PAGE.render({"values": block.pack({**header, "groups": groups})})


def visualize_atlas(atlas: Atlas, n_examples: int = 8, use_pyplot: bool = True) -> Figure:
    """Draw an atlas: each group with its mean evidence, its frequency, and examples.

    Args:
        atlas: from ``make_atlas``.
        n_examples: the number of regions of each group to draw.
        use_pyplot: whether the figure is made by pyplot, and shown.
    """
    check_count("n_examples", n_examples)
    rows = max(len(atlas.groups), 1)
    figure = new_figure(
        (WORDS_WIDTH + n_examples * CROP_WIDTH, 0.7 + rows * ROW_HEIGHT), use_pyplot
    )
    figure.suptitle(
        f"What speaks for {atlas.label}, and what against it ({counted(atlas.n_photos, 'photo')})"
    )
    if not atlas.groups:
        empty = figure.add_subplot()  # notebooks show no figure without axes
        empty.axis("off")
        empty.text(0.5, 0.4, "no region occurs in several photos", ha="center")
    grid = figure.add_gridspec(
        rows, n_examples + 1, width_ratios=[WORDS_WIDTH] + [CROP_WIDTH] * n_examples
    )
    for row, group in enumerate(atlas.groups):
        panel = figure.add_subplot(grid[row, 0])
        panel.axis("off")
        colour = FOR if group.speaks_for else AGAINST
        # The strength of a group, its frequency, and what its regions have in common.
        words = (
            f"{signed(group.mean_bits)} \u00b1 {group.spread:.2f} bits\n"
            f"{len(group.photos)} of {counted(group.n_photos_in_all, 'photo')}\n"
            + textwrap.fill(group.name, NAME_LETTERS)
        )
        panel.text(0, 0.5, words, color=colour, va="center", transform=panel.transAxes)
        for place, region in enumerate(group.examples(n_examples)):
            panel = figure.add_subplot(grid[row, 1 + place])
            panel.imshow(region.crop)
            finish(panel, None)
            for side in panel.spines.values():
                side.set(color=colour, linestyle="solid" if group.speaks_for else "dashed")
            panel.set_title(signed(region.bits), fontsize=8, pad=2)
    show(use_pyplot)
    return figure
