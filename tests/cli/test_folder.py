"""``captum-pda explain FOLDER``: every photo once, whatever happens in between."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captum_pda.cli.main import main
from captum_pda.report.page_file import read_block, unpack

MODEL = "tiny:five"
N = 6


@pytest.fixture(autouse=True)
def photos(photo_folder):
    folder = photo_folder / "photos"
    (folder / "deep").mkdir(parents=True)
    random = np.random.default_rng(0)
    names = ["a.jpg", "a.png", "deep/a.png", *(f"{number}.png" for number in range(N - 3))]
    for name in names:
        values = random.integers(0, 255, (12, 15, 3), dtype=np.uint8)
        Image.fromarray(values).resize((60, 48)).save(folder / name)
    return folder


def command(output="out", *more, model=MODEL):
    quick = ["--window", "8", "--stride", "8", "--method", "efficient", "--no-test"]
    chosen = ["--model", model, "--device", "cpu"]
    return ["explain", "photos", "--output", output, *quick, *chosen, *more]


def results(folder="out"):
    found = {}
    for path in sorted(Path(folder).rglob("*.npz")):
        with np.load(path) as file:
            found[str(path.relative_to(folder))] = file["bits"]
        assert path.with_suffix(".png").exists()
    assert not list(Path(folder).rglob(".*"))
    return found


def test_a_folder_is_explained_once(capsys, photos):
    (photos / "broken.png").write_bytes(b"nothing")
    assert main(command()) == 1
    said = capsys.readouterr()
    assert re.search(rf"Explaining: 100%\|█+\| {N + 1}/{N + 1} ", said.err)
    assert f"Explained {N} of {N + 1} photos; 0 were done before, 1 failed." in said.out
    assert "broken.png is not a photo" in said.err
    assert said.err.rstrip().endswith("lists them, and the same command tries them again")
    summary = json.loads(Path("out/summary.json").read_text())
    assert list(summary["failed"]) == ["photos/broken.png"]
    found = results()
    assert len(found) == N
    assert "deep/a.png_evidence.npz" in found
    with np.load("out/a.jpg_evidence.npz") as file:
        settings = json.loads(str(file["settings"]))
        assert file["probabilities"].shape == (5,)
    assert settings["photo"] == "photos/a.jpg"
    names = {"model", "weights_sha256", "prior", "torch", "captum_pda", "target", "answers"}
    assert names < settings.keys()
    assert settings["photo_sha256"] == sha256((photos / "a.jpg").read_bytes()).hexdigest()

    # Again: what is done is skipped, a changed or new photo is not, and half a result neither.
    when = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.npz")}
    shutil.copy(photos / "0.png", photos / "broken.png")
    shutil.copy(photos / "0.png", photos / "1.png")
    Path("out/2.png_evidence.npz").unlink()
    Path("out/a.png_evidence.png").unlink()
    Path(f"out/.{'0' * 32}.part").write_bytes(b"half")
    assert main(command("out", "--quiet")) == 0
    again = {path for path in when if path.stat().st_mtime_ns != when[path]}
    assert {path.name.partition("_")[0] for path in again} == {"1.png", "2.png", "a.png"}
    assert capsys.readouterr().err == ""
    after = results()
    np.testing.assert_array_equal(after["1.png_evidence.npz"], after["0.png_evidence.npz"])
    np.testing.assert_array_equal(after["2.png_evidence.npz"], found["2.png_evidence.npz"])


def test_a_changed_setting_is_refused(capsys):
    assert main(command("out", "--quiet", "--raw", "safetensors")) == 0
    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.safetensors")}
    assert len(before) == N
    assert main(command("out", "--raw", "safetensors", "--stride", "4")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("stride was 8 and is now 4. Choose another folder, or delete this one")
    assert main(command("out", "--raw", "safetensors", model="tiny:other")) == 2
    assert "weights_sha256 was" in capsys.readouterr().err
    assert main(command("out", "--quiet", "--raw", "safetensors")) == 0
    assert before == {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.safetensors")}


@pytest.mark.parametrize("raw", ["npz", "safetensors"])
def test_a_damaged_result_is_made_anew(raw):
    assert main(command("out", "--quiet", "--raw", raw)) == 0
    damaged = Path(f"out/0.png_evidence.{raw}")
    content = bytearray(damaged.read_bytes())
    middle = content.find(b"bits.npy") + 200 if raw == "npz" else len(content) - 100
    content[middle] ^= 1
    damaged.write_bytes(content)
    when = {path: path.stat().st_mtime_ns for path in Path("out").glob(f"*.{raw}")}
    assert main(command("out", "--quiet", "--raw", raw)) == 0
    again = {path.name for path in when if path.stat().st_mtime_ns != when[path]}
    assert again == {damaged.name}
    assert damaged.read_bytes() != bytes(content)


def test_results_may_lie_below_the_photos(photos, capsys):
    for _ in range(2):
        assert main(command("photos/out", "--quiet")) == 0
    assert len(results("photos/out")) == N
    assert main(command("other", "--quiet")) == 0
    assert len(results("other")) == N  # pictures of results are no photos
    assert main(command("photos")) == 2
    assert "another folder than that of the photos" in capsys.readouterr().err


def test_a_photo_that_is_named_twice_is_explained_once():
    twice = ["explain", "photos", "photos/deep/../../photos/a.jpg", *command("out", "--quiet")[2:]]
    assert main(twice) == 0
    assert len(results()) == N


def test_what_no_photo_can_be_asked_ends_at_once(capsys):
    assert main(command("out", "--target", "9")) == 2
    assert main(command("out", "--window", "500")) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert not Path("out").exists()


# Under torchrun


@contextmanager
def launch(arguments, program):
    """A running job, which does not outlive the block whatever happens there."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    runner = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with subprocess.Popen(
        [*runner, *program, *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as job:
        try:
            yield job
        finally:
            job.terminate()  # nothing, if it has ended
            try:
                job.wait(timeout=30)
            except subprocess.TimeoutExpired:
                job.kill()


def process_of_rank(parent, rank):
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in children:
        if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
            return int(child)
    raise LookupError(f"no child of {parent} is rank {rank}")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_a_killed_rank_loses_nothing():
    """kill -9 of one rank ends the job; the same command finishes it, as one process would."""
    efficient = ("--method", "sampled", "--samples", "150", "--engine", "dense")
    with launch(command("out", *efficient), ["-m", "captum_pda"]) as job:
        deadline = time.monotonic() + 200
        while not list(Path("out").rglob("*.npz")) and time.monotonic() < deadline:
            assert job.poll() is None, job.stderr and job.stderr.read().decode()
            time.sleep(0.05)
        os.kill(process_of_rank(job.pid, 1), signal.SIGKILL)
        job.communicate(timeout=100)
    assert job.returncode != 0
    done = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.npz")}
    assert 0 < len(done) < N

    script = Path(sys.executable).with_name("captum-pda")
    program = ["--no-python", str(script)] if script.exists() else ["-m", "captum_pda"]
    with launch(command("out", *efficient), program) as job:
        out, err = job.communicate(timeout=200)
    assert job.returncode == 0, err.decode()
    were = "was" if len(done) == 1 else "were"
    assert (
        f"Explained {N - len(done)} of {N} photos; {len(done)} {were} done before" in out.decode()
    )
    assert out.decode().count("Explained") == 1
    left = N - len(done)
    assert f"{left}/{left}" in err.decode()
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())

    assert main(command("alone", "--quiet", *efficient)) == 0
    found, expected = results(), results("alone")
    assert found.keys() == expected.keys()
    for name, bits in expected.items():
        np.testing.assert_array_equal(found[name], bits)


def test_a_table_and_an_index_of_all_photos_with_those_that_failed(photos):
    for folder in ("first", "second"):
        Path(folder).mkdir()
        shutil.copy(next(photos.rglob("*.png")), Path(folder) / "same.png")
    Path("first/broken.png").write_bytes(b"nothing")
    arguments = ["explain", "first", "second", *command("both", "--html", "--no-test")[2:]]
    arguments += ["--method", "efficient"]
    assert main(arguments) == 1
    with open("both/results.csv", newline="", encoding="utf-8") as file:
        rows = {row["captum_pda_photo"]: row for row in csv.DictReader(file)}
    assert rows.keys() == {"first/broken.png", "first/same.png", "second/same.png"}
    assert "is not a photo" in rows["first/broken.png"]["error"]
    row = rows["second/same.png"]
    assert (Path("both") / row["picture"]).is_file()
    assert row["picture"] == "second/same.png_evidence.png"
    assert row["unit"] == "bits"
    assert 0 < float(row["prediction"]) < 1
    assert re.match(r"without it: .* bits\)", row["strongest_for"])  # each number has its question
    page, _ = read_block_of("both/index.html")
    assert [name for name, _ in page["failed"]] == ["first/broken.png"]
    assert [entry["title"] for entry in page["entries"]] == ["first/same.png", "second/same.png"]
    # The same table comes from stored results.
    before = Path("both/results.csv").read_bytes()
    assert main(arguments) == 1
    assert Path("both/results.csv").read_bytes() == before


def test_a_table_holds_no_formulas(photos):
    Path("odd").mkdir()
    shutil.copy(next(photos.rglob("*.png")), "odd/=1+1.png")
    assert main(["explain", "odd", *command("table", "--quiet")[2:]]) == 0
    with open("table/results.csv", newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["captum_pda_photo"], row["picture"]) == (
        "odd/=1+1.png",
        "'=1+1.png_evidence.png",
    )
    assert float(row["prediction"]) > 0


def read_block_of(path):
    return unpack(read_block(Path(path).read_bytes(), "values"))
