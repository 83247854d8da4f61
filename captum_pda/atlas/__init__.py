"""The decision rules of a class: the strongest regions for and against it are cut out of many
photos and grouped by the model's own features. Groups with regions of several photos are rules."""

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
