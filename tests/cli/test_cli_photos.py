"""Photos of every kind are read, and shown to a model as RGB."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from captum_pda.cli.photos import find_photos, read_photo
from captum_pda.cli.usage_errors import CommandError


def gradient_photo(width=12, height=8):
    """Red grows to the right, green downwards."""
    red = np.linspace(0, 255, width)[None].repeat(height, axis=0)
    green = np.linspace(0, 255, height)[:, None].repeat(width, axis=1)
    stacked = np.stack([red, green, np.full_like(red, 60)], axis=2)
    return Image.fromarray(stacked.astype(np.uint8))


def pixels(path):
    photo = read_photo(path).image
    assert photo.mode in ("RGB", "L")
    return np.asarray(photo.convert("RGB")).astype(int)


@pytest.mark.parametrize(
    ("mode", "ending", "tolerance"),
    [
        ("RGB", "png", 0),
        ("RGB", "jpg", 40),
        ("RGBA", "png", 0),
        ("RGB", "webp", 60),
        ("RGB", "bmp", 0),
        ("P", "png", 60),
        ("P", "gif", 60),
    ],
)
def test_colours_survive(tmp_path, mode, ending, tolerance):
    photo, path = gradient_photo(), tmp_path / f"photo.{ending}"
    photo.convert(mode).save(path)
    assert np.abs(pixels(path) - np.asarray(photo).astype(int)).max() <= tolerance


@pytest.mark.parametrize("mode", ["1", "L", "LA"])
def test_grey_survives(tmp_path, mode):
    grey = np.array([[0, 255], [255, 0]], dtype=np.uint8)
    Image.fromarray(grey).convert(mode).save(tmp_path / "photo.png")
    found = pixels(tmp_path / "photo.png")
    np.testing.assert_array_equal(found, grey[..., None].repeat(3, axis=2).astype(int))


def test_transparency_is_laid_on_white(tmp_path):
    photo = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    photo.putpixel((1, 0), (255, 0, 0, 255))
    photo.save(tmp_path / "photo.png")
    np.testing.assert_array_equal(pixels(tmp_path / "photo.png")[0], [[255, 255, 255], [255, 0, 0]])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_the_right_way_up(tmp_path, orientation):
    photo = gradient_photo()
    turned = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = photo.transpose(turned[orientation]) if orientation in turned else photo
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "photo.png", exif=exif)
    np.testing.assert_array_equal(pixels(tmp_path / "photo.png"), np.asarray(photo))


def png_that_claims(width, height):
    """A file of some bytes whose header promises a huge picture."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"0"))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a photo in a format that Pillow reads; convert it"),
        (b"<svg/>", "not a photo in a format"),
        (png_that_claims(20, 20), r"cannot be read \(.*\); it may be damaged"),
        (png_that_claims(100_000, 100_000), "is too large .*; scale it down"),
    ],
)
def test_broken_photos_are_named(tmp_path, content, message):
    path = tmp_path / "photo.png"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=message) as raised:
        read_photo(path)[0]
    assert str(path) in str(raised.value)


def test_photos_that_are_programs(tmp_path, monkeypatch):
    """Pillow has Ghostscript run an EPS file, whatever its name ends with."""
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("it was run"))
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(out) run\n"
    (tmp_path / "photo.png").write_bytes(eps)
    with pytest.raises(CommandError, match="not a photo"):
        read_photo(tmp_path / "photo.png")
    (tmp_path / "photo.png").rename(tmp_path / "photo.eps")
    with pytest.raises(CommandError, match="no photos"):
        find_photos(tmp_path)


def test_missing_photos_and_folders(tmp_path):
    with pytest.raises(CommandError, match="there is no photo at"):
        read_photo(tmp_path / "photo.png")[0]
    with pytest.raises(CommandError, match="is a folder"):
        read_photo(tmp_path)[0]
    with pytest.raises(CommandError, match="there are no photos in"):
        find_photos(tmp_path)
    with pytest.raises(CommandError, match="there is no folder"):
        find_photos(tmp_path / "nowhere")


def test_finding_photos(tmp_path):
    (tmp_path / "deeper").mkdir()
    for name in ("b.png", "a.JPG", "deeper/c.tif", "notes.txt", ".hidden.png"):
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in find_photos(tmp_path)]
    assert found == ["a.JPG", "b.png", "deeper/c.tif"]
