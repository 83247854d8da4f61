"""An atlas as a page: groups with their examples, each linked to the report of its photo."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from captum_pda.atlas.groups import Atlas, RegionGroup
from captum_pda.basics.files import write_whole
from captum_pda.report.page_file import Block, Page
from captum_pda.report.pictures import jpeg

PAGE = Page(
    "Atlas",
    "atlas.html",
    ("base.css", "atlas.css"),
    ("block.js", "elements.js", "numbers.js", "atlas.js"),
)
QUALITY = 80


def write_atlas(atlas: Atlas, path: str | os.PathLike[str], n_examples: int = 24) -> Path:
    """Write an atlas as one HTML page that needs no server and no network.

    Args:
        atlas: from ``make_atlas``.
        path: where to write; a file that is there is replaced.
        n_examples: how many regions of each group to show.

    Returns:
        The path.

    Example::

        >>> write_atlas(atlas, "husky.html")
    """
    path = Path(path)
    write_whole(path, atlas_page(atlas, n_examples))
    return path


def atlas_page(atlas: Atlas, n_examples: int = 24) -> bytes:
    """The page itself."""
    block = Block()
    header = {
        "label": atlas.label,
        "photos": atlas.n_photos,
        "left": atlas.n_left_out,
        "groups": [_group(group, block, n_examples) for group in atlas.groups],
    }
    return PAGE.render({"values": block.pack(header)})


def _group(group: RegionGroup, block: Block, n_examples: int) -> dict[str, Any]:
    return {
        "bits": group.mean_bits,
        "spread": group.spread,
        "photos": len(group.photos),
        "regions": len(group.regions),
        "examples": [
            {
                "photo": region.photo,
                "bits": region.bits,
                "link": region.link,
                "crop": block.add_bytes(jpeg(region.crop, QUALITY)),
            }
            for region in group.examples(n_examples)
        ],
    }
