"""The index of many reports: their small pictures, verdicts and strongest evidence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from captum_pda.files import write_whole
from captum_pda.report.page_file import Block, Page, read_block, unpack

PAGE = Page("Photos", "index.html", "base index", "block elements numbers index")
#: The first bytes of a report contain its summary.
SUMMARY_BYTES = 200_000


def write_index(
    reports: Sequence[str | os.PathLike[str]], path: str | os.PathLike[str], title: str = "Photos"
) -> Path:
    """Write a page that lists reports, to be sorted, filtered and opened there; returns its path.

    Args:
        reports: files that ``write_report`` wrote; links to them are relative to the index.
        path: the file to write, usually ``index.html`` in the folder of the reports.
        title: the title.
    """
    path = Path(path)
    write_whole(path, index_page([Path(report) for report in reports], path, title))
    return path


def index_page(
    reports: Sequence[Path], path: Path, title: str, failed: Mapping[str, str] | None = None
) -> bytes:
    """The page with links relative to a folder; ``failed`` are photos without a report."""
    block, entries = Block(), []
    for report in reports:
        summary, picture = read_summary(report)
        relative = Path(os.path.relpath(report.absolute(), path.parent.absolute()))
        # Names are data, so everything is escaped.
        href = "./" + "/".join(quote(os.fsencode(part), safe="") for part in relative.parts)
        entries.append({**summary, "thumbnail": block.add_bytes(picture), "href": href})
    header = {"title": title, "entries": entries, "failed": list((failed or {}).items())}
    return PAGE.render({"values": block.pack(header)})


def read_summary(report: Path) -> tuple[dict[str, Any], bytes]:
    """The summary in a report, and its small picture as JPEG."""
    with report.open("rb") as file:
        text = read_block(file.read(SUMMARY_BYTES), "summary")
    if not text:
        raise ValueError(f"{report} was not written by write_report; leave it out of the index")
    summary, arrays = unpack(text)
    return summary, arrays[summary.pop("thumbnail")].tobytes()
