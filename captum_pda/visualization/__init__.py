"""Pictures of evidence, in the shape of Captum's visualizers.

Captum's ``visualize_image_attr`` normalises every map by itself, adds the channels up (a PDA map
has one value for all channels of a pixel) and cannot draw a map of zeros. These functions draw the
values as they are: red speaks for the class, blue against it, and the colour bar is in bits. Over
an image, nothing is drawn where nothing is said.
"""

from captum_pda.visualization.drawing import evidence_scale
from captum_pda.visualization.maps import (
    visualize_evidence,
    visualize_evidence_multiple,
    visualize_evidence_parts,
)
from captum_pda.visualization.regions import (
    visualize_explanation,
    visualize_self_test,
    visualize_strongest_regions,
)
from captum_pda.visualization.space import visualize_signal, visualize_volume
from captum_pda.visualization.together import visualize_interactions, visualize_parts

__all__ = [
    "evidence_scale",
    "visualize_evidence",
    "visualize_evidence_multiple",
    "visualize_evidence_parts",
    "visualize_explanation",
    "visualize_interactions",
    "visualize_parts",
    "visualize_self_test",
    "visualize_signal",
    "visualize_strongest_regions",
    "visualize_volume",
]
