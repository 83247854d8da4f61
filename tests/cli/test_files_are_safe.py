"""No command writes over what it reads, or over what it did not write."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captum_pda.cli.folders import is_own
from captum_pda.cli.main import main
from captum_pda.datasets.result_folder import settings_in
from captum_pda.files import remove_parts, write_whole

TINY = ("--model", "tiny:five", "--method", "efficient", "--no-test", "--window", "8", "--quiet")


pytestmark = pytest.mark.usefixtures("photo_folder")


def contents():
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.fixture
def no_work(monkeypatch):
    """Whoever makes a model fails: refusals come before any work."""
    monkeypatch.setenv("NO_MODEL", "1")


def copy(name, as_name):
    Path(as_name).write_bytes(Path(name).read_bytes())


@pytest.mark.parametrize(
    "arguments",
    [
        ["cat.png", "--output", "cat.png"],
        ["cat.png", "--output", "./cat.png"],
        ["cat.png", "--output", "cat.png", "--overwrite"],
        ["cat.png", "cat.png_evidence.png"],
        ["cat.png", "cat.png_evidence.png", "--overwrite"],
        ["cat.png", "--output", "link.png"],
        ["cat.png", "--output", "link.png", "--overwrite"],
        ["cat.png", "--output", "hard.png", "--overwrite"],
        ["cat.png", "--output", "folder/../cat.png", "--overwrite"],
        ["link.png", "--output", "cat.png", "--overwrite"],
        ["cat.png", "--labels", "cat.png_evidence.npz", "--overwrite"],
        ["cat.png", "--prior", "cat.png_evidence.npz", "--overwrite"],
        ["photos", "--output", "out", "--prior", "out/settings.json", "--overwrite"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("no_work")
def test_what_is_read_is_never_written_over(arguments, capsys):
    for name in ("cat.png_evidence.png", "cat.png_evidence.npz"):
        copy("dog.png", name)
    for name in ("folder", "photos", "out"):
        Path(name).mkdir()
    copy("cat.png", "photos/cat.png")
    Path("out/settings.json").write_text("{}")
    Path("link.png").symlink_to("cat.png")
    os.link("cat.png", "hard.png")
    before = contents()
    assert main(["explain", *arguments, *TINY]) == 2
    assert contents() == before
    (line,) = capsys.readouterr().err.splitlines()
    assert "is read by this command, and would be written over" in line
    assert "choose another --output" in line


@pytest.mark.parametrize(
    "foreign",
    ["cat.png_evidence.png", "cat.png_evidence.npz", "out/cat.png_evidence.png", "out.jpg"],
)
@pytest.mark.usefixtures("no_work")
def test_a_file_of_somebody_else_is_left_alone(foreign, capsys):
    output = ["--output", foreign.partition("/")[0]] if foreign.startswith("out") else []
    Path(foreign).parent.mkdir(exist_ok=True)
    copy("dog.png", foreign)
    before = contents()
    assert main(["explain", "cat.png", *output, *TINY]) == 2
    assert contents() == before
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{foreign} exists, and captum-pda did not write it" in line
    assert line.endswith("choose another --output, or add --overwrite")


@pytest.mark.usefixtures("no_work")
def test_a_folder_s_foreign_files_and_the_demo_s_are_left_alone():
    for name in ("photos", "out"):
        Path(name).mkdir()
    copy("cat.png", "photos/cat.png")
    for foreign in (
        "cat.png_evidence.png",
        "cat.png_evidence.npz",
        "summary.json",
        "settings.json",
    ):
        Path("out", foreign).write_bytes(b"{}")
        before = contents()
        assert main(["explain", "photos", "--output", "out", *TINY]) == 2
        assert main(["demo", "--output", "cat.png", "--quiet"]) == 2
        assert contents() == before
        Path("out", foreign).unlink()


@pytest.mark.parametrize("foreign", ["summary.json", "settings.json", "index.html"])
def test_overwrite_replaces_whatever_has_the_name_of_a_result(foreign):
    for name in ("photos", "out"):
        Path(name).mkdir()
    copy("cat.png", "photos/cat.png")
    Path("out", foreign).write_bytes(b"somebody's own")
    command = ["explain", "photos", "--output", "out", *TINY, "--method", "efficient", "--html"]
    assert main(command) == 2
    assert main([*command, "--overwrite"]) == 0
    assert is_own(Path("out", foreign))
    assert main(command) == 0


def test_a_dangling_link_is_left_alone():
    Path("cat.png_evidence.png").symlink_to("nowhere.png")
    assert main(["explain", "cat.png", *TINY]) == 2
    assert Path("cat.png_evidence.png").is_symlink()


@pytest.mark.parametrize("raw", ["npz", "safetensors"])
@pytest.mark.parametrize("picture", ["own.png", "own.jpg"])
def test_own_files_are_replaced_and_others_with_overwrite(picture, raw):
    for _ in range(2):
        assert main(["explain", "cat.png", "--output", picture, "--raw", raw, *TINY]) == 0
    assert is_own(Path(picture))
    assert is_own(Path(f"own.{raw}"))
    with Image.open(picture) as image:
        assert image.format == ("PNG" if picture.endswith("png") else "JPEG")
    copy("dog.png", picture)
    command = ["explain", "cat.png", "--output", picture, "--raw", raw, *TINY]
    assert main(command) == 2
    assert main([*command, "--overwrite"]) == 0
    assert is_own(Path(picture))


def test_a_file_that_comes_in_the_meantime_is_left_alone(monkeypatch):
    """Here, while the model is made."""
    Path("late.py").write_text(
        "import shutil, tiny\n\ndef model():\n"
        "    shutil.copy('dog.png', 'cat.png_evidence.png')\n    return tiny.five()\n"
    )
    monkeypatch.delitem(sys.modules, "late", raising=False)
    assert main(["explain", "cat.png", *TINY, "--model", "late:model"]) == 1
    assert Path("cat.png_evidence.png").read_bytes() == Path("dog.png").read_bytes()


def test_a_refused_command_leaves_no_folder_behind():
    assert main(["explain", "cat.png", "--output", "new/deep", "--target", "lion", *TINY]) == 2
    assert main(["explain", "no.png", "--output", "new/deep", *TINY]) == 1
    assert main(["explain", "cat.png", "--output", "new/a.png", "--stride", "9", *TINY]) == 2
    assert not Path("new").exists()


# Half-written files


def write_slowly(folder, started, go_on):
    """Hold a half-written file open, as a slow disk would."""
    fsync = os.fsync

    def wait(number):
        started.set()
        go_on.wait(60)
        fsync(number)

    os.fsync = wait
    write_whole(Path(folder) / "result.bin", b"whole")


def test_a_second_job_leaves_what_the_first_is_writing():
    context = multiprocessing.get_context("fork")
    started, go_on = context.Event(), context.Event()
    Path("out").mkdir()
    abandoned = Path(f"out/.{'0' * 32}.part")
    abandoned.write_bytes(b"half")
    job = context.Process(target=write_slowly, args=("out", started, go_on))
    job.start()
    try:
        assert started.wait(60)
        remove_parts(Path("out"))
        assert len(list(Path("out").glob(".*.part"))) == 1
        assert not abandoned.exists()
    finally:
        go_on.set()
        job.join(60)
    assert Path("out/result.bin").read_bytes() == b"whole"
    assert not list(Path("out").glob(".*.part"))


# Old results are read in bounded memory


def test_hostile_files_are_no_results_of_ours(tmp_path):
    mark = json.dumps({"captum_pda": "0.1.0"})
    np.savez(tmp_path / "good.npz", settings=np.array(mark))
    assert settings_in(tmp_path / "good.npz") == {"captum_pda": "0.1.0"}
    good = (tmp_path / "good.npz").read_bytes()
    hostile = {
        "empty.npz": b"",
        "short.npz": b"PK\x05\x06",
        "cut.npz": good[:-30],
        "many.npz": good[:-10] + b"\xff\xff\xff\x7f" + good[-6:],
        "no.safetensors": b"\xff" * 8,
        "deep.safetensors": (60_000).to_bytes(8, "little") + b"[" * 60_000,
        "list.json": b"[]",
        "other.json": b'{"captum": 1}',
    }
    for name, content in hostile.items():
        (tmp_path / name).write_bytes(content)
        assert settings_in(tmp_path / name) is None, name
        assert not is_own(tmp_path / name), name
    np.savez(tmp_path / "objects.npz", settings=np.array([mark], dtype=object))
    assert settings_in(tmp_path / "objects.npz") is None
