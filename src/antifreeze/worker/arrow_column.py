"""A column of an Arrow table whose rows all have one shape: rows are copied from where they lie, over however many chunks.

    row ──▶ chunk, row in it ──▶ [per level of lists: where its elements begin] ──▶ element number ──▶ one gather over all chunks

1. Numbers without nulls, and lists of lists of them, of fixed length by type or by their offsets; offsets are looked at for the rows
   that are asked for, nothing is scanned beforehand.
2. All chunks are seen as one array, from the first byte of the lowest to the last byte of the highest; what lies between them belongs
   to others (or to nobody), and no row points there.
3. Nothing is copied or kept but a few numbers per chunk: a table on disk stays there.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from antifreeze.slots.layout import NUMPY_DTYPES

_SELECTED_BY_TORCH = frozenset(
    {torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64},
)
_NUMBERS = {
    **{name: name for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    **{"halffloat": "float16", "float": "float32", "double": "float64"},
}
_TORCH_DTYPES = {numpy_dtype: dtype for dtype, numpy_dtype in NUMPY_DTYPES.items()}


class NoFixedRows(Exception):
    """The column, or some row of it, cannot be copied like this."""


@dataclass(frozen=True)
class _Region:
    """One buffer of each chunk, seen as one array: chunk c begins at element starts[c]."""

    elements: np.ndarray[Any, Any]
    starts: np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Level:
    """Lists of `size` elements; `offsets` where each list says itself where it begins. `shift[c]`: what an element's number in chunk c
    is to be moved by."""

    shift: np.ndarray[Any, Any]
    size: int
    offsets: _Region | None


class ArrowColumn:
    """`chunked` with rows of this shape; keeps it alive, since its memory is read."""

    def __init__(self, chunked: Any, shape: tuple[int, ...]) -> None:
        chunks = [chunk for chunk in chunked.chunks if len(chunk)]
        if not chunks:
            raise NoFixedRows("there are no rows")
        self._chunked = chunked
        self._count = prod(shape)
        lengths = np.array([len(chunk) for chunk in chunks], dtype=np.int64)
        self.ends = np.cumsum(lengths)
        self._levels: list[_Level] = []
        arrays = [_without_nulls(chunk) for chunk in chunks]
        shift = np.array([array.offset for array in arrays], dtype=np.int64) - (self.ends - lengths)
        for size in shape:
            arrays, level = _enter(arrays, size, shift)
            self._levels.append(level)
            shift = np.array([array.offset for array in arrays], dtype=np.int64)
        dtype = _number_type(arrays[0].type)
        self._is_bits = dtype == np.bool_
        self.dtype = _TORCH_DTYPES[dtype]
        region = _region([array.buffers()[1] for array in arrays], np.dtype(np.uint8) if self._is_bits else dtype)
        self._values = region.elements
        self._base = shift + (region.starts * 8 if self._is_bits else region.starts)
        self._rows = None if self._is_bits else _windows(region.elements, self._count)

    def chunks_of(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.searchsorted(self.ends, rows, side="right")

    def write(self, rows: np.ndarray[Any, Any], chunks: np.ndarray[Any, Any], out: torch.Tensor) -> None:
        """These rows, which are there, into `out`, converted to its type as torch converts; `chunks` are theirs."""
        at = self._find(rows, chunks)
        if self._is_bits:
            bits = at if self._count == 1 else at[:, None] + np.arange(self._count)
            taken = self._values[bits >> 3] >> (bits & 7).astype(np.uint8) & 1
            out.copy_(torch.from_numpy(taken.astype(np.bool_)).view(out.shape))
        elif out.dtype is self.dtype and self.dtype in _SELECTED_BY_TORCH:
            torch.index_select(self._as_tensor(), 0, torch.from_numpy(at), out=out.view(len(rows), self._count))
        else:
            assert self._rows is not None
            out.copy_(torch.from_numpy(self._rows[at]).view(out.shape))

    def _find(self, rows: np.ndarray[Any, Any], chunks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The number of each row's first value."""
        at: np.ndarray[Any, Any] = rows
        width = 1
        for level in self._levels:
            at = at + level.shift[chunks]
            if level.offsets is None:
                at = at * level.size
            else:
                first = at + level.offsets.starts[chunks]
                offsets = level.offsets.elements[first[:, None] + np.arange(width + 1)].astype(np.int64)
                if not (offsets[:, 1:] - offsets[:, :-1] == level.size).all():
                    raise NoFixedRows("some lists have another length")
                at = offsets[:, 0]
            width *= level.size
        return np.asarray(at + self._base[chunks])

    def _as_tensor(self) -> torch.Tensor:
        if self._tensor is None:
            assert self._rows is not None
            self._tensor = torch.from_numpy(self._rows)
        return self._tensor

    _tensor: torch.Tensor | None = None


def holds_numbers(kind: Any) -> bool:
    """Numbers, or lists (of lists) of them."""
    kind = getattr(kind, "storage_type", kind)
    while _is_list(kind):
        kind = kind.value_type
    return str(kind) in _NUMBERS


def makes_rows_of(kind: Any, shape: tuple[int, ...]) -> bool:
    """Whether rows of this Arrow type are numbers, or lists (of lists) of them, that make a sample of this shape. Not uint64: what
    becomes of one depends on how large it is."""
    kind = getattr(kind, "storage_type", kind)
    for size in shape:
        if size < 1 or not _is_list(kind) or getattr(kind, "list_size", size) != size:
            return False
        kind = kind.value_type
    return str(kind) in _NUMBERS and str(kind) != "uint64"


def _enter(arrays: list[Any], size: int, shift: np.ndarray[Any, Any]) -> tuple[list[Any], _Level]:
    """One level down: what the lists hold, and how to get there."""
    kind = arrays[0].type
    inner = [_without_nulls(array.values) for array in arrays]
    if hasattr(kind, "list_size"):
        return inner, _Level(shift, size, None)
    width = np.dtype(np.int64 if str(kind).startswith("large_list") else np.int32)
    return inner, _Level(shift, size, _region([array.buffers()[1] for array in arrays], width))


def _without_nulls(array: Any) -> Any:
    array = getattr(array, "storage", array)
    if array.null_count:
        raise NoFixedRows("there are nulls")
    return array


def _is_list(kind: Any) -> bool:
    return str(kind).startswith(("list<", "large_list<", "fixed_size_list<"))


def _number_type(kind: Any) -> np.dtype[Any]:
    if str(kind) not in _NUMBERS:
        raise NoFixedRows(f"{kind} is no number")
    return np.dtype(_NUMBERS[str(kind)])


def _region(buffers: list[Any], dtype: np.dtype[Any]) -> _Region:
    if any(buffer is None or not buffer.is_cpu for buffer in buffers):
        raise NoFixedRows("not in the memory of this machine")
    addresses = np.array([buffer.address for buffer in buffers], dtype=np.int64)
    lowest = min(buffer.address for buffer in buffers)
    highest = max(int(address) + buffer.size for address, buffer in zip(addresses, buffers, strict=True))
    if lowest % dtype.itemsize or ((addresses - lowest) % dtype.itemsize).any():
        raise NoFixedRows("not aligned")
    whole = (highest - lowest) // dtype.itemsize
    memory = (ctypes.c_char * (whole * dtype.itemsize)).from_address(lowest)
    return _Region(np.frombuffer(memory, dtype=dtype), (addresses - lowest) // dtype.itemsize)


def _windows(elements: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Row i is the `count` elements from element i on."""
    shape = (len(elements) - count + 1, count)
    return np.lib.stride_tricks.as_strided(elements, shape, (elements.itemsize, elements.itemsize))
