"""X-rays, scans and microscopy: values reach the model's transform as they are in the file."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captum_pda.cli import results
from captum_pda.cli.main import main
from captum_pda.cli.photos import find_photos, intensity_option, read_photo
from captum_pda.cli.usage_errors import CommandError, UsageError
from captum_pda.report.page_file import read_block, unpack

#: Models of one channel; the last transform remembers what it got.
OWN = """
import numpy as np
import torch
from torch import nn

GOT = []


def convolution(dims):
    kind = {2: nn.Conv2d, 3: nn.Conv3d}[dims]
    pool = {2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}[dims]
    torch.manual_seed(0)
    return nn.Sequential(kind(1, 4, 3, padding=1), nn.Tanh(), pool(2), nn.Flatten(),
                         nn.Linear(4 * 2**dims, 3))


def values(image):
    GOT.append(image)
    return torch.from_numpy(np.array(image, dtype=np.float32))[None] / 4096


def flat(): return convolution(2), values, ("a", "b", "c")
def deep(): return convolution(3), values, ("a", "b", "c")


def halved(image, affine):
    assert affine.shape == (4, 4)
    return values(image)[:, ::2, ::2, ::2], affine @ np.diag([2.0, 2.0, 2.0, 1.0])


def half(): return {"model": convolution(3), "transform": halved}
class Normalised:
    mean, std = (0.5,), (0.25,)

    def __init__(self, largest):
        self.largest = largest

    def __call__(self, image):
        return (4096 * values(image) / self.largest - 0.5) / 0.25


def raw(): return convolution(2), Normalised(1)
def scaled(): return convolution(2), Normalised(4096)
def lost(): return {"model": convolution(3), "transform": lambda image: values(image)[:, ::2]}
"""
CODES = np.random.default_rng(0).integers(0, 4096, (24, 20)).astype(np.uint16)


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scans.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "scans", raising=False)
    return tmp_path


def explain(file, model, *options):
    quick = ("--method", "efficient", "--window", "8", "--stride", "8", "--device", "cpu")
    return main(["explain", file, "--model", model, *quick, "--quiet", *options])


def values_of(path, **options):
    image = read_photo(Path(path), **options).image
    return np.asarray(image)


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_sixteen_bits_are_unchanged(own, ending):
    Image.fromarray(CODES).save(f"xray.{ending}")
    image = read_photo(Path(f"xray.{ending}")).image
    assert isinstance(image, Image.Image)
    assert image.mode == "F"
    np.testing.assert_array_equal(np.asarray(image), CODES)
    assert explain(f"xray.{ending}", "scans:flat") == 0
    got = sys.modules["scans"].GOT
    assert got
    for image in got:
        np.testing.assert_array_equal(np.asarray(image), CODES)


def test_a_model_of_photos_asks_for_black_and_white(photo_folder, capsys):
    Image.fromarray(CODES).save("xray.png")
    Path("plain.py").write_text("import tiny\ndef make(): return tiny.network()\n")
    assert explain("xray.png", "plain:make") == 1
    error = capsys.readouterr().err
    assert f"values from {CODES.min()} to {CODES.max()}" in error
    assert "--intensity LOW HIGH" in error
    assert explain("xray.png", "plain:make", "--intensity", "0", "4095") == 0


def test_values_that_a_transform_should_have_scaled_are_noted(own, capsys):
    Image.fromarray(CODES).save("xray.png")
    for model, n_notes in (("scaled", 0), ("raw", 1)):
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            assert explain("xray.png", f"scans:{model}", "--no-test") == 0
        assert capsys.readouterr().err.count("of this image are far larger") == n_notes


def test_intensity_maps_values_to_black_and_white(own):
    Image.fromarray(CODES).save("xray.png")
    low, high = 500, 3000
    expected = np.round(255 * ((CODES.astype(float) - low) / (high - low)).clip(0, 1))
    np.testing.assert_array_equal(values_of("xray.png", intensity=(low, high)), expected)
    full = np.round(CODES / 65535 * 255)
    np.testing.assert_array_equal(values_of("xray.png", intensity="full"), full)
    with pytest.raises(CommandError, match="no window of its own"):
        read_photo(Path("xray.png"), intensity="file")
    assert intensity_option(["-1000", "400"]) == (-1000, 400)
    assert intensity_option(["file"]) == "file"
    for wrong in (["4"], ["4", "4"], ["a", "b"], ["1", "2", "3"], ["nan", "1"]):
        with pytest.raises(UsageError, match="must be the value of black"):
            intensity_option(wrong)


def test_low_values_that_are_bright_are_mirrored(own):
    Image.fromarray(CODES).save("white_is_zero.tif", tiffinfo={262: 0})
    np.testing.assert_array_equal(values_of("white_is_zero.tif"), 65535.0 - CODES)


def test_what_cannot_be_read_faithfully_is_refused(own):
    grey = Image.fromarray((CODES >> 4).astype(np.uint8))
    grey.convert("CMYK").save("print.tif")
    grey.save("pages.tif", save_all=True, append_images=[grey.rotate(180)])
    Image.fromarray(CODES.astype(np.int32) * 2**13 + 1).save("deep.tif")
    for name, words in (
        ("print.tif", "mode CMYK.*convert it to RGB"),
        ("pages.tif", "2 pages.*--frame N"),
        ("deep.tif", r"beyond 2\^24.*--intensity"),
    ):
        with pytest.raises(CommandError, match=words):
            read_photo(Path(name))
    second = np.asarray(grey.rotate(180))
    np.testing.assert_array_equal(values_of("pages.tif", frame=1), second)
    with pytest.raises(CommandError, match="from 0 to 1"):
        read_photo(Path("pages.tif"), frame=2)


def test_sixteen_bits_of_each_colour_are_not_cut_in_silence(own):
    tifffile = pytest.importorskip("tifffile")
    colours = np.stack([CODES] * 3, axis=2) * 16
    tifffile.imwrite("colours.tif", colours, photometric="rgb")
    with pytest.raises(CommandError, match=r"16 bits for each colour.*--intensity full"):
        read_photo(Path("colours.tif"))
    np.testing.assert_array_equal(values_of("colours.tif", intensity="full"), colours >> 8)


def test_signed_bytes_are_not_taken_for_unsigned_ones(own):
    tifffile = pytest.importorskip("tifffile")
    signed = (CODES >> 4).astype(np.int8)
    tifffile.imwrite("signed.tif", signed, photometric="minisblack")
    np.testing.assert_array_equal(values_of("signed.tif"), signed)


def test_values_that_pillow_scales_are_refused(own):
    for name, codes, largest in (("a.pgm", CODES, 4095), ("b.ppm", CODES.reshape(8, -1), 65535)):
        kind, (height, width) = (b"P5", codes.shape) if name == "a.pgm" else (b"P6", (8, 20))
        head = b"%s\n%d %d\n%d\n" % (kind, width, height, largest)
        Path(name).write_bytes(head + codes.astype(">u2").tobytes())
        with pytest.raises(CommandError, match="Pillow scales the values"):
            read_photo(Path(name))
    Path("c.pgm").write_bytes(b"P5\n20 24\n65535\n" + CODES.astype(">u2").tobytes())
    np.testing.assert_array_equal(values_of("c.pgm"), CODES)


def test_a_model_of_one_channel_gets_one(own):
    Image.fromarray(np.stack([(CODES >> 4).astype(np.uint8)] * 3, axis=2)).save("colour.png")
    assert explain("colour.png", "scans:flat") == 0
    assert {image.mode for image in sys.modules["scans"].GOT} == {"L"}


# DICOM


def dicom(name, stored, **fields):
    pydicom = pytest.importorskip("pydicom")
    from pydicom.dataset import Dataset, FileMetaDataset

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    file = Dataset()
    file.file_meta = meta
    is_colour = stored.shape[-1] == 3
    bits = 8 * stored.dtype.itemsize
    file.Rows, file.Columns = stored.shape[-3:-1] if is_colour else stored.shape[-2:]
    file.SamplesPerPixel = 3 if is_colour else 1
    file.PhotometricInterpretation = "RGB" if is_colour else "MONOCHROME2"
    if is_colour:
        file.PlanarConfiguration = 0
    elif stored.ndim > 2:
        file.NumberOfFrames = len(stored)
    file.BitsAllocated, file.BitsStored, file.HighBit = bits, bits, bits - 1
    file.PixelRepresentation = int(stored.dtype.kind == "i")
    file.PixelData = stored.tobytes()
    for field, value in fields.items():
        setattr(file, field, value)
    file.save_as(name, enforce_file_format=True)


def test_dicom_values_have_the_unit_of_their_rescale_slope(own):
    dicom("ct.dcm", CODES, RescaleSlope=2, RescaleIntercept=-1024, BitsStored=12, HighBit=11)
    np.testing.assert_array_equal(values_of("ct.dcm"), CODES * 2.0 - 1024)
    assert explain("ct.dcm", "scans:flat", "--output", "out/ct.png") == 0
    np.testing.assert_array_equal(np.asarray(sys.modules["scans"].GOT[0]), CODES * 2.0 - 1024)
    # DICOM files often have no ending, or a number in its place.
    for name in ("IM0001", "1.2.840.5", "slice.IMA"):
        Path(name).write_bytes(Path("ct.dcm").read_bytes())
    for name in ("notes", "DICOMDIR"):
        Path(name).write_bytes(bytes(128) + (b"DICM" if name == "DICOMDIR" else b"none"))
    names = {path.name for path in find_photos(Path()) if path.parent == Path()}
    assert names == {"ct.dcm", "IM0001", "1.2.840.5", "slice.IMA"}
    np.testing.assert_array_equal(values_of("1.2.840.5"), CODES * 2.0 - 1024)


def test_dicom_fields_may_be_empty(own):
    empty = dict.fromkeys(("RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth"))
    dicom("ct.dcm", CODES, BitsStored=12, HighBit=11, **empty)
    np.testing.assert_array_equal(values_of("ct.dcm"), CODES)
    dicom("half.dcm", CODES, WindowCenter=40)
    for name in ("ct.dcm", "half.dcm"):
        with pytest.raises(CommandError, match=r"no window of its own; use --intensity LOW HIGH"):
            read_photo(Path(name), intensity="file")


def test_dicom_values_that_cannot_be_kept_are_refused(own):
    dicom("deep.dcm", CODES.astype(np.uint32) * 2**18 + 1)
    with pytest.raises(CommandError, match=r"beyond 2\^24.*--intensity"):
        read_photo(Path("deep.dcm"))
    dicom("high.dcm", CODES << 4, BitsStored=12, HighBit=15)
    with pytest.raises(CommandError, match="not keep its values in the lowest bits"):
        read_photo(Path("high.dcm"))


def test_a_place_that_cannot_be_is_not_taken_from_dicom(own):
    place = {"ImagePositionPatient": [0, 0, 0], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
    for spacing, is_known in (([1, 2], True), ([0, 2], False)):
        dicom("slice.dcm", CODES, PixelSpacing=spacing, **place)
        assert (read_photo(Path("slice.dcm")).affine is not None) == is_known


def series(folder, heights, **fields):
    """Slices at these heights, in the order of their names."""
    Path(folder).mkdir(parents=True)
    for number, height in enumerate(heights):
        tilt = 1e-7 * number  # scanners round
        turn = {"ImageOrientationPatient": [1, tilt, 0, 0, 1, 0], "PixelSpacing": [0.5, 0.25]}
        place = {} if height is None else {"ImagePositionPatient": [-10, -20, height]}
        dicom(f"{folder}/{number}", CODES + np.uint16(number), **turn, **place, **fields)


def test_a_folder_of_slices_is_a_volume(own, capsys, monkeypatch):
    heights = [8, 5, 14, 11, 17, 20, 23, 26, 29]
    series("patients/first/ct", heights, SeriesInstanceUID="1.2.3", RescaleSlope=2)
    Path("patients/first/ct/notes.txt").write_text("no slice")
    photo = read_photo(Path("patients/first/ct"))
    expected = np.stack([CODES + number for number in np.argsort(heights)]) * 2.0
    np.testing.assert_array_equal(photo.image, expected)
    np.testing.assert_allclose(photo.affine @ [1, 2, 4, 1], [10 - 1, 20 - 1, 8, 1])
    np.testing.assert_array_equal(values_of("patients/first/ct", frame=1), CODES * 2.0)
    series("patients/second", [None] * 3, SeriesInstanceUID="1.2.4")
    assert find_photos(Path("patients"), series=True) == [
        Path("patients/first/ct"),
        Path("patients/second"),
    ]
    # Without the option a folder holds photos, and the error of a model of volumes names it.
    assert explain("patients/first", "scans:deep", "--output", "out") == 1
    assert "--series reads a folder of DICOM slices as one" in capsys.readouterr().err
    assert explain("patients/first/ct", "scans:deep", "--series", "--no-test") == 0
    with np.load("ct_evidence.npz") as file:
        assert file["bits"].shape == (1, 9, *CODES.shape)
    assert explain("patients/first", "scans:deep", "--series", "--output", "all", "--no-test") == 0
    assert Path("all/ct_evidence.png").is_file()
    Path("scans.py").rename("patients/first/ct/scans.py")
    monkeypatch.chdir("patients/first/ct")
    assert explain(".", "scans:deep", "--series", "--no-test", "--raw", "nifti") == 0
    assert Path("ct_evidence.nii.gz").is_file()


def test_slices_that_are_not_one_volume_are_refused(own):
    series("mixed", [1, 2], SeriesInstanceUID="1.2.3")
    dicom("mixed/9", CODES, SeriesInstanceUID="1.2.4")
    series("turned", [1, 2], SeriesInstanceUID="1.2.3")
    dicom("turned/9", CODES, SeriesInstanceUID="1.2.3", ImageOrientationPatient=[0, 1, 0, 1, 0, 0])
    series("phases", [1, 2, 1], SeriesInstanceUID="1.2.3")
    series("lost", [None, None], SeriesInstanceUID="1.2.3")
    Path("empty").mkdir()
    for folder, words in (
        ("mixed", "not slices of one series"),
        ("turned", "not slices of one series"),
        ("phases", "several slices of one place"),
        ("lost", "several slices of one place"),
        ("empty", "a folder without DICOM files"),
    ):
        with pytest.raises(CommandError, match=words):
            read_photo(Path(folder))
    series("numbered", [None, None], SeriesInstanceUID="1.2.3")
    import pydicom

    for name, number in (("0", 2), ("1", 1)):
        file = pydicom.dcmread(f"numbered/{name}")
        file.InstanceNumber = number
        file.save_as(f"numbered/{name}")
    np.testing.assert_array_equal(values_of("numbered")[:, 0, 0], CODES[0, 0] + [1, 0])
    assert read_photo(Path("numbered")).affine is None


def test_dicom_windows(own):
    window = {"WindowCenter": [40, 0], "WindowWidth": [400, 1], "RescaleIntercept": -1024}
    dicom("ct.dcm", CODES, RescaleSlope=1, **window)
    x, centre, width = CODES - 1024.0, 40, 400
    linear = ((x - (centre - 0.5)) / (width - 1) + 0.5).clip(0, 1)  # DICOM PS3.3, C.11.2.1.2.1
    np.testing.assert_array_equal(values_of("ct.dcm", intensity="file"), np.round(255 * linear))
    dicom("exact.dcm", CODES, RescaleSlope=1, VOILUTFunction="LINEAR_EXACT", **window)
    exact = ((x - centre) / width + 0.5).clip(0, 1)
    np.testing.assert_array_equal(values_of("exact.dcm", intensity="file"), np.round(255 * exact))
    dicom("smooth.dcm", CODES, RescaleSlope=1, VOILUTFunction="SIGMOID", **window)
    smooth = 1 / (1 + np.exp(-4 * (x - centre) / width))
    np.testing.assert_array_equal(values_of("smooth.dcm", intensity="file"), np.round(255 * smooth))


def test_a_dicom_table_of_values(own):
    pydicom = pytest.importorskip("pydicom")
    table = pydicom.Dataset()
    table.LUTDescriptor, table.LUTData = [4096, 0, 12], list(range(4095, -1, -1))
    table["LUTDescriptor"].VR = table["LUTData"].VR = "US"
    dicom("xray.dcm", CODES, VOILUTSequence=[table], BitsStored=12, HighBit=11)
    expected = np.round(255 * (4095 - CODES.astype(float)) / 4095)
    np.testing.assert_array_equal(values_of("xray.dcm", intensity="file"), expected)


def test_monochrome1_is_mirrored(own):
    dicom("xray.dcm", CODES, PhotometricInterpretation="MONOCHROME1", BitsStored=12, HighBit=11)
    np.testing.assert_array_equal(values_of("xray.dcm"), 4095.0 - CODES)
    shown = values_of("xray.dcm", intensity="full")
    np.testing.assert_array_equal(shown, np.round(255 * (1 - CODES / 4095)))


def test_colour_and_8_bit_dicom_are_photos(own):
    colours = np.stack([CODES >> 4, CODES >> 5, CODES >> 6], axis=2).astype(np.uint8)
    dicom("skin.dcm", colours)
    np.testing.assert_array_equal(values_of("skin.dcm"), colours)
    dicom("grey.dcm", colours[..., 0])
    image = read_photo(Path("grey.dcm")).image
    assert image.mode == "L"
    np.testing.assert_array_equal(np.asarray(image), colours[..., 0])


def test_frames_of_dicom_are_a_volume_with_its_place(own):
    pydicom = pytest.importorskip("pydicom")
    frames = np.stack([CODES, CODES[::-1], CODES[:, ::-1]]).astype(np.int16)

    def plane(z):
        position, group = pydicom.Dataset(), pydicom.Dataset()
        position.ImagePositionPatient = [-10, -20, z]
        group.PlanePositionSequence = [position]
        return group

    turn, measures, shared = (pydicom.Dataset() for _ in range(3))
    turn.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    measures.PixelSpacing = [0.5, 0.25]  # between rows, between columns
    shared.PlaneOrientationSequence, shared.PixelMeasuresSequence = [turn], [measures]
    groups = {
        "SharedFunctionalGroupsSequence": [shared],
        "PerFrameFunctionalGroupsSequence": [plane(5), plane(8), plane(11)],
    }
    dicom("volume.dcm", frames, **groups)
    photo = read_photo(Path("volume.dcm"))
    np.testing.assert_array_equal(photo.image, frames)
    # Frame 1, row 2, column 4: left and posterior of DICOM become right and anterior.
    np.testing.assert_allclose(photo.affine @ [1, 2, 4, 1], [10 - 1, 20 - 1, 8, 1])
    np.testing.assert_array_equal(values_of("volume.dcm", frame=1), frames[1])
    groups["PerFrameFunctionalGroupsSequence"] = [plane(5), plane(8), plane(20)]
    dicom("uneven.dcm", frames, **groups)
    assert read_photo(Path("uneven.dcm")).affine is None


def test_dicom_that_cannot_be_decoded_names_the_next_step(own):
    pydicom = pytest.importorskip("pydicom")
    dicom("xray.dcm", CODES)
    file = pydicom.dcmread("xray.dcm")
    file.file_meta.TransferSyntaxUID = pydicom.uid.JPEGLSLossless
    file.PixelData = pydicom.encaps.encapsulate([b"\0" * 8])
    file["PixelData"].is_undefined_length = True
    file.save_as("packed.dcm")
    with pytest.raises(CommandError, match=r"cannot be decoded.*pylibjpeg"):
        read_photo(Path("packed.dcm"))
    dicom("palette.dcm", (CODES >> 4).astype(np.uint8), PhotometricInterpretation="PALETTE COLOR")
    with pytest.raises(CommandError, match="PALETTE COLOR; convert it to RGB"):
        read_photo(Path("palette.dcm"))
    Path("text.dcm").write_text("no image at all")
    with pytest.raises(CommandError, match=r"text\.dcm"):
        read_photo(Path("text.dcm"))


# NIfTI

AFFINE = np.array([[-2.0, 0, 0, 90], [0, 0, 3, -120], [0, 1.5, 0, -70], [0, 0, 0, 1]])


def nifti(name, shape=(16, 12, 14), scale=1.0):
    nibabel = pytest.importorskip("nibabel")
    values = np.random.default_rng(1).integers(0, 4096, shape).astype(np.int16)
    scan = nibabel.Nifti1Image(values, AFFINE)
    scan.header.set_slope_inter(scale, 0)
    nibabel.save(scan, name)
    return np.asarray(nibabel.load(name).dataobj)


@pytest.mark.parametrize("name", ["scan.nii", "scan.nii.gz"])
def test_nifti_values_and_affine(own, name):
    values = nifti(name, scale=0.5)
    photo = read_photo(Path(name))
    np.testing.assert_array_equal(photo.image, values)
    np.testing.assert_array_equal(photo.affine, AFFINE)
    assert find_photos(Path()) == [Path(name)]
    with pytest.raises(CommandError, match="1 frame; leave out --frame"):
        read_photo(Path(name), frame=1)


def test_a_volume_is_explained_and_its_map_has_its_affine(own):
    nibabel = pytest.importorskip("nibabel")
    nifti("scan.nii.gz")
    assert explain("scan.nii.gz", "scans:deep", "--raw", "nifti", "--target", "1", "--html") == 0
    header, _ = unpack(read_block(Path("scan.nii.gz_evidence.html").read_bytes(), "values"))
    assert (header["title"], header["spacing"]) == ("scan.nii.gz", [2.0, 1.5, 3.0])
    written = nibabel.load("scan.nii.gz_evidence.nii.gz")
    np.testing.assert_array_equal(written.affine, AFFINE)
    with np.load("scan.nii.gz_evidence.npz") as file:
        bits, settings = file["bits"][0], json.loads(str(file["settings"]))
    assert bits.shape == (16, 12, 14)
    assert np.abs(bits).max() > 0
    np.testing.assert_array_equal(written.get_fdata(dtype=np.float32), bits)
    assert settings["affine"] == AFFINE.tolist()
    # Its own file is replaced, another's is not.
    assert explain("scan.nii.gz", "scans:deep", "--raw", "nifti", "--target", "1") == 0
    nifti("scan.nii.gz_evidence.nii.gz")
    assert explain("scan.nii.gz", "scans:deep", "--raw", "nifti", "--target", "1") == 2


def test_the_picture_has_voxels_of_the_scan_s_shape(own, monkeypatch):
    nifti("scan.nii.gz")
    drawn = []
    monkeypatch.setattr(results, "write_figure", lambda path, figure, _: drawn.append(figure))
    assert explain("scan.nii.gz", "scans:deep") == 0
    ratios = {axes.get_aspect() for axes in drawn[0].axes if axes.images}
    mm = np.array([2.0, 1.5, 3.0])
    assert ratios == {mm[1] / mm[2], mm[0] / mm[2], mm[0] / mm[1]}


def test_a_transform_that_resamples_says_where(own, capsys):
    nibabel = pytest.importorskip("nibabel")
    nifti("scan.nii.gz")
    some = ("--raw", "nifti", "--window", "4", "--stride", "4")
    assert explain("scan.nii.gz", "scans:half", *some, "--classes", "2") == 0
    written = nibabel.load("scan.nii.gz_evidence.nii.gz")
    assert written.shape == (8, 6, 7, 2)
    np.testing.assert_allclose(written.affine[:, :3], 2 * AFFINE[:, :3])
    assert explain("scan.nii.gz", "scans:lost", *some) == 1
    assert "return (tensor, affine)" in capsys.readouterr().err


def test_scans_that_are_no_volume_are_refused(own, capsys):
    nifti("time.nii.gz", (6, 5, 4, 3))
    with pytest.raises(CommandError, match=r"shape \(6, 5, 4, 3\).*four_to_three"):
        read_photo(Path("time.nii.gz"))
    nifti("one.nii.gz", (6, 5, 4, 1))
    assert read_photo(Path("one.nii.gz")).image.shape == (6, 5, 4)
    assert main(["explain", "one.nii.gz", "--quiet"]) == 1
    assert "volume of 6 x 5 x 4; give --model package.module:function" in capsys.readouterr().err


def test_a_missing_package_is_named(own, monkeypatch):
    dicom("xray.dcm", CODES)
    nifti("scan.nii")
    for name, package in (("xray.dcm", "pydicom"), ("scan.nii", "nibabel")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(CommandError, match=r'pip install "captum_pda\[medical\]"'):
            read_photo(Path(name))
