"""Weights and photos made to fool the command: refused in one line, without running anything."""

import io
import os
import pickle
import time
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from PIL import EpsImagePlugin, Image
from safetensors.torch import save_file
from torch import nn

from captum_pda.cli.models import load_into, number_of_classes, read_checkpoint
from captum_pda.cli.photos import FORMATS, find_photos, read_photo
from captum_pda.cli.usage_errors import CommandError


class Trap:
    """Pickled, it ends the program when loaded."""

    def __reduce__(self):
        return (os._exit, (13,))


def torch_file(content, **options):
    packed = io.BytesIO()
    torch.save(content, packed, **options)
    return packed.getvalue()


def deflated(content):
    """The same archive with its members packed."""
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
    return packed.getvalue()


def path_tricks():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../etc/data.pkl", pickle.dumps(Trap()))
    return packed.getvalue()


HONEST = torch_file({"weight": torch.ones(3, 4)})
WEIGHTS = {
    "empty": b"",
    "text": b"these are no weights\n" * 50,
    "a pickle that runs code": pickle.dumps(Trap()),
    "a torch file that runs code": torch_file({"weight": Trap()}),
    "an old torch file that runs code": torch_file(
        {"weight": Trap()}, _use_new_zipfile_serialization=False
    ),
    "a whole module": torch_file(nn.Linear(2, 2)),
    "a module in a checkpoint": torch_file({"state_dict": nn.Linear(2, 2)}),
    "cut off": HONEST[:-100],
    "cut off at the front": HONEST[100:],
    "a zip bomb": deflated(torch_file({"weight": torch.zeros(2**23)})),
    "an archive with path tricks": path_tricks(),
    "a repeated number": torch_file({"weight": torch.zeros(1).expand(10**12)}),
    "names that are no text": torch_file({3: torch.zeros(1)}),
    "a list": torch_file([torch.zeros(1)]),
    "nothing": torch_file({}),
    "sparse weights": torch_file({"weight": torch.eye(3).to_sparse()}),
    "nested pickles": b"\x80\x02" + b"(" * 10**6 + b".",
}


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_none(tmp_path: Path, name: str, ending: str) -> None:
    path = tmp_path / f"weights.{ending}"
    path.write_bytes(WEIGHTS[name])
    start = time.process_time()
    with pytest.raises(CommandError) as caught:
        read_checkpoint(path)
    assert time.process_time() - start < 10
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("old", [False, True])
def test_honest_weights(tmp_path: Path, old: bool) -> None:
    path = tmp_path / "weights.pth"
    weights = {"model": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).state_dict()}
    path.write_bytes(torch_file(weights, _use_new_zipfile_serialization=not old))
    torch.testing.assert_close(read_checkpoint(path), dict(weights["model"]))


@pytest.mark.parametrize("shape", [(10**9, 0), (0,), ()])
def test_a_number_of_classes_must_be_paid_for(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Else a few bytes would ask for a layer of many gigabytes."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 5))
    state = model.state_dict() | {"1.bias": torch.zeros(shape)}
    save_file(state, tmp_path / "weights.safetensors")
    read = read_checkpoint(tmp_path / "weights.safetensors")
    assert number_of_classes(model, read) == 5
    with pytest.raises(CommandError, match="does not fit"):
        load_into(model, read, tmp_path / "weights.safetensors", "my model")
    honest = nn.Sequential(nn.Flatten(), nn.Linear(8, 7)).state_dict()
    assert number_of_classes(model, honest) == 7


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(out) run\n"


def test_photos_that_are_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has Ghostscript run an EPS file, whatever its name ends with."""
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("it was run"))
    path = tmp_path / "photo.png"
    path.write_bytes(EPS)
    with Image.open(path) as image:
        assert image.format == "EPS"  # Pillow itself would
    with pytest.raises(CommandError, match="not a photo"):
        read_photo(path)[0]
    path.rename(tmp_path / "photo.eps")
    with pytest.raises(CommandError, match="no photos"):
        find_photos(tmp_path)


def test_formats_are_pillows() -> None:
    Image.init()
    assert set(FORMATS) - {"AVIF", "JPEG2000", "WEBP"} <= set(Image.OPEN)


def test_a_text_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    """A picture of one pixel with a comment of 256 MB in 256 KB."""
    import struct

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    comment = b"Comment\x00\x00" + zlib.compress(bytes(2**28), 1)
    path = tmp_path / "photo.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
        + chunk(b"zTXt", comment)
        + chunk(b"IDAT", zlib.compress(b"\x00\x80"))
        + chunk(b"IEND", b"")
    )
    try:
        assert read_photo(path)[0].size == (1, 1)  # without the comment
    except CommandError as error:
        assert "cannot be read" in str(error)  # noqa: PT017 - older ones refuse it
