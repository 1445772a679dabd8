"""Data sets whose rows are known: those of a batch in one call, no sample is made.

    indices of the data set ── maps of its Subsets ──▶ rows of the source ──▶ columns of a slot

1. TensorDataset, a tensor, a numpy array or memmap, a Hugging Face data set, and plain Subsets of these, each exactly of that type: then
   no code of the user's takes part, and what default_collate would make of the samples is known. So it is where the user's own
   `__getitem__` only picks rows of arrays (sample_code.py).
2. Whatever could come out otherwise (a key that is no int, a row that is not there, grad, other dtypes) is not gathered: the data
   set is asked, and its answer or its error stands.
3. The source, and a Subset's indices, are looked at anew for every batch: the user may have put something else in their place.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from inspect import getattr_static
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from antifreeze.slots.layout import Leaf, RowLayout, learn
from antifreeze.torch_private import default_collate, modes_at_work
from antifreeze.worker.hugging_face import TableRows, is_hugging_face, may_gather, same_bytes
from antifreeze.worker.sample_code import Picks, picks_of


class Source(Protocol):
    """What rows are gathered from."""

    def layout(self) -> RowLayout | None:
        """Of the rows as they are now; None where they cannot be gathered."""

    def write(self, chosen: torch.Tensor, columns: Sequence[torch.Tensor]) -> bool:
        """Into the columns, in place; False where a row is not there."""


class Gather:
    """The rows of `source`, whose samples the data set gives under its own indices after mapping them through these `subsets`."""

    def __init__(self, source: Source, subsets: list[Subset[Any]]) -> None:
        self._source = source
        self._subsets = subsets

    def layout(self) -> RowLayout | None:
        return self._source.layout()

    def write(self, chosen: torch.Tensor, columns: Sequence[torch.Tensor]) -> bool:
        return self._source.write(chosen, columns)

    def choose(self, indices: Any) -> torch.Tensor | None:
        """The rows of the source that these indices mean; None where the data set itself must be asked."""
        if not isinstance(indices, (list, array)):
            return None
        try:
            for subset in self._subsets:
                mapped = subset.indices
                if type(mapped) not in _MAPS:
                    return None
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
        kinds = [torch.get_default_dtype(), *((type(each), each.dtype, each.shape[1:]) for each in arrays)]
        if kinds != self._kinds or not all(map(_is_plain, arrays)):
            self._kinds = kinds
            self._layout = self._learn(arrays)
        return self._layout

    def write(self, chosen: torch.Tensor, columns: Sequence[torch.Tensor]) -> bool:
        try:
            for each, column in zip(self._arrays(), columns, strict=True):
                _gather(each, chosen, column)
        except (IndexError, RuntimeError):
            return False
        return True

    def _arrays(self) -> tuple[Any, ...]:
        return tuple(self._source.tensors) if type(self._source) is TensorDataset else (self._source,)

    def _learn(self, arrays: tuple[Any, ...]) -> RowLayout | None:
        if not arrays or not all(map(_is_plain, arrays)) or min(map(len, arrays)) == 0:
            return None
        layout = learn(self._source[0])
        if layout is None or len(layout.leaves) != len(arrays):
            return None
        return layout if all(map(_becomes, arrays, layout.leaves)) else None


class PickedRows(ArrayRows):
    """Of a data set whose `__getitem__` only picks rows of arrays that are its attributes."""

    def __init__(self, dataset: Any, picks: Picks) -> None:
        super().__init__(dataset)
        self._picks = picks

    def layout(self) -> RowLayout | None:
        if not _are_its_own(type(self._source), self._picks) or _is_debugged() or modes_at_work():
            return None
        return super().layout()

    def _arrays(self) -> tuple[Any, ...]:
        """Empty where a sample is something else by now."""
        held = vars(self._source)
        if not self._picks.still_means(getattr(type(self._source), "__getitem__", None)):
            return ()
        picked = tuple(held.get(name) for name in self._picks.attributes)
        return picked if all(type(each) in _ARRAYS for each in picked) else ()

    def _learn(self, arrays: tuple[Any, ...]) -> RowLayout | None:
        """By running the user's code on rows made up here: to read real ones, other than those a task asks for, may hang or crash."""
        if not arrays or not all(map(_is_plain, arrays)) or any(each.ndim == 0 or not len(each) for each in arrays):
            return None
        if sum(each[:1].nbytes for each in arrays) > _LARGEST_ROW_BYTES:
            return None
        try:
            rows = max(_FEWEST_MADE_UP, *(-(-_TELLING_NUMBERS // max(1, math.prod(each.shape[1:]))) for each in arrays))
            held = dict(zip(self._picks.attributes, arrays, strict=True))
            made_up = {name: _rows_like(each, rows, place) for place, (name, each) in enumerate(held.items())}
            samples = [type(self._source).__getitem__(SimpleNamespace(**made_up), row) for row in range(rows)]
            layout = learn(samples[0])
            return layout if layout is not None and self._agrees(layout, samples, made_up) else None
        except Exception:  # the data set itself has the say, and its own error is the one to raise
            return None

    def _agrees(self, layout: RowLayout, samples: list[Any], made_up: dict[str, Any]) -> bool:
        """Whether gathering gives what default_collate makes of the samples."""
        arrays = [made_up[name] for name in self._picks.attributes]
        if len(layout.leaves) != len(arrays) or not all(map(_becomes, arrays, layout.leaves)):
            return False
        for each, leaf, theirs in zip(arrays, layout.leaves, _leaves(default_collate(samples)), strict=True):
            ours = torch.empty((len(samples), *leaf.shape), dtype=leaf.dtype)
            _gather(each, torch.arange(len(samples)), ours)
            if not same_bytes(theirs, ours):
                return False
        return True


_FEWEST_MADE_UP = 3
_TELLING_NUMBERS = 10
_LARGEST_ROW_BYTES = 16 * 2**20
"""Beyond it there is nothing to gain."""


def _rows_like(each: Any, rows: int, place: int) -> Any:
    """Rows of its kind, with all numbers that conversions show on; other ones in the next attribute of the same kind."""
    shape = (rows, *each.shape[1:])
    which = (np.arange(math.prod(shape)) + place) % _TELLING_NUMBERS
    if isinstance(each, torch.Tensor):
        return torch.tensor(_telling_numbers(each.dtype), dtype=each.dtype)[torch.from_numpy(which)].view(shape)
    made_up = np.array(_telling_numbers(_dtype(each)), dtype=each.dtype)[which].reshape(shape)
    made_up.flags.writeable = each.flags.writeable  # torch has a word to say of those that are not
    return made_up


def _telling_numbers(dtype: torch.dtype | None) -> list[Any]:
    """What does not survive a dtype of less range or less precision on the way: `x.half().float()`, `y.int().long()`."""
    if dtype is None or dtype is torch.bool:
        return [0, 1] * (_TELLING_NUMBERS // 2)
    if dtype.is_floating_point or dtype.is_complex:
        of = torch.finfo(dtype)
        return [0.0, 1 / 7, -1 / 3, 1 + of.eps, of.max, of.min, of.tiny, -of.tiny, 97.0, math.inf]
    most, least = torch.iinfo(dtype).max, torch.iinfo(dtype).min
    return [0, 1, max(least, -1), 97, most, least, most - 1, most // 3, least + most // 5, 2]


_ARRAYS = (torch.Tensor, np.ndarray, np.memmap)
_MAPS = (list, tuple, range)


def gather_of(dataset: Any) -> Gather | None:
    """None for every data set whose own code has to run."""
    subsets: list[Subset[Any]] = []
    while type(dataset) is Subset:
        if type(dataset.indices) not in _MAPS:
            return None
        subsets.append(dataset)
        dataset = dataset.dataset
    if is_hugging_face(dataset):
        return Gather(TableRows(dataset), subsets) if may_gather(dataset) else None
    if type(dataset) is TensorDataset or (type(dataset) in _ARRAYS and dataset.ndim > 0):
        return Gather(ArrayRows(dataset), subsets)
    picks = _picks(dataset)
    return Gather(PickedRows(dataset, picks), subsets) if picks is not None else None


def _picks(dataset: Any) -> Picks | None:
    kind: Any = type(dataset)
    if kind.__getattribute__ is not object.__getattribute__ or hasattr(dataset, "__getitems__") or _is_debugged():
        return None
    picks = picks_of(getattr_static(kind, "__getitem__", None))
    if picks is None or not isinstance(getattr(dataset, "__dict__", None), dict):
        return None
    return picks if _are_its_own(kind, picks) and all(type(vars(dataset).get(name)) in _ARRAYS for name in picks.attributes) else None


def _are_its_own(kind: Any, picks: Picks) -> bool:
    """Whether `self.NAME` is what the data set itself holds under that name, and no property of its class's, say."""
    if kind.__getattribute__ is not object.__getattribute__:
        return False
    return not any(base.__dict__.get(name) is not None for base in kind.__mro__ for name in picks.attributes)


def _is_debugged() -> bool:
    """Then the user may have a breakpoint in his `__getitem__`."""
    monitoring = getattr(sys, "monitoring", None)
    return sys.gettrace() is not None or (monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None)


def _gather(each: Any, chosen: torch.Tensor, column: torch.Tensor) -> None:
    """Raises IndexError or RuntimeError where a row is not there."""
    out = column
    if _dtype(each) != column.dtype:
        out = torch.empty(column.shape, dtype=_dtype(each))
    if isinstance(each, torch.Tensor):
        torch.index_select(each, 0, chosen, out=out)
    else:
        _take(each, chosen.numpy(), out.numpy())
    if out is not column:
        column.copy_(out)


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
    if type(each) not in (np.ndarray, np.memmap) or each.dtype.kind not in "biufc" or not each.dtype.isnative:
        return False
    return bool(min(each.strides[1:], default=0) >= 0)  # rows that run backwards are no tensors


def _becomes(each: Any, leaf: Leaf) -> bool:
    """Whether rows of such an array are what such a leaf is made of: the same values, if of another dtype then of one in which
    they are the same however they get there."""
    was = _dtype(each)
    if was is None or tuple(each.shape[1:]) != leaf.shape:
        return False
    return was == leaf.dtype or was in _MAY_BECOME.get(leaf.dtype, ())


_SMALL_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32)
_MAY_BECOME = {
    torch.int64: _SMALL_INTEGERS,
    torch.float32: (*_SMALL_INTEGERS, torch.float16, torch.bfloat16, torch.float64),
    torch.float64: (*_SMALL_INTEGERS, torch.int64, torch.float16, torch.bfloat16, torch.float32),
}
"""Rounded once, whichever way it goes: an int64 becomes a float32 by way of a double in some of them."""


def _leaves(batch: Any) -> list[Any]:
    """Of what default_collate made of plain containers, in its own order."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch
    return [leaf for part in parts for leaf in _leaves(part)]


def _dtype(each: Any) -> torch.dtype | None:
    if isinstance(each, torch.Tensor):
        return each.dtype
    try:
        return torch.from_numpy(np.empty(0, dtype=each.dtype)).dtype
    except TypeError:
        return None
