"""What the site needs besides its pages: a link to the repository, links from notebooks to pages,
and a sample report."""

from __future__ import annotations

import logging
import os
import posixpath
import re
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.plugins.site_hooks")

#: Files that the site shows on a page of another name.
SHOWN_ON = {"benchmarks/FAITHFULNESS.md": "measured.md"}
LINK = re.compile(r'(<a\b[^>]*\bhref=")([^"#:]+)(#[^"]*)?"')
#: The address of the sample report.
SAMPLE = "sample/coffee.html"


def on_config(config: Any) -> Any:
    """Link to the repository that the site is built from, where GitHub builds it."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        config.repo_name, config.repo_url = name, f"https://github.com/{name}"
    return config


def on_page_content(html: str, page: Any, files: Any, **_: object) -> str:
    """Rewrite the relative links of a notebook; one that leads nowhere fails a strict build.

    "Example::" of a docstring is the heading of what follows.
    """
    source = page.file.src_uri
    html = html.replace("Example::</p>", "Example:</p>")
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


def on_files(files: Any, config: Any) -> Any:
    """Add a report of a photo, made by the command itself, so that it is never out of date."""
    files.append(File.generated(config, SAMPLE, content=sample_report()))
    return files


def sample_report() -> str:
    """The page that ``captum-pda explain coffee.png --html`` writes."""
    from skimage import data, io

    from captum_pda.cli.main import main

    with tempfile.TemporaryDirectory() as folder:
        photo = Path(folder) / "coffee.png"
        io.imsave(photo, data.coffee())
        arguments = ["explain", str(photo), "--html", "--output", folder, "--quiet"]
        if main([*arguments, "--effort", "quick"]) != 0:
            raise RuntimeError("the sample report could not be made; install captum_pda[demo]")
        return next(Path(folder).glob("*.html")).read_text()
