"""Pictures of evidence, in the shape of Captum's visualizers.

Captum's ``visualize_image_attr`` normalises every map by itself, adds the channels up (a PDA map
has one value for all channels of a pixel) and cannot draw a map of zeros. These functions draw the
values as they are: red speaks for the class, blue against it, zero is white, and the colour bar is
in bits.
"""

from captum_pda.visualization.arrays import evidence_scale
from captum_pda.visualization.evidence_map import visualize_evidence
from captum_pda.visualization.multiple import visualize_evidence_multiple
from captum_pda.visualization.parts import visualize_evidence_parts
from captum_pda.visualization.window_frames import visualize_strongest_windows

__all__ = [
    "evidence_scale",
    "visualize_evidence",
    "visualize_evidence_multiple",
    "visualize_evidence_parts",
    "visualize_strongest_windows",
]
