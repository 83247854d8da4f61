"""``captum-pda atlas``: regions of many photos, once each, whatever happens in between."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captum_pda.atlas import read_regions
from captum_pda.cli.main import main
from captum_pda.cli.models import load_classifier
from captum_pda.cli.photos import read_photo
from captum_pda.report.page_file import read_block, unpack

QUICK = ["--model", "tiny:five", "--device", "cpu", "--method", "efficient", "--window", "8"]
QUICK += ["--stride", "8", "--output", "out"]


@pytest.fixture(autouse=True)
def photos(photo_folder):
    random = np.random.default_rng(0)
    for name in ("cat/1.png", "cat/2.png", "cat/3 <b>.png", "honey_bee/1.png", "honey_bee/2.png"):
        path = photo_folder / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        values = random.integers(0, 255, (12, 15, 3), dtype=np.uint8)
        Image.fromarray(values).resize((60, 48)).save(path)
    return photo_folder / "photos"


def header_of(path):
    header, _ = unpack(read_block(Path(path).read_bytes(), "values"))
    return header


@pytest.mark.slow
def test_every_folder_of_a_class_gets_its_atlas(capsys):
    assert main(["atlas", "photos", *QUICK, "--groups", "1"]) == 0
    said = capsys.readouterr().out
    assert "Atlas of 'cat': 3 photos" in said
    cat = header_of("out/0003_cat.html")
    assert (cat["label"], cat["photos"]) == ("cat", 3)
    assert header_of("out/0002_honey_bee.html")["photos"] == 2
    assert Path("out/0003_cat.png").is_file()
    examples = [one for group in cat["groups"] for one in group["examples"]]
    assert examples
    for one in examples:
        # Each leads to the page of its photo.
        assert one["link"].startswith("./photos/cat/")
    assert Path("out/photos/cat/3 <b>.png_evidence.html").is_file()
    kept = read_regions("out/photos/cat/1.png_evidence.safetensors")
    assert {region.label for region in kept} == {"cat"}
    assert len([region for region in kept if region.bits > 0]) <= 4


def test_what_is_done_is_not_done_again(capsys, photos):
    assert main(["atlas", "photos", *QUICK, "--class", "dog", "--quiet"]) == 0
    files = sorted(Path("out/photos").rglob("*.safetensors"))
    before = [file.stat().st_mtime_ns for file in files]
    files[0].unlink()
    assert main(["atlas", "photos", *QUICK, "--class", "dog", "--quiet"]) == 0
    after = [file.stat().st_mtime_ns for file in files]
    assert after[1:] == before[1:]
    assert header_of("out/0004_dog.html")["photos"] == 5
    # Other settings are refused, and nothing is lost.
    assert main(["atlas", "photos", *QUICK, "--class", "cat", "--quiet"]) == 2
    assert 'targets was ["dog"] and is now ["cat"]' in capsys.readouterr().err


@pytest.mark.slow
def test_a_photo_that_fails_is_named_and_the_others_count(capsys, photos):
    (photos / "cat" / "broken.png").write_bytes(b"nothing")
    assert main(["atlas", "photos", *QUICK, "--quiet"]) == 1
    assert "broken.png" in capsys.readouterr().err
    assert header_of("out/0003_cat.html")["photos"] == 3


def test_a_class_is_asked_for_where_no_folder_names_one(capsys, photos):
    Image.open(photos / "cat" / "1.png").save("one.png")
    assert main(["atlas", "one.png", *QUICK]) == 2
    assert "--class" in capsys.readouterr().err
    assert not Path("out").exists()


@pytest.mark.slow
def test_two_processes_make_the_same_atlas(photos):
    assert main(["atlas", "photos", *QUICK, "--class", "cat", "--quiet", "--engine", "dense"]) == 0
    alone = Path("out/0003_cat.html").read_bytes()
    Path("out").rename("alone")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"]
    command += [sys.executable, "-m", "captum_pda", "atlas", "photos", *QUICK, "--class", "cat"]
    subprocess.run([*command, "--quiet", "--engine", "dense"], check=True, timeout=300)
    assert Path("out/0003_cat.html").read_bytes() == alone


def test_regions_of_a_feature_map_are_cut_out_where_they_lie_in_the_photo(photos):
    # Of raw outputs, however small, all regions are listed.
    layer = ["--method", "layer", "--class", "cat", "--quiet", "--output-kind", "raw"]
    command = ["atlas", "photos", "--model", "tiny:five", "--device", "cpu"]
    assert main([*command, "--output", "out", *layer]) == 0
    classifier = load_classifier("tiny:five")
    for name in ("cat/1.png", "cat/2.png"):
        image = classifier.preprocessing(read_photo(photos / name)[0])
        pixels = ((image[0] * 0.25 + 0.5) * 255).round().byte().permute(1, 2, 0).numpy()
        kept = read_regions(f"out/photos/{name}_evidence.safetensors")
        assert kept
        for region in kept:
            # A place of the 15 x 15 map covers two to four of the photo's 32 pixels.
            (top, left), (height, width) = region.corner, region.shape
            assert all(2 <= side <= 4 for side in region.shape)
            cut = Image.fromarray(pixels[top : top + height, left : left + width])
            expected = np.asarray(cut.resize(region.crop.shape[:2], Image.Resampling.BICUBIC))
            np.testing.assert_allclose(region.crop.astype(int), expected.astype(int), atol=2)
        assert max(max(region.corner) for region in kept) > 15
