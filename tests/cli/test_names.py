"""Photos of any name, on any terminal."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from captum_pda.cli.main import main
from captum_pda.datasets.result_folder import settings_in

TINY = (
    "--model",
    "tiny:five",
    "--method",
    "efficient",
    "--no-test",
    "--window",
    "8",
    "--device",
    "cpu",
)
#: A name in Latin-1, which is no UTF-8; and one that no ASCII terminal shows.
LATIN, CHINESE = os.fsdecode(b"caf\xe9.png"), "\u732b.png"


@pytest.fixture(autouse=True)
def photos(photo_folder):
    folder = photo_folder / "photos"
    folder.mkdir()
    try:
        for name in (LATIN, CHINESE):
            (folder / name).write_bytes((photo_folder / "cat.png").read_bytes())
    except OSError:
        pytest.skip("this file system takes no such names")
    return folder


def terminal(monkeypatch, encoding, errors="strict"):
    """Output as a terminal of this encoding takes it."""
    shown = io.BytesIO()
    for name in ("stdout", "stderr"):
        stream = io.TextIOWrapper(shown, encoding, errors, write_through=True)
        monkeypatch.setattr(sys, name, stream)
    return shown


@pytest.mark.parametrize(
    ("encoding", "raw", "html"),
    [("ascii", "npz", []), ("utf-8", "safetensors", ["--html"]), ("latin-1", "npz", ["--html"])],
)
def test_photos_of_any_name_are_explained_and_named(encoding, raw, html, monkeypatch):
    method = ("--method", "efficient", "--stride", "8") if html else ()
    for name in (LATIN, CHINESE):
        shown = terminal(monkeypatch, encoding)
        command = ["explain", f"photos/{name}", *TINY, *method, "--raw", raw, *html]
        assert main(command) == 0
        assert b"Written: " in shown.getvalue()
        (file,) = Path().glob(f"{name.partition('.')[0]}*.{raw}")
        settings = settings_in(file)
        assert settings is not None
        assert Path(settings["photo"]).read_bytes() == Path("cat.png").read_bytes()


def test_safetensors_of_any_name_are_read_by_others_and_by_a_rerun(capsys):
    command = ["explain", "photos", "--output", "out", *TINY, "--raw", "safetensors"]
    assert main(command) == 0
    capsys.readouterr()
    assert main(command) == 0
    assert "2 were done before" in capsys.readouterr().out
    for name in (LATIN, CHINESE):
        with safe_open(f"out/{name}_evidence.safetensors", framework="np") as file:
            assert np.isfinite(file.get_tensor("bits")).all()
            assert json.loads(file.metadata()["settings"])["photo"] == f"photos/{name}"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_broken_photo_of_any_name_is_in_the_summary(encoding, photos, monkeypatch):
    for name in (LATIN, CHINESE):
        (photos / name).write_bytes(b"nothing")
    (photos / "good.png").write_bytes(Path("cat.png").read_bytes())
    shown = terminal(monkeypatch, encoding)
    assert main(["explain", "photos", "--output", "out", *TINY]) == 1
    assert b"2 of 3 photos could not be explained" in shown.getvalue()
    summary = json.loads(Path("out/summary.json").read_text(encoding="utf-8"))
    assert set(summary["failed"]) == {f"photos/{name}" for name in (LATIN, CHINESE)}
    assert "\u732b" in Path("out/summary.json").read_text(encoding="utf-8")
