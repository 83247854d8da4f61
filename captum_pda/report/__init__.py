"""The evidence of a photo as an HTML page, which needs no server and no network, and an index."""

from captum_pda.report.index import write_index
from captum_pda.report.notebook import notebook_html
from captum_pda.report.report import write_report

__all__ = ["notebook_html", "write_index", "write_report"]
