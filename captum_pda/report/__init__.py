"""The evidence of a photo as one HTML page that opens from disk, and an index of many.

A page needs no server and no network: the photo, the values of every region and the program that
shows them are in the file.
"""

from captum_pda.report.index import write_index
from captum_pda.report.notebook import notebook_html
from captum_pda.report.report import write_report

__all__ = ["notebook_html", "write_index", "write_report"]
