"""One HTML file from its parts: styles and programs of this package, and blocks of values.

A block holds typed arrays, images and plain values as compressed text: base64 of zlib of a header's
length (4 bytes, little-endian), the header (JSON), and the arrays, each at a multiple of 8 bytes
behind the header. The header's "arrays" say the type, shape and offset of each, and for 16-bit
numbers the power of two that each row was divided by. Nothing in it can be taken for markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

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


#: Names of types as the page knows them, with NumPy's little-endian codes.
TYPES = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "int32": "<i4",
    "uint16": "<u2",
    "uint8": "u1",
}
ALIGNMENT = 8
#: The largest number of a row of 16-bit numbers lies between half of this and this; the smallest
#: that keeps all its digits is a billionth of that.
ROW_MAXIMUM = 2.0**15


@dataclass
class Block:
    """Arrays on their way into a page; ``add`` gives the number by which the header names one.

    Example::

        >>> block = Block()
        >>> text = block.pack({"bits": block.add(np.zeros(3), "float32")})
        >>> header, arrays = unpack(text)
        >>> arrays[header["bits"]]
        array([0., 0., 0.], dtype=float32)
    """

    _entries: list[dict[str, Any]] = field(default_factory=list)
    _bytes: bytearray = field(default_factory=bytearray)

    def add(self, values: npt.ArrayLike, kind: str) -> int:
        """Keep an array, and say which number it has."""
        given = np.asarray(values)
        entry: dict[str, Any] = {"type": kind, "shape": list(given.shape)}
        if kind == "float16":
            scales = _row_scales(given)
            given = _rows(given.astype(np.float64)) / scales[:, None]
            entry["scales"] = scales.tolist()
        array = np.ascontiguousarray(given, dtype=TYPES[kind])
        self._bytes.extend(bytes(-len(self._bytes) % ALIGNMENT))
        self._entries.append({**entry, "offset": len(self._bytes)})
        self._bytes.extend(array.tobytes())
        return len(self._entries) - 1

    def add_bytes(self, content: bytes) -> int:
        """Keep a file, such as a JPEG."""
        return self.add(np.frombuffer(content, dtype=np.uint8), "uint8")

    def pack(self, header: Mapping[str, Any]) -> str:
        """The whole block as text."""
        whole = {**header, "arrays": self._entries}
        text = json.dumps(whole, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        text += b" " * (-(4 + len(text)) % ALIGNMENT)
        content = len(text).to_bytes(4, "little") + text + bytes(self._bytes)
        return base64.b64encode(zlib.compress(content, 9)).decode("ascii")


def unpack(text: str | bytes) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
    """The header of a block, and its arrays."""
    content = zlib.decompress(base64.b64decode(text))
    start = 4 + int.from_bytes(content[:4], "little")
    header: dict[str, Any] = json.loads(content[4:start])
    arrays = []
    for entry in header.pop("arrays"):
        count = int(np.prod(entry["shape"], dtype=np.int64))
        code = TYPES[entry["type"]]
        array = np.frombuffer(content, code, count, start + entry["offset"])
        if "scales" in entry:
            rows = array.reshape(len(entry["scales"]), -1).astype(np.float64)
            array = rows * np.array(entry["scales"])[:, None]
        arrays.append(array.reshape(entry["shape"]))
    return header, arrays


def _rows(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values.reshape(len(values) if values.ndim > 1 else 1, -1)


def _row_scales(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The power of two for each row that brings its largest finite number under ROW_MAXIMUM."""
    rows = _rows(values)
    largest = np.abs(np.where(np.isfinite(rows), rows, 0)).max(axis=1, initial=0.0)
    _, exponents = np.frexp(np.where(largest > 0, largest, ROW_MAXIMUM / 2) / ROW_MAXIMUM)
    scales: npt.NDArray[np.float64] = np.ldexp(1.0, exponents)
    return scales
