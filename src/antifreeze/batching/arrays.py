"""The arrays of one field, one of each sample, made alike: numpy's where that costs nothing, else tensors; and the dtype of them all."""

from __future__ import annotations

from functools import lru_cache, reduce
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from antifreeze.batching.fields import bad_row, called, is_array
from antifreeze.errors import BadSample


def same_kind(path: str, column: list[Any]) -> tuple[list[Any], torch.dtype]:
    """All of them as numpy arrays where that costs nothing, else as tensors; and the dtype of the result."""
    all_tensors = set(map(type, column)) == {torch.Tensor}
    for row, part in enumerate(() if all_tensors else column):
        if not is_array(part):
            raise bad_row(row, f"{called(path)} is {_kind(part)}, but in the batch's first sample {_kind(column[0])}")
    try:
        arrays: list[Any]
        if all_tensors:
            arrays = [part.numpy() for part in column]
        else:
            arrays = [part.numpy() if type(part) is torch.Tensor else _array(path, row, part) for row, part in enumerate(column)]
        kinds = set(map(attrgetter("dtype"), arrays))
        if len(kinds) > 1:
            kinds = {array.dtype for array in arrays if len(array)} or {arrays[0].dtype}  # an empty list has no kind of its own
        return arrays, reduce(torch.promote_types, map(_torch_dtype, kinds))
    except BadSample:
        raise
    except (RuntimeError, TypeError, _NoPlainArray):  # a gradient, another device, bfloat16 …
        tensors: list[Any] = [_tensor(path, row, part) for row, part in enumerate(column)]
        return tensors, reduce(torch.promote_types, {tensor.dtype for tensor in tensors})


def _array(path: str, row: int, part: Any) -> Any:
    if type(part) is np.ndarray:
        return part
    if not isinstance(part, list):
        raise _NoPlainArray
    try:
        array = np.array(part)
    except ValueError as error:
        raise bad_row(row, f"{called(path)} is a list of lists of different lengths: {error}") from error
    if array.dtype.kind not in "biuf":
        raise bad_row(row, f"{called(path)} is a list of {array.dtype}, not of numbers")
    return array.astype(_numpy_dtype(torch.get_default_dtype())) if array.dtype.kind == "f" else array


class _NoPlainArray(Exception):
    pass


@lru_cache
def _torch_dtype(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=dtype)).dtype


@lru_cache
def _numpy_dtype(dtype: torch.dtype) -> Any:
    return torch.empty(0, dtype=dtype).numpy().dtype


def _tensor(path: str, row: int, part: Any) -> torch.Tensor:
    """Lists become what torch.tensor makes of them."""
    if isinstance(part, torch.Tensor):
        return part
    try:
        return torch.from_numpy(part) if isinstance(part, np.ndarray) else torch.tensor(part)
    except (TypeError, ValueError) as error:
        raise bad_row(row, f"{called(path)} cannot be a tensor: {error}") from error


def _kind(part: Any) -> str:
    return f"an array ({type(part).__name__})" if is_array(part) else f"none: {type(part).__name__}"
