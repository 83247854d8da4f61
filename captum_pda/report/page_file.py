"""HTML pages from styles and scripts of this package, and blocks of values.

A block contains typed arrays, images and plain values: base64 of zlib of safetensors, whose tensors
are named by numbers and whose metadata contain the plain values as JSON. Nothing in it can be
mistaken for markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from captum_pda._version import __version__

#: Nothing may be requested, and only scripts of this package may run.
POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; img-src blob:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Page:
    """The files of a page."""

    name: str  #: What the browser calls the page until it is filled.
    markup: str  #: The HTML file of what it shows; head, notices and values are those of all pages.
    styles: str  #: The names of the CSS files, in their order.
    scripts: str  #: The names of the JavaScript files, in their order; they share one scope.

    def render(self, blocks: Mapping[str, str]) -> bytes:
        """The HTML with its blocks of values, by their names in the markup."""
        style = "".join(_read(f"{name}.css") for name in self.styles.split())
        script = "".join(_read(f"{name}.js") for name in self.scripts.split())
        script = f'"use strict";\n{script}'
        policy = POLICY.format(script=_source_hash(script), style=_source_hash(style))
        parts = {"policy": policy, "style": style, "script": script, "version": __version__}
        parts |= {"name": self.name, **blocks}
        markup = _read("frame.html").replace("{{body}}", _read(self.markup).strip())
        # All at once, so that no part is searched for the place of another.
        return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], markup).encode()


def _read(name: str) -> str:
    return files("captum_pda.report").joinpath("page", name).read_text(encoding="utf-8")


def _source_hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def read_block(page: bytes, name: str) -> bytes:
    """The text of a block in a page; empty if there is none."""
    found = re.search(rb'<script type="application/octet-stream" id="%s">' % name.encode(), page)
    return page[found.end() : page.find(b"<", found.end())].strip() if found else b""


class Block:
    """Collects the arrays of a page; ``add`` returns the number by which the header names one."""

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def add(self, values: npt.ArrayLike, kind: str) -> int:
        """Add an array of a type that block.js knows, and return its number."""
        number = len(self._arrays)
        self._arrays[str(number)] = np.array(values, dtype=kind, order="C")
        return number

    def add_bytes(self, content: bytes) -> int:
        """Add a file, such as a JPEG."""
        return self.add(np.frombuffer(content, dtype=np.uint8), "uint8")

    def pack(self, header: Mapping[str, Any]) -> str:
        """The whole block as text."""
        text = json.dumps(header, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        content = save(self._arrays, metadata={"header": text.decode()})
        return base64.b64encode(zlib.compress(content, 9)).decode("ascii")


def unpack(text: str | bytes) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
    """The header of a block, and its arrays."""
    content = zlib.decompress(base64.b64decode(text))
    metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    arrays = load(content)
    return json.loads(metadata["header"]), [arrays[str(n)] for n in range(len(arrays))]
