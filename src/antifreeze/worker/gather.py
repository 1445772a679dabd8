"""Data sets whose rows are known: those of a batch in one call, no sample is made.

    indices of the data set ── maps of its Subsets ──▶ rows of the source ──▶ columns of a slot

1. TensorDataset, a tensor, a numpy array or memmap, a Hugging Face data set, and plain Subsets of these, each exactly of that type: then
   no code of the user's takes part, and what default_collate would make of the samples is known.
2. Whatever could come out otherwise (a key that is no int, a row that is not there, grad, other dtypes) is not gathered: the data
   set is asked, and its answer or its error stands.
3. The source is looked at anew for every batch: the user may have put something else in its place.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from antifreeze.slots.layout import RowLayout, learn
from antifreeze.worker.hugging_face import TableRows, is_hugging_face, may_gather


class Source(Protocol):
    """What rows are gathered from."""

    def layout(self) -> RowLayout | None:
        """Of the rows as they are now; None where they cannot be gathered."""

    def write(self, chosen: torch.Tensor, columns: Sequence[torch.Tensor]) -> bool:
        """Into the columns, in place; False where a row is not there."""


class Gather:
    """The rows of `source`, whose samples the data set gives under its own indices after mapping them through `maps`."""

    def __init__(self, source: Source, maps: list[Sequence[int]]) -> None:
        self._source = source
        self._maps = maps

    def layout(self) -> RowLayout | None:
        return self._source.layout()

    def write(self, chosen: torch.Tensor, columns: Sequence[torch.Tensor]) -> bool:
        return self._source.write(chosen, columns)

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


class ArrayRows:
    """Of a TensorDataset, a tensor or an array."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._kinds: list[Any] | None = None
        self._layout: RowLayout | None = None

    def layout(self) -> RowLayout | None:
        arrays = self._arrays()
        kinds = [(type(each), each.dtype, each.shape[1:]) for each in arrays]
        if kinds != self._kinds or not all(map(_is_plain, arrays)):
            self._kinds = kinds
            self._layout = self._learn(arrays)
        return self._layout

    def write(self, chosen: torch.Tensor, columns: Sequence[torch.Tensor]) -> bool:
        try:
            for each, column in zip(self._arrays(), columns, strict=True):
                if isinstance(each, torch.Tensor):
                    torch.index_select(each, 0, chosen, out=column)
                else:
                    _take(each, chosen.numpy(), column.numpy())
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
    if is_hugging_face(dataset):
        return Gather(TableRows(dataset), maps) if may_gather(dataset) else None
    known = type(dataset) in (TensorDataset, torch.Tensor, np.ndarray, np.memmap)
    return Gather(ArrayRows(dataset), maps) if known and (type(dataset) is TensorDataset or dataset.ndim > 0) else None


def _take(each: np.ndarray[Any, Any], rows: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
    """Raises IndexError where a row is not there. (numpy's own check costs a second copy of all rows; and it would first copy an array
    that is not in order, all of it.)"""
    if rows.min() < -len(each) or rows.max() >= len(each):
        raise IndexError
    if each.flags.c_contiguous and each.flags.aligned:
        np.take(each, rows, axis=0, out=out, mode="wrap")
    else:
        np.copyto(out, each[rows])


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
