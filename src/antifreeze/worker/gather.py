"""Data sets that are arrays: the rows of a batch in one call, no sample is made.

1. TensorDataset, a tensor, a numpy array or memmap, and plain Subsets of these, each exactly of that type: then no code of the
   user's takes part, and what default_collate would make of the samples is known.
2. Whatever could come out otherwise (a key that is no int, a row that is not there, grad, other dtypes) is not gathered: the data
   set is asked, sample by sample, and its answer or its error stands.
3. The arrays are looked at anew for every batch: the user may have put others in their place.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from antifreeze.slots.layout import RowLayout, learn


class Gather:
    """The rows of `source`, whose samples the data set gives under its own indices after mapping them through `maps`."""

    def __init__(self, source: Any, maps: list[Sequence[int]]) -> None:
        self._source = source
        self._maps = maps
        self._kinds: list[Any] | None = None
        self._layout: RowLayout | None = None

    def layout(self) -> RowLayout | None:
        """Of the rows as they are now; None where they cannot be gathered."""
        arrays = self._arrays()
        kinds = [(type(each), each.dtype, each.shape[1:]) for each in arrays]
        if kinds != self._kinds or not all(map(_is_plain, arrays)):
            self._kinds = kinds
            self._layout = self._learn(arrays)
        return self._layout

    def choose(self, indices: Any) -> torch.Tensor | None:
        """The rows of the source that these indices mean; None where the data set itself must be asked."""
        if not isinstance(indices, (list, array)):
            return None
        try:
            for mapped in self._maps:
                indices = [mapped[index] for index in indices]
        except (IndexError, TypeError):
            return None
        if isinstance(indices, list):
            if set(map(type, indices)) != {int}:
                return None
            try:
                indices = array("q", indices)
            except OverflowError:
                return None
        return torch.frombuffer(indices, dtype=torch.int64) if indices else None

    def write(self, chosen: torch.Tensor, columns: Sequence[torch.Tensor]) -> bool:
        """Into the columns, in place; False where a row is not there."""
        try:
            for each, column in zip(self._arrays(), columns, strict=True):
                if isinstance(each, torch.Tensor):
                    torch.index_select(each, 0, chosen, out=column)
                else:
                    np.take(each, chosen.numpy(), axis=0, out=column.numpy())
        except (IndexError, RuntimeError):
            return False
        return True

    def _arrays(self) -> tuple[Any, ...]:
        return tuple(self._source.tensors) if type(self._source) is TensorDataset else (self._source,)

    def _learn(self, arrays: tuple[Any, ...]) -> RowLayout | None:
        if not arrays or not all(map(_is_plain, arrays)) or min(map(len, arrays)) == 0:
            return None
        layout = learn(self._source[0])
        if layout is None or any(_row_shape(each) != leaf.shape for each, leaf in zip(arrays, layout.leaves, strict=True)):
            return None
        same = [_dtype(each) == leaf.dtype for each, leaf in zip(arrays, layout.leaves, strict=True)]
        return layout if all(same) else None


def gather_of(dataset: Any) -> Gather | None:
    """None for every data set whose own code has to run."""
    maps: list[Sequence[int]] = []
    while type(dataset) is Subset:
        if type(dataset.indices) not in (list, tuple, range):
            return None
        maps.append(dataset.indices)
        dataset = dataset.dataset
    known = type(dataset) in (TensorDataset, torch.Tensor, np.ndarray, np.memmap)
    return Gather(dataset, maps) if known and (type(dataset) is TensorDataset or dataset.ndim > 0) else None


def _is_plain(each: Any) -> bool:
    if type(each) is torch.Tensor:
        dense = each.layout is torch.strided and each.is_cpu and not each.is_nested and not each.is_quantized
        return bool(dense and not (each.requires_grad or each.is_conj() or each.is_neg()))
    return type(each) in (np.ndarray, np.memmap) and each.dtype.kind in "biufc" and each.dtype.isnative


def _row_shape(each: Any) -> tuple[int, ...]:
    return tuple(each.shape[1:])


def _dtype(each: Any) -> torch.dtype | None:
    if isinstance(each, torch.Tensor):
        return each.dtype
    try:
        return torch.from_numpy(np.empty(0, dtype=each.dtype)).dtype
    except TypeError:
        return None
