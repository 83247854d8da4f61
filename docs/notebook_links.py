"""Notebooks link to files of the repository; on the site, the same links lead to its pages."""

from __future__ import annotations

import logging
import posixpath
import re
from typing import Any

log = logging.getLogger("mkdocs.plugins.notebook_links")

#: Files that the site shows on a page of another name.
SHOWN_ON = {"benchmarks/FAITHFULNESS.md": "measured.md"}
LINK = re.compile(r'(<a\b[^>]*\bhref=")([^"#:]+)(#[^"]*)?"')


def on_page_content(html: str, page: Any, files: Any, **_: object) -> str:
    """Rewrite the relative links of a notebook; one that leads nowhere fails a strict build."""
    source = page.file.src_uri
    if not source.endswith(".ipynb"):
        return html

    def site_link(found: re.Match[str]) -> str:
        start, address, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), address))
        target = files.get_file_from_path(SHOWN_ON.get(path, path.removeprefix("docs/")))
        if target is None:
            log.warning("%s links to %s, which is no page of the site", source, address)
            return found.group()
        return f'{start}{target.url_relative_to(page.file)}{anchor or ""}"'

    return LINK.sub(site_link, html)
