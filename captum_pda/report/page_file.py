"""One HTML file from its parts: styles and programs of this package, and a block of values."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from captum_pda._version import __version__

#: Nothing may be requested, and only what this package wrote may run.
POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; img-src blob:; "
    "base-uri 'none'; form-action 'none'"
)

#: What all pages have around what they show.
FRAME = "frame.html"


@dataclass(frozen=True)
class Page:
    """Which files make a page.

    Args:
        name: what the browser calls the page until it is filled.
        markup: the HTML file of what it shows; head, notices and values are those of all pages.
        styles: the CSS files, in their order.
        scripts: the JavaScript files, in their order; they share one scope.
    """

    name: str
    markup: str
    styles: Sequence[str]
    scripts: Sequence[str]

    def render(self, blocks: Mapping[str, str]) -> bytes:
        """The page with its blocks of values, by the names that its markup has for them."""
        style = "".join(_read(name) for name in self.styles)
        script = '"use strict";\n' + "".join(_read(name) for name in self.scripts)
        policy = POLICY.format(script=_source_hash(script), style=_source_hash(style))
        parts = {"policy": policy, "style": style, "script": script, "version": __version__}
        parts |= {"name": self.name, **blocks}
        markup = _read(FRAME).replace("{{body}}", _read(self.markup).strip())
        # All at once, so that no part is searched for the place of another.
        page = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], markup)
        return page.encode()


def read_block(page: bytes, name: str) -> bytes:
    """The text of a block in a page; empty where there is none."""
    found = re.search(rb'<script type="application/octet-stream" id="%s">' % name.encode(), page)
    if found is None:
        return b""
    return page[found.end() : page.find(b"<", found.end())].strip()


def _read(name: str) -> str:
    return files("captum_pda.report").joinpath("page", name).read_text(encoding="utf-8")


def _source_hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
