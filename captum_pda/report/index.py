"""Many reports on one page: small pictures with the verdict and the strongest evidence of each."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from captum_pda.files import write_whole
from captum_pda.report.page_file import Block, Page, read_block, unpack
from captum_pda.report.pictures import thumbnail

PAGE = Page(
    "Photos",
    "index.html",
    ("base.css", "index.css"),
    ("block.js", "elements.js", "numbers.js", "index.js"),
)
#: A report's summary stands at its beginning, before so many bytes.
READ = 200_000
#: Of more photos, smaller pictures are kept.
MANY, SMALL = 300, 112


def write_index(
    reports: Sequence[str | os.PathLike[str]], path: str | os.PathLike[str], title: str = "Photos"
) -> Path:
    """Write a page that lists reports, to be sorted, filtered and opened from there.

    Args:
        reports: files that ``write_report`` wrote; links to them are relative to the index.
        path: where to write, usually ``index.html`` in the folder of the reports.
        title: what stands above.

    Returns:
        The path.

    Example::

        >>> write_index(sorted(Path("out").rglob("*.html")), "out/index.html", "validation set")
    """
    path = Path(path)
    write_whole(path, index_page([Path(report) for report in reports], path, title))
    return path


def index_page(
    reports: Sequence[Path], path: Path, title: str, failed: Mapping[str, str] | None = None
) -> bytes:
    """The page itself, for a place from which its links are seen; ``failed`` says which photos have
    no report, and why."""
    block = Block()
    entries = [
        {**_summary(report, block, len(reports)), "href": _link(report, path.parent)}
        for report in reports
    ]
    header = {"title": title, "entries": entries, "failed": list((failed or {}).items())}
    return PAGE.render({"values": block.pack(header)})


def read_summary(report: Path) -> tuple[dict[str, Any], bytes]:
    """What a report says of itself, and its small picture as JPEG."""
    with report.open("rb") as file:
        text = read_block(file.read(READ), "summary")
    if not text:
        raise ValueError(f"{report} is no report of write_report; leave it out of the index")
    summary, arrays = unpack(text)
    return summary, arrays[summary.pop("thumbnail")].tobytes()


def _summary(report: Path, block: Block, count: int) -> dict[str, Any]:
    summary, picture = read_summary(report)
    if count > MANY:
        picture = thumbnail(np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")), SMALL)
    return {**summary, "thumbnail": block.add_bytes(picture)}


def _link(report: Path, folder: Path) -> str:
    """The address of a report, seen from a folder; names are data, so all is escaped."""
    relative = Path(os.path.relpath(report.absolute(), folder.absolute()))
    return "./" + "/".join(quote(os.fsencode(part), safe="") for part in relative.parts)
