"""Evidence in notebooks: a picture of each of the first examples, and a few lines."""

from __future__ import annotations

import base64
import html
import io
import warnings

from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.files import counted
from captum_pda.visualization import visualize_explanation

#: The number of examples of a batch that are drawn.
N_DRAWN = 3


def notebook_html(evidence: WindowEvidence) -> str:
    """Pictures and words without scripts and links; the model is not run."""
    shown = [_figure(evidence, number) for number in range(min(len(evidence), N_DRAWN))]
    left = len(evidence) - N_DRAWN
    more = ""
    if left > 0 and any(shown):
        more = f"<p>{counted(left, 'more example', 'more examples')}: evidence[{N_DRAWN}] ...</p>"
    words = f'<pre style="white-space:pre-wrap">{html.escape(str(evidence))}</pre>'
    return f"<div>{''.join(shown)}{more}{words}</div>"


def _figure(evidence: WindowEvidence, number: int) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            figure, _ = visualize_explanation(
                evidence, None, test=False, example=number, use_pyplot=False
            )
    except ValueError:  # several tensors, or outputs of which none is the top class
        return ""
    content = io.BytesIO()
    figure.savefig(content, format="jpeg", dpi=90, pil_kwargs={"quality": 85})
    code = base64.b64encode(content.getvalue()).decode("ascii")
    words = f"example {number}: its strongest regions and its map"
    return f'<img alt="{words}" style="max-width:100%" src="data:image/jpeg;base64,{code}">'
