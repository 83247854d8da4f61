"""From whatever a user has to a stream of checked image batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm

from captum_pda.model.inputs import check_images

#: A tensor (N, C, *space), an iterable of such tensors or of tuples that start with one (a
#: DataLoader with labels), or a Dataset.
Images: TypeAlias = Tensor | Iterable[Any] | Dataset[Any]


def batches_of(
    data: Images, show_progress: bool = False, may_be_empty: bool = False
) -> Iterator[Tensor]:
    """The image batches of ``data``, one at a time, without their labels."""
    if isinstance(data, Tensor):
        data = [data]
    elif isinstance(data, Dataset):
        # One at a time, as a data set's images may differ in size.
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
    """The images of a batch, which may come with labels."""
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
