"""``captum-pda explain --html``: a page of each photo, and an index of a folder."""

from pathlib import Path

from PIL import Image

from captum_pda.cli.main import main
from captum_pda.report.index import read_summary
from captum_pda.report.page_file import read_block, unpack

QUICK = ["--model", "tiny:five", "--device", "cpu", "--window", "16", "--stride", "16", "--quiet"]
QUICK += ["--method", "efficient"]


def explain(*arguments):
    return main(["explain", *QUICK, *arguments, "--html"])


def test_a_photo_gets_a_page_next_to_its_picture(photo_folder):
    assert explain("cat.png", "--target", "bee", "--contrast", "dog", "ant") == 0
    page = Path("cat.png_evidence.html").read_bytes()
    header, _ = unpack(read_block(page, "values"))
    assert header["title"] == "cat.png"
    assert header["labels"][header["first"]] == "dog"
    assert header["labels"][header["second"]] == "ant"
    assert header["methods"][0]["name"] == "EfficientPDA"
    settings = dict(header["settings"])
    assert settings["model"] == "tiny:five"
    assert len(settings["photo sha256"]) == 64
    # The same command may write its own page again.
    assert explain("cat.png") == 0


def test_a_folder_gets_an_index_of_all_its_pages(photo_folder, capsys):
    photos = photo_folder / "photos"
    for name in ("cat/1 <b>.png", "honey_bee/2.png", "3.png"):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        Image.open("cat.png").save(photos / name)
    assert explain("photos", "--output", "out") == 0
    header, _ = unpack(read_block(Path("out/index.html").read_bytes(), "values"))
    entries = {entry["title"]: entry for entry in header["entries"]}
    assert entries["cat/1 <b>.png"]["href"] == "./cat/1%20%3Cb%3E.png_evidence.html"
    assert {title: entry["truth"] for title, entry in entries.items()} == {
        "cat/1 <b>.png": "cat",
        "honey_bee/2.png": "honey bee",
        "3.png": None,
    }
    # What is done is not done again, but listed; a page that is gone is made again.
    Path("out/3.png_evidence.html").unlink()
    before = Path("out/honey_bee/2.png_evidence.html").stat().st_mtime_ns
    assert explain("photos", "--output", "out") == 0
    assert Path("out/honey_bee/2.png_evidence.html").stat().st_mtime_ns == before
    assert len(unpack(read_block(Path("out/index.html").read_bytes(), "values"))[0]["entries"]) == 3
    assert read_summary(Path("out/3.png_evidence.html"))[0]["title"] == "3.png"
