"""The interface of priors, the data they are fitted to, and the files they are stored in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm

from captum_pda.files import write_whole
from captum_pda.model.inputs import check_images
from captum_pda.regions.protocol import Windows


@runtime_checkable
class PatchPrior(Protocol):
    """Predicts the content of each region of an example from the pixels around it.

    EfficientPDA and GradientPDA need ``conditional_mean`` only, SampledPDA ``sample`` only. Regions
    that are not boxes have a mask ``regions.hidden`` (W, *window), true where a pixel is hidden;
    the other pixels of a fill are ignored.

    Optional methods:

    - ``nothing_seen(example)``: the input (C, *space) with everything hidden, for the contexts
      "empty" and "both".
    - ``seen_alone(example, regions)``: each region as the only visible part: the boxes that differ
      from ``nothing_seen`` as PlacedWindows, and their contents (W, C, *box). Without it regions
      are pasted into ``nothing_seen`` with soft edges.
    - ``settings()``: a dict of plain values that describes the prior in result files. Without it,
      the prior is identified by its class and a hash of its attributes.

    Example::

        >>> class Inpainting:
        ...     def conditional_mean(self, example, regions):
        ...         # regions.corner_array (W, dims) and regions.window say where they are
        ...         return inpaint(example, regions.corner_array, regions.window)
        >>> EfficientPDA(model, prior=Inpainting()).attribute(image, target=3)
    """

    def conditional_mean(self, example: Tensor, regions: Windows) -> Tensor:
        """The expected content of each region of an example (C, *space), (W, C, *window)."""

    def sample(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Samples of each region's content, (S, W, C, *window)."""


#: A tensor (N, C, *space), an iterable of such tensors or of tuples that start with one (such as a
#: DataLoader with labels), or a Dataset.
Images: TypeAlias = Tensor | Iterable[Any] | Dataset[Any]


def batches_of(
    data: Images, show_progress: bool = False, may_be_empty: bool = False
) -> Iterator[Tensor]:
    """The batches of images in ``data``, without their labels."""
    if isinstance(data, Tensor):
        data = [data]
    elif isinstance(data, Dataset):
        # One at a time, because images of a data set may differ in size.
        data = DataLoader(data, batch_size=1)
    elif not isinstance(data, Iterable):
        raise TypeError(
            "fit takes a tensor (N, C, *space), an iterable of batches, a Dataset or a DataLoader, "
            f"got {type(data).__name__}"
        )
    empty = True
    shown = tqdm(data, desc="Fitting") if show_progress else data
    for number, item in enumerate(shown):
        yield check_images(f"batch {number}", _images_of(item))
        empty = False
    if empty and not may_be_empty:
        raise ValueError("there were no batches to fit; the iterable was empty or used up")


def _images_of(item: Any) -> Any:
    if isinstance(item, Mapping):
        raise TypeError(
            f"a batch is a dict with the keys {list(item)}; pass its images only, for example "
            "(batch['image'] for batch in loader)"
        )
    if not isinstance(item, tuple | list) or not item:
        return item
    if len(item) > 1 and isinstance(item[0], Tensor) and isinstance(item[1], int | float | str):
        raise TypeError(
            f"an item holds one image with the label {item[1]!r} where a batch was expected; wrap "
            "the data set in a DataLoader, or pass the data set itself"
        )
    return item[0]


FILE_FORMAT = "captum_pda prior"
FILE_VERSION = 1
#: The largest file that is read: the covariance of a larger one could not be factored.
MOST_BYTES = 2**32
#: The longest header that is read: the names of many thousand tensors may take minutes.
MOST_HEADER_BYTES = 2**16
#: The length of error messages, which may quote a hostile file.
LONGEST_MESSAGE = 300
FLOATS = ("F64", "F32", "F16", "BF16")


def save_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    overwrite: bool,
    file_format: str = FILE_FORMAT,
) -> None:
    """Write a file of tensors and settings, completely or not at all."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} to save {target.name} in")
    if os.path.lexists(target) and not overwrite:
        raise _already_there(target)
    header = {
        "format": file_format,
        "version": str(FILE_VERSION),
        "settings": json.dumps(dict(settings)),
    }
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        write_whole(target, to_bytes(contiguous, metadata=header), overwrite)
    except FileExistsError:  # it came there in the meantime
        raise _already_there(target) from None


def _already_there(target: Path) -> FileExistsError:
    return FileExistsError(f"{target} exists; choose another name, or pass overwrite=True")


class StoredTensors:
    """An open file of ``save_tensors``: its settings, and shapes that are checked before
    reading."""

    def __init__(self, file: Any, file_format: str = FILE_FORMAT) -> None:
        self._file = file
        header = file.metadata() or {}
        if header.get("format") != file_format:
            raise ValueError(f"its header does not say {file_format!r}")
        if header.get("version") != str(FILE_VERSION):
            raise ValueError(
                f"it has version {header.get('version')!r}, and this library reads {FILE_VERSION}; "
                "a newer captum_pda may read it"
            )
        settings = json.loads(header.get("settings", ""))
        if not isinstance(settings, dict):
            raise ValueError("its settings are not a table")
        self.settings: dict[str, Any] = settings
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        self.shapes: dict[str, list[int]] = {name: s.get_shape() for name, s in slices.items()}
        self._dtypes = {name: s.get_dtype() for name, s in slices.items()}

    def read(
        self, shapes: Mapping[str, list[int]], dtypes: Sequence[str] = ("F64",), finite: bool = True
    ) -> dict[str, Tensor]:
        """Read tensors of these shapes and dtypes, which are ``finite``; refuses all others."""
        if missing := sorted(set(shapes) - set(self.shapes)):
            raise ValueError(f"it lacks the tensors {missing}, which belong to it")
        if extra := sorted(set(self.shapes) - set(shapes)):
            raise ValueError(f"it holds the tensors {extra}, which do not belong to it")
        for name, shape in shapes.items():
            if self.shapes[name] != list(shape):
                raise ValueError(f"{name} has shape {self.shapes[name]} where {shape} belongs")
            if self._dtypes[name] not in dtypes:
                wanted = " or ".join(dtypes)
                raise ValueError(f"{name} has dtype {self._dtypes[name]} where {wanted} belongs")
        tensors = {name: self._file.get_tensor(name) for name in shapes}
        for name, tensor in tensors.items():
            if finite and not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"{name} holds NaN or infinite values")
        return tensors


@contextmanager
def opened_tensors(
    path: str | os.PathLike[str],
    device: torch.device | str,
    file_format: str = FILE_FORMAT,
    most_bytes: int = MOST_BYTES,
    most_header_bytes: int = MOST_HEADER_BYTES,
) -> Iterator[StoredTensors]:
    """Open a file of ``save_tensors``; all its defects are reported as one line."""
    noun = file_format.removeprefix("captum_pda ")
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no {noun} at {path}")
    try:
        # A sparse file that uses a few bytes of the disk may have any size.
        if Path(path).stat().st_size > most_bytes:
            raise ValueError(f"it has more than {most_bytes} bytes, the most that is read")
        with open(path, "rb") as start:
            header_bytes = int.from_bytes(start.read(8), "little")
        if header_bytes > most_header_bytes:
            raise ValueError(
                f"its header has {header_bytes} bytes, and the most that is read are "
                f"{most_header_bytes}"
            )
        with safe_open(path, framework="pt", device=str(device)) as file:
            yield StoredTensors(file, file_format)
    except (
        SafetensorError,
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
        RecursionError,
    ) as e:
        message = " ".join(str(e).split())
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[:LONGEST_MESSAGE]} ..."
        article = "" if noun == "evidence" else "a "
        raise ValueError(f"{path} is not {article}{noun} that can be used: {message}") from e
