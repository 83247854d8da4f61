"""Pictures of evidence, with the interface of Captum's visualizers.

Captum's ``visualize_image_attr`` normalises every map, sums the channels (which are equal in PDA
maps) and cannot draw a map of zeros. These functions draw the values themselves: red for the class,
blue against it, with a colour bar in bits. Over an image, zero is transparent.
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
