"""Reading image files without changing their values, and finding them in folders.

X-rays, scans and microscopy have more than 8 bits: 16-bit PNG and TIFF, DICOM and NIfTI. Their
values are passed on unchanged, unless ``--intensity`` maps them to black and white. Files that
cannot be read faithfully are refused.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from captum_pda.cli.usage_errors import CommandError, UsageError, one_line, optional_module
from captum_pda.files import counted

Array = npt.NDArray[Any]
Intensity = tuple[float, float] | str | None

#: Formats that contain pixels only. Pillow reads others that are programs: EPS files are run by
#: Ghostscript.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TGA", "TIFF", "WEBP")
DICOM_ENDINGS, NIFTI_ENDINGS = (".dcm", ".dicom"), (".nii", ".nii.gz")
MEDICAL_EXTRA = '"captum_pda[medical]"'
#: The description of NIfTI files that the command writes.
NIFTI_NOTE = b"captum_pda evidence"
#: Pillow's modes with 8 bits for each channel and known colours.
PLAIN_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "YCbCr")
#: Fields of DICOM that each frame may have of its own.
FRAME_FIELDS = ["RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth"]
FRAME_FIELDS += ["VOILUTFunction", "ImagePositionPatient", "ImageOrientationPatient"]
FRAME_FIELDS += ["PixelSpacing", "SliceThickness"]
#: Fields that are the same in all slices of a series.
SERIES_FIELDS = ["SeriesInstanceUID", "Rows", "Columns", "NumberOfFrames", "BitsStored", "HighBit"]
SERIES_FIELDS += ["PhotometricInterpretation", "PixelRepresentation"]
#: Slices whose positions differ by more than this from equal steps, in mm, have no affine.
POSITION_TOLERANCE = 0.01


class Photo(NamedTuple):
    """An image file."""

    #: Of mode RGB or L (8 bits) or F (other values), or a volume of float32.
    image: Image.Image | Array
    sha256: str  # of the bytes that it was read from
    affine: Array | None = None  # from indices to mm (right, anterior, superior), where known


class _Values(NamedTuple):
    """Values that are not those of an 8-bit photo, in the file's unit."""

    array: Array  # (rows, columns), or a volume
    full: tuple[float, float] | None = None  # the lowest and highest that the file could hold
    voi: Callable[[], Array] | None = None  # applies the file's own window: 0 (black) to 1
    is_inverted: bool = False  # low values are bright
    affine: Array | None = None


def read_photo(path: Path, intensity: Intensity = None, frame: int | None = None) -> Photo:
    """Read an image file, or a folder with the slices of a DICOM series.

    Transparent photos are put on white, those with an EXIF orientation are rotated, and animations
    give their first frame. If low values are bright (MONOCHROME1 of DICOM), they are inverted.
    ``intensity`` maps values of more than 8 bits to 0 to 255; see ``--intensity``.
    """
    slices = dicom_slices(path)
    if not path.is_file() and not slices:
        kind = ", which is a folder without DICOM files" if path.is_dir() else ""
        raise CommandError(f"there is no photo at {path}{kind}; check the name")
    try:
        contents = [one.read_bytes() for one in slices or [path]]
        content = contents[0]
        sha256 = hashlib.sha256(b"".join(contents)).hexdigest()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata that is not used
            if slices or content[128:132] == b"DICM" or path.suffix.lower() in DICOM_ENDINGS:
                found = _read_dicom(path, contents, frame, keep_bytes=intensity is None)
            elif path.name.lower().endswith(NIFTI_ENDINGS):
                _check_frame(path, frame, 1)
                found = _read_nifti(path)
            else:
                found = _read_picture(path, content, frame, intensity)
            if isinstance(found, Image.Image):
                return Photo(found, sha256)
            array = _mapped(path, found, intensity)
            image = array.astype(np.float32) if array.ndim > 2 else Image.fromarray(array)
            return Photo(image, sha256, found.affine)
    except (CommandError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise CommandError(
            f"{path} is not a photo in a format that Pillow reads; convert it to JPEG or PNG, or "
            "values of more than 8 bits to TIFF of float32"
        ) from None
    except Image.DecompressionBombError as error:
        raise CommandError(f"{path} is too large ({one_line(error)}); scale it down") from error
    except Exception as error:  # Every decoder fails in its own way.
        raise CommandError(
            f"{path} cannot be read ({one_line(error)}); it may be damaged: open and save it anew"
        ) from error


def _check_frame(path: Path, frame: int | None, count: int) -> None:
    if frame is not None and frame >= count:
        step = f"--frame must be from 0 to {count - 1}" if count > 1 else "leave out --frame"
        raise CommandError(f"{path} has {counted(count, 'frame')}; {step}")


# Files in a folder


def _formats() -> list[str]:
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def find_photos(folder: Path, series: bool = False) -> list[Path]:
    """All image files in a folder and its subfolders, in order, by their endings, and other DICOM
    files. Or with ``series`` all folders with DICOM files."""
    if not folder.is_dir():
        raise CommandError(f"there is no folder {folder}; check the name")
    if series:
        found = [one for one in sorted([folder, *folder.rglob("*")]) if dicom_slices(one)]
    else:
        formats = _formats()
        pillow = (end for end, kind in Image.registered_extensions().items() if kind in formats)
        endings = (*pillow, *NIFTI_ENDINGS)
        found = [
            path
            for path in sorted(folder.rglob("*"))
            if (path.name.lower().endswith(endings) and path.name[0] != "." and path.is_file())
            or _is_dicom(path)
        ]
    if not found:
        kinds = "DICOM files" if series else "JPEG, PNG or similar files"
        raise CommandError(f"there are no photos in {folder}; it needs {kinds}")
    return found


def dicom_slices(folder: Path) -> list[Path]:
    """The DICOM files in a folder; none for a file."""
    return sorted(filter(_is_dicom, folder.iterdir())) if folder.is_dir() else []


def _is_dicom(path: Path) -> bool:
    """Whether a file is DICOM, by its ending or its start, because many are named by numbers."""
    if path.name.startswith(".") or path.name == "DICOMDIR" or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return path.name.lower().endswith(DICOM_ENDINGS) or file.read(132)[128:] == b"DICM"
    except OSError:
        return False


# Pillow's formats


def _read_picture(
    path: Path, content: bytes, frame: int | None, intensity: Intensity
) -> Image.Image | _Values:
    with Image.open(io.BytesIO(content), formats=_formats()) as image:
        pages = getattr(image, "n_frames", 1)
        if pages > 1 and image.format == "TIFF" and frame is None:
            raise CommandError(f"{path} has {pages} pages; choose one with --frame N, from 0")
        _check_frame(path, frame, pages)
        image.seek(frame or 0)
        tags: Any = getattr(image, "tag_v2", {})
        is_deep = content[24] > 8 if image.format == "PNG" else max(tags.get(258, (8,))) > 8
        if image.format == "PPM" and image.tile[0].codec_name != "raw":
            raise CommandError(f"Pillow scales the values in {path}; save it as PNG or TIFF")
        upright = ImageOps.exif_transpose(image)
    if upright.mode == "L" and 2 in tags.get(339, ()):  # the TIFF tag of signed values
        return _Values(np.asarray(upright).view(np.int8))
    if upright.mode in ("I", "F") or upright.mode.startswith("I;16"):
        is_16_bits = upright.mode.startswith("I;16") or (image.format == "PNG" and is_deep)
        full = (0.0, 65535.0) if is_16_bits else None
        # The TIFF tag 262 is 0 if 0 is white.
        return _Values(np.asarray(upright), full, is_inverted=tags.get(262) == 0)
    if upright.mode not in PLAIN_MODES:
        raise CommandError(
            f"{path} has colours of mode {upright.mode}, which depend on a profile; convert it to "
            "RGB"
        )
    if is_deep and intensity != "full":
        raise CommandError(
            f"{path} has 16 bits for each colour, and only 8 of them are read; save it with 8 "
            "bits, or add --intensity full"
        )
    if upright.has_transparency_data:
        white = Image.new("RGBA", upright.size, "white")
        return Image.alpha_composite(white, upright.convert("RGBA")).convert("RGB")
    return upright.convert("L" if upright.mode in ("1", "L") else "RGB")


def _mapped(path: Path, values: _Values, intensity: Intensity) -> Array:
    """Values as float32, or with ``intensity`` from 0 (black) to 255."""
    array, limits = values.array, values.full
    if intensity is None:
        unchanged = array.astype(np.float32)
        if ((unchanged != array) & (array == np.rint(array))).any():
            raise CommandError(
                f"{path} has whole numbers beyond 2^24, which float32 rounds; rescale them first, "
                "or map them to black and white with --intensity LOW HIGH"
            )
        if not values.is_inverted:
            return unchanged
        if limits is not None:
            return np.float32(sum(limits)) - unchanged
    elif intensity == "file":
        if values.voi is None:
            raise CommandError(f"{path} has no window of its own; use --intensity LOW HIGH")
        limits, array = (0.0, 1.0), values.voi()
    elif not isinstance(intensity, str):
        limits = intensity
    if limits is None:
        raise CommandError(f"the range of {path} is not known; use --intensity LOW HIGH")
    shares = np.nan_to_num(((array.astype(np.float64) - limits[0]) / np.ptp(limits)).clip(0, 1))
    shares = 1 - shares if values.is_inverted else shares
    return np.asarray(np.round(255 * shares), dtype=np.uint8)


# Options


def intensity_option(given: list[str] | None) -> Intensity:
    """The values of ``--intensity``: "file", "full", or two numbers."""
    if given is None or given in (["file"], ["full"]):
        return given[0] if given else None
    try:
        low, high = (float(one) for one in given)
    except ValueError:
        low = high = 0.0
    if not -np.inf < low < high < np.inf:
        raise UsageError(
            f"--intensity {' '.join(given)} must be the value of black and a higher one of white, "
            "or 'file', or 'full'"
        )
    return low, high


def roi_image(roi: Sequence[str], image: Image.Image | Array) -> tuple[Image.Image | Array, bool]:
    """An image like a given one, black except for a region of interest; and whether it has both.
    ``roi`` is left, top, width and height in pixels; or the name of a file of the image's size, in
    which the region is not 0."""
    pixels = np.asarray(image)
    shape = pixels.shape[: 2 if isinstance(image, Image.Image) else None]
    inside = np.zeros(shape, dtype=bool)
    if len(roi) == 1:
        marked = read_photo(Path(roi[0])).image
        inside = np.asarray(marked.convert("F") if isinstance(marked, Image.Image) else marked) != 0
        if inside.shape != shape:
            raise UsageError(f"--roi {roi[0]} has shape {inside.shape} for an image of {shape}")
    elif len(roi) == 4 and all(one.isdecimal() for one in roi) and len(shape) == 2:
        left, top, width, height = map(int, roi)
        inside[top : top + height, left : left + width] = True
    else:
        raise UsageError(
            f"--roi {' '.join(roi)} must be LEFT TOP WIDTH HEIGHT in pixels of the image, or a "
            "file of its size that is 0 outside"
        )
    is_part = bool(inside.any() and not inside.all())
    low, high = (0, 255) if pixels.dtype == np.uint8 else (pixels.min(), pixels.max())
    high = high if high > low else low + 1
    values = np.where(inside, high, low).astype(pixels.dtype)
    return Image.fromarray(values) if isinstance(image, Image.Image) else values, is_part


# DICOM


def _read_dicom(
    path: Path, contents: Sequence[bytes], frame: int | None, keep_bytes: bool
) -> Image.Image | _Values:
    """A DICOM image in the unit of its rescale slope; frames, or the files of a series, are the
    first axis of a volume."""
    pydicom = optional_module("pydicom", MEDICAL_EXTRA)
    pixels = optional_module("pydicom.pixels", MEDICAL_EXTRA)
    files = [pydicom.dcmread(io.BytesIO(content), force=True) for content in contents]
    files = [file for file in files if "PixelData" in file]
    if not files:
        raise CommandError(
            f"{path} is a DICOM file without an image of whole numbers; export the image itself"
        )
    file, is_series = files[0], len(files) > 1
    kind = str(file.PhotometricInterpretation)
    is_colour = kind == "RGB" or kind.startswith("YBR")
    if not is_colour and kind not in ("MONOCHROME1", "MONOCHROME2"):
        raise CommandError(f"{path} has the colours {kind}; convert it to RGB or MONOCHROME2")
    if file.HighBit != file.BitsStored - 1:
        raise CommandError(f"{path} does not keep its values in the lowest bits; export it anew")
    files = _in_order(path, files) if is_series else files
    count = len(files) if is_series else int(file.get("NumberOfFrames") or 1)
    _check_frame(path, frame, count)
    frames = list(range(count)) if frame is None else [frame]
    if is_colour and (file.BitsAllocated != 8 or len(frames) > 1):
        raise CommandError(
            f"{path} has {count} colour frames of {file.BitsAllocated} bits; choose one with "
            "--frame N, of 8 bits"
        )
    try:
        if is_series:
            several = [pixels.pixel_array(files[number]) for number in frames]
            stored = several[0] if len(frames) == 1 else np.stack(several)
        else:
            stored = pixels.pixel_array(file, index=frame if count > 1 else None)
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        raise CommandError(
            f"the image in {path} cannot be decoded ({one_line(error)[:300]}); pip install "
            '"pylibjpeg[all]", or decompress it first with gdcmconv --raw'
        ) from error
    if is_colour:
        return Image.fromarray(stored)
    fields = [_fields(files[one]) if is_series else _fields(file, one) for one in frames]
    slopes, intercepts = (
        np.array([float(one.get(name, default)) for one in fields])[:, None, None]
        for name, default in (("RescaleSlope", 1), ("RescaleIntercept", 0))
    )
    is_plain = stored.dtype == np.uint8 and stored.ndim == 2 and file.BitsStored == 8
    if keep_bytes and is_plain and slopes.item() == 1 and intercepts.item() == 0:
        return Image.fromarray(255 - stored if kind == "MONOCHROME1" else stored)
    if "ModalityLUTSequence" in file:
        array, full = pixels.apply_modality_lut(stored, file), None
    else:
        shape = (len(frames), *stored.shape[-2:])
        array = (stored.reshape(shape) * slopes + intercepts).reshape(stored.shape)
        lowest = -(2 ** (file.BitsStored - 1)) if file.PixelRepresentation else 0
        ends = np.array([lowest, lowest + 2**file.BitsStored - 1]) * slopes + intercepts
        full = float(ends.min()), float(ends.max())
    has_window = "VOILUTSequence" in file or {"WindowCenter", "WindowWidth"} <= fields[0].keys()
    voi = (lambda: _dicom_window(file, fields[0], array)) if has_window else None
    return _Values(array, full, voi, kind == "MONOCHROME1", _dicom_affine(fields))


def _fields(file: Any, frame: int = 0) -> dict[str, Any]:
    """The fields of a frame: the file's, those that frames share, and the frame's own."""
    groups = [file]
    for kind, number in (("Shared", 0), ("PerFrame", frame)):
        several = file.get(f"{kind}FunctionalGroupsSequence") or []
        parts = several[number] if number < len(several) else []
        groups += [part.value[0] for part in parts if part.VR == "SQ" and part.value]
    return {
        name: group[name].value
        for group in groups
        for name in FRAME_FIELDS
        if name in group and not group[name].is_empty
    }


def _in_order(path: Path, files: list[Any]) -> list[Any]:
    alike = {tuple(str(file.get(name)) for name in SERIES_FIELDS) for file in files}
    # Scanners round these differently in each slice.
    is_parallel = all(
        np.allclose(one.get(name) or 0, files[0].get(name) or 0, atol=1e-3)
        for name in ("ImageOrientationPatient", "PixelSpacing")
        for one in files
    )
    if len(alike) > 1 or not is_parallel or "ModalityLUTSequence" in files[0]:
        raise CommandError(
            f"{path} holds DICOM files that are not slices of one series; put each series in a "
            "folder of its own, or make a NIfTI file of it, such as by dcm2niix"
        )
    if all("ImagePositionPatient" in _fields(file) for file in files):
        turn = np.array(files[0].get("ImageOrientationPatient") or (1, 0, 0, 0, 1, 0), dtype=float)
        through = np.cross(turn[:3], turn[3:])
        places = [float(through @ np.array(file.ImagePositionPatient, float)) for file in files]
    else:
        places = [float(file.get("InstanceNumber") or 0) for file in files]
    if len(set(places)) < len(places):
        raise CommandError(
            f"{path} holds several slices of one place, and their order is not known; make a NIfTI "
            "file of it, such as by dcm2niix"
        )
    return [files[number] for number in np.argsort(places)]


def _dicom_window(file: Any, fields: dict[str, Any], array: Array) -> Array:
    """The file's first table or window, applied to values; from 0 to 1."""
    if "VOILUTSequence" in file:
        pixels = optional_module("pydicom.pixels", MEDICAL_EXTRA)
        bits = file.VOILUTSequence[0].LUTDescriptor[2]
        return np.asarray(pixels.apply_voi(array.astype(np.int64), file) / (2.0**bits - 1))
    centre, width = (float(np.ravel(fields[f"Window{one}"])[0]) for one in ("Center", "Width"))
    kind = str(fields.get("VOILUTFunction", "LINEAR"))
    if kind == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(-4 * (array - centre) / width)))
    if kind == "LINEAR":  # DICOM PS3.3, C.11.2.1.2.1
        centre, width = centre - 0.5, max(width - 1, 1e-9)
    return np.asarray((array - centre) / width + 0.5)


def _dicom_affine(fields: Sequence[dict[str, Any]]) -> Array | None:
    """From (frame, row, column), or (row, column, 0) of one frame, to mm; None if unknown."""
    needed = {"ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"}
    if not all(needed <= one.keys() for one in fields):
        return None
    first = fields[0]
    turn = np.array(first["ImageOrientationPatient"], dtype=float).reshape(2, 3)
    along_rows, along_columns = turn[::-1] * np.array(first["PixelSpacing"], dtype=float)[:, None]
    places = np.array([one["ImagePositionPatient"] for one in fields], dtype=float)
    affine = np.eye(4)
    if len(fields) == 1:
        through = np.cross(*turn) * float(first.get("SliceThickness", 1))
        affine[:3] = np.stack([along_rows, along_columns, through, places[0]], axis=1)
    else:
        step = (places[-1] - places[0]) / (len(places) - 1)
        even = places[0] + np.arange(len(places))[:, None] * step
        if np.abs(places - even).max() > POSITION_TOLERANCE:
            return None
        affine[:3] = np.stack([step, along_rows, along_columns, places[0]], axis=1)
    if not np.linalg.det(affine):
        return None
    # DICOM's axes point left and posterior.
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


# NIfTI


def _read_nifti(path: Path) -> _Values:
    """A volume in the file's order of axes, with its affine."""
    scan = optional_module("nibabel", MEDICAL_EXTRA).load(path)
    shape = scan.shape
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) > 3 or scan.get_data_dtype().kind not in "iuf":
        raise CommandError(
            f"{path} has shape {scan.shape} of {scan.get_data_dtype()}, and only single volumes of "
            "plain numbers are read; save one with nibabel.four_to_three(scan)[0]"
        )
    array = np.asanyarray(scan.dataobj).reshape(shape)
    low, high = (float(scan.header[name]) for name in ("cal_min", "cal_max"))
    voi = (lambda: (array - low) / (high - low)) if high > low else None
    return _Values(array, None, voi, affine=scan.affine)


def nifti_file(maps: Array, affine: Array) -> bytes:
    """Maps (answers, *space) as a compressed NIfTI file; without an axis for a single answer."""
    nibabel = optional_module("nibabel", MEDICAL_EXTRA)
    values = np.moveaxis(maps if maps.ndim == 4 else maps[..., None], 0, -1)
    scan = nibabel.Nifti1Image(values[..., 0] if len(maps) == 1 else values, affine)
    scan.header["descrip"] = NIFTI_NOTE
    return gzip.compress(scan.to_bytes(), mtime=0)
