"""From whatever a user has to a stream of checked image batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm

from captum_pda.inputs import check_images

#: A tensor (N, C, *space), an iterable of such tensors or of tuples that start with one (a
#: DataLoader with labels), or a Dataset.
Images: TypeAlias = Tensor | Iterable[Any] | Dataset[Any]


def batches_of(data: Images, show_progress: bool = False) -> Iterator[Tensor]:
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
    for number, item in enumerate(tqdm(data, desc="Fitting", disable=not show_progress)):
        batch = item[0] if isinstance(item, tuple | list) and item else item
        yield check_images(f"batch {number}", batch)
        empty = False
    if empty:
        raise ValueError("there were no batches to fit; the iterable was empty or used up")
