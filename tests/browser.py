"""A real browser for tests of pages: where there is none, those tests are skipped, and say so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Of Debian and others; CAPTUM_PDA_BROWSER names another one.
NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    named = os.environ.get("CAPTUM_PDA_BROWSER")
    path = named or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no browser: apt-get install chromium, or set CAPTUM_PDA_BROWSER")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(OPTIONS))
        yield chromium
        chromium.close()


@contextmanager
def opened(browser: Any, path: Path, **settings: Any) -> Iterator[Any]:
    """A page from disk; what it prints to its console, and what it asks of a network, fails."""
    settings.setdefault("viewport", {"width": 1300, "height": 1000})
    # Otherwise what a test reads may be a colour on its way to another.
    settings.setdefault("reduced_motion", "reduce")
    page = browser.new_page(**settings)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    address = path.resolve().as_uri()

    def requested(request: Any) -> None:
        if not request.url.startswith((address, "blob:")):
            complaints.append(f"request: {request.url}")

    page.on("request", requested)
    page.goto(address)
    page.wait_for_selector("body[data-ready], #failed:not([hidden])")
    try:
        yield page
        assert complaints == []
    finally:
        page.close()


#: Every text of a page whose contrast with what is behind it is below WCAG's AA, with the ratio.
LOW_CONTRAST = """() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return { rgb: [r, g, b], a };
  };
  const luminance = (rgb) => rgb
    .map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const { rgb, a } = parse(getComputedStyle(at).backgroundColor);
      if (a > 0.85) return rgb;
    }
    return parse(getComputedStyle(document.documentElement).backgroundColor).rgb;
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
    if (element.closest("script, .unseen, option")) continue;
    const style = getComputedStyle(element);
    const [a, b] = [luminance(parse(style.color).rgb), luminance(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) low.push([walker.currentNode.textContent.trim(), ratio]);
  }
  return low;
}"""

#: Every control of a page without a name that a screen reader can say.
NAMELESS = """() => [...document.querySelectorAll("button, input, select, a, [tabindex]")]
  .filter((one) => one.checkVisibility())
  .filter((one) => !(
    one.getAttribute("aria-label") || one.textContent.trim() || (one.labels && one.labels.length)
  ))
  .map((one) => one.outerHTML)"""
