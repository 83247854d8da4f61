"""One HTML file from its parts: styles and programs of this package, and blocks of values.

A block holds typed arrays, images and plain values as compressed text: base64 of zlib of a header's
length (4 bytes, little-endian), the header (JSON), and the arrays, each at a multiple of 8 bytes
behind the header. The header's "arrays" say the type, shape and offset of each. Nothing in it can
be taken for markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
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


@dataclass(frozen=True)
class Page:
    """Which files make a page.

    Args:
        name: what the browser calls the page until it is filled.
        markup: the HTML file of what it shows; head, notices and values are those of all pages.
        styles: the names of the CSS files, in their order.
        scripts: the names of the JavaScript files, in their order; they share one scope.
    """

    name: str
    markup: str
    styles: str
    scripts: str

    def render(self, blocks: Mapping[str, str]) -> bytes:
        """The page with its blocks of values, by the names that its markup has for them."""
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
    """The text of a block in a page; empty where there is none."""
    found = re.search(rb'<script type="application/octet-stream" id="%s">' % name.encode(), page)
    return page[found.end() : page.find(b"<", found.end())].strip() if found else b""


ALIGNMENT = 8
#: Longer arrays of float32 are rounded to 10 bits behind the point, which compress better: all
#: numbers are exact to 0.05%.
MAX_EXACT_VALUES = 250_000


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
        """Keep an array of a type that block.js knows, and say which number it has."""
        array = np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<"))
        if kind == "float32" and array.size > MAX_EXACT_VALUES:
            array = (array.view("<u4") + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
        self._bytes.extend(bytes(-len(self._bytes) % ALIGNMENT))
        shape = list(np.shape(values))
        self._entries.append({"type": kind, "shape": shape, "offset": len(self._bytes)})
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
        code = np.dtype(entry["type"]).newbyteorder("<")
        count = int(np.prod(entry["shape"], dtype=np.int64))
        array = np.frombuffer(content, code, count, start + entry["offset"])
        arrays.append(array.reshape(entry["shape"]))
    return header, arrays
