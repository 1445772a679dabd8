"""The arrays of one field, one of each sample, made alike: numpy's where that costs nothing, else tensors; and the dtype of them all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from antifreeze.batching.fields import bad_row, begins_as_array, called, is_array, odd_of
from antifreeze.errors import BadSample


def same_kind(path: str, column: Sequence[Any]) -> tuple[list[Any], torch.dtype]:
    """All of them as numpy arrays where that costs nothing, else as tensors; and the dtype of the result."""
    types = set(map(type, column))
    for row, part in enumerate(() if types <= {torch.Tensor, np.ndarray} else column):
        if not begins_as_array(part):
            raise bad_row(row, f"{called(path)} is {_kind(part)}, but in the batch's first sample {_kind(column[0])}")
    try:
        arrays: list[Any]
        if types == {torch.Tensor}:
            arrays = [part.numpy() for part in column]
        else:
            arrays = [part.numpy() if type(part) is torch.Tensor else _array(path, row, part) for row, part in enumerate(column)]
            arrays = _empty_as_the_others(column, arrays) if list in types else arrays
        kinds = set(map(attrgetter("dtype"), arrays))
        if len(kinds) > 1:
            kinds = {array.dtype for array in arrays if array.size} or {arrays[0].dtype}  # what is empty has no kind of its own
        return arrays, reduce(torch.promote_types, map(_torch_dtype, kinds))
    except BadSample:
        raise
    except (RuntimeError, TypeError, _NoPlainArray):  # a gradient, another device, bfloat16 …
        tensors: list[Any] = _empty_as_the_others(column, [_tensor(path, row, part) for row, part in enumerate(column)])
        return tensors, _promoted(path, tensors)


def refuse_other_shapes(path: str, parts: list[Any], maker: Any) -> None:
    shapes = [tuple(part.shape) for part in parts]
    if shapes.count(shapes[0]) != len(shapes):
        row, usual, where = odd_of(shapes)
        raise bad_row(row, f"{called(path)} has the shape {shapes[row]}, {where} {shapes[usual]}, and is not among the fields of {maker}")


def _empty_as_the_others(column: Sequence[Any], arrays: list[Any]) -> list[Any]:
    """An empty list has no shape of its own: there are no boxes, but boxes have four numbers."""
    empty = [type(part) is list and not part for part in column]
    like = next((array for array, is_empty in zip(arrays, empty, strict=True) if not is_empty), None)
    return arrays if like is None else [like[:0] if is_empty else array for array, is_empty in zip(arrays, empty, strict=True)]


def _promoted(path: str, tensors: list[Any]) -> torch.dtype:
    first: torch.dtype = tensors[0].dtype
    dtype = first
    for row, tensor in enumerate(tensors):
        try:
            dtype = torch.promote_types(dtype, tensor.dtype)
        except RuntimeError as error:
            raise bad_row(row, f"{called(path)} is {tensor.dtype}, in the batch's first sample {first}: {error}") from error
    return dtype


def _array(path: str, row: int, part: Any) -> Any:
    if isinstance(part, np.ndarray):
        return np.asarray(part)  # a memory map's rows too
    if not isinstance(part, list):
        raise _NoPlainArray
    try:
        array = np.array(part)
    except ValueError as error:
        raise bad_row(row, f"{called(path)} is a list of lists of different lengths: {error}") from error
    if array.dtype.kind not in "biufc":
        raise bad_row(row, f"{called(path)} is a list of {array.dtype}, not of numbers")
    if array.dtype.kind == "c":
        raise _NoPlainArray
    return array.astype(_numpy_dtype(torch.get_default_dtype())) if array.dtype.kind == "f" else array


class _NoPlainArray(Exception):
    pass


@lru_cache
def _torch_dtype(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=dtype.newbyteorder("="))).dtype


@lru_cache
def _numpy_dtype(dtype: torch.dtype) -> Any:
    return torch.empty(0, dtype=dtype).numpy().dtype


def _tensor(path: str, row: int, part: Any) -> torch.Tensor:
    """Lists become what torch.tensor makes of them."""
    if isinstance(part, torch.Tensor):
        if not is_array(part):
            raise bad_row(row, f"{called(path)} is {_kind(part)}, but in the batch's first sample an array")
        return part
    try:
        if isinstance(part, np.ndarray):  # a copy is writable, of this machine's byte order, and forwards
            return torch.from_numpy(np.array(part, dtype=part.dtype.newbyteorder("=")))
        return torch.tensor(part)
    except (TypeError, ValueError) as error:
        raise bad_row(row, f"{called(path)} cannot be a tensor: {error}") from error


def _kind(part: Any) -> str:
    return f"an array ({type(part).__name__})" if is_array(part) else f"no array of numbers ({type(part).__name__})"
