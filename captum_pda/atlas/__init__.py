"""The decision rules of a class: what do the strongest regions of many photos look like?

The strongest regions for and against a class are cut out of many photos and grouped by what the
model sees in them. A group with regions of several photos is a rule; others are left out.
"""

from captum_pda.atlas.atlas import (
    Atlas,
    ClassRegion,
    RegionGroup,
    cut_regions,
    make_atlas,
    read_regions,
    write_regions,
)
from captum_pda.atlas.atlas_page import visualize_atlas, write_atlas

__all__ = [
    "Atlas",
    "ClassRegion",
    "RegionGroup",
    "cut_regions",
    "make_atlas",
    "read_regions",
    "visualize_atlas",
    "write_atlas",
    "write_regions",
]
