"""Every code block of README and site runs as it stands, and recipes are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path for path in (ROOT / "docs/recipes").glob("*.md") if path.stem != "index")
PAGES = [ROOT / f"docs/{name}.md" for name in ("index", "choose", "priors")]
#: What a recipe needs beyond the library and its own tests.
NEEDS = {"huggingface": "transformers", "similarity": "transformers"}
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def program(page: Path) -> str:
    """All blocks of a page, one after the other."""
    return "\n".join(CODE.findall(page.read_text()))


@pytest.mark.parametrize("page", RECIPES + PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_as_it_stands(page, tmp_path, monkeypatch):
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    code = program(page)
    assert code, f"{page} has no code"
    monkeypatch.chdir(tmp_path)  # pages may write files
    exec(compile(code, str(page), "exec"), {"__name__": page.stem})


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_a_recipe_is_short(page):
    assert len([line for line in program(page).splitlines() if line.strip()]) < 60


def test_every_recipe_is_in_the_list():
    index = (ROOT / "docs/recipes/index.md").read_text()
    assert all(f"({page.name})" in index for page in RECIPES)
