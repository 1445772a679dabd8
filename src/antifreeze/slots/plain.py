"""A parcel without a pickle: a batch of nothing but dense tensors in plain containers.

    |-count|outline bytes|offset dtype dims size size …|offset dtype dims size …| outline |  bytes  |  bytes  | …
     header, int64                                                                 pickle    of each tensor

1. The outline (which containers, which keys) is the same from batch to batch: it is pickled once per process and read once.
2. Tensors that are not contiguous, require grad, share memory, or have a dtype numpy does not know are not plain: `pack_plain`
   returns None, and the general parcel takes them.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from antifreeze.slots.layout import ALIGNMENT, NUMPY_DTYPES, tensor_over

_DTYPES = list(NUMPY_DTYPES)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_TENSOR = None
"""In an outline: a tensor stands here. A container is (kind, keys, parts)."""
_LIST, _TUPLE, _DICT = range(3)
_KINDS: dict[type, int] = {list: _LIST, tuple: _TUPLE, dict: _DICT}
_KEPT_OUTLINES = 1024

_pickled: dict[Any, bytes] = {}
_read: dict[bytes, Any] = {}


class PlainParcel:
    def __init__(self, outline: bytes, tensors: list[torch.Tensor]) -> None:
        header = [-len(tensors), len(outline)]
        at = 16 + sum(8 * (3 + tensor.dim()) for tensor in tensors) + len(outline)
        self._arrays: list[tuple[int, Any]] = []
        for tensor in tensors:
            at = -(-at // ALIGNMENT) * ALIGNMENT
            header += (at, _CODES[tensor.dtype], tensor.dim(), *tensor.shape)
            self._arrays.append((at, tensor.numpy().reshape(-1).view(np.uint8)))
            at += tensor.nbytes
        self.size_bytes = at
        self._head = struct.pack(f"<{len(header)}q", *header) + outline

    def write(self, buffer: Any) -> None:
        target = np.frombuffer(buffer, dtype=np.uint8)
        target[: len(self._head)] = np.frombuffer(self._head, dtype=np.uint8)
        for at, source in self._arrays:
            target[at : at + len(source)] = source


def pack_plain(batch: Any) -> PlainParcel | None:
    """None where the batch holds anything else than plain tensors, or the same memory twice."""
    tensors: list[torch.Tensor] = []
    try:
        outline = _outline(batch, tensors)
        pickled = _pickled.get(outline)
    except (_NotPlain, TypeError, RecursionError):  # a key may not be hashable, a batch may hold itself
        return None
    if not tensors or _overlap(tensors):
        return None
    if pickled is None:
        pickled = pickle.dumps(outline, protocol=5)
        if len(_pickled) >= _KEPT_OUTLINES:
            _pickled.clear()
        _pickled[outline] = pickled
    return PlainParcel(pickled, tensors)


def unpack_plain(owner: Any) -> Any:
    """The batch; its tensors are views of `owner` and keep it alive."""
    count, outline_bytes = struct.unpack_from("<2q", owner, 0)
    at, tensors = 16, []
    for _ in range(-count):
        offset, code, dims = struct.unpack_from("<3q", owner, at)
        shape = struct.unpack_from(f"<{dims}q", owner, at + 24)
        at += 24 + 8 * dims
        tensors.append(tensor_over(owner, _DTYPES[code], shape, offset))
    pickled = bytes(owner[at : at + outline_bytes])
    outline = _read.get(pickled, _read)
    if outline is _read:
        outline = pickle.loads(pickled)
        if len(_read) >= _KEPT_OUTLINES:
            _read.clear()
        _read[pickled] = outline
    return _fill(outline, iter(tensors))


class _NotPlain(Exception):
    pass


def _outline(part: Any, tensors: list[torch.Tensor]) -> Any:
    kind = type(part)
    if kind is torch.Tensor:
        if (
            part.layout is not torch.strided
            or part.is_nested
            or part.dtype not in _CODES
            or not part.is_cpu
            or part.requires_grad
            or not _is_row_major(part)
            or part.is_conj()
            or part.is_neg()
        ):
            raise _NotPlain
        tensors.append(part)
        return _TENSOR
    code = _KINDS.get(kind)
    if code is None:
        raise _NotPlain
    if code != _DICT:
        return code, None, tuple([_outline(inner, tensors) for inner in part])
    keys = tuple(part)
    if set(map(type, keys)) - {str, int}:
        raise _NotPlain
    return code, keys, tuple([_outline(inner, tensors) for inner in part.values()])


def _is_row_major(tensor: torch.Tensor) -> bool:
    """Contiguous, and also the strides of empty dimensions and of those of size 1 are as a new tensor has them."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return False
        expected *= max(size, 1)
    return True


def _overlap(tensors: list[torch.Tensor]) -> bool:
    if len(tensors) < 2:
        return False
    spans = sorted((tensor.data_ptr(), tensor.nbytes) for tensor in tensors if tensor.nbytes)
    if len(spans) < len(tensors) - 1 and len(set(map(id, tensors))) < len(tensors):
        return True  # one without a byte, twice
    return any(begin + size > following for (begin, size), (following, _) in pairwise(spans))


def _fill(outline: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if outline is _TENSOR:
        return next(tensors)
    code, keys, parts = outline
    filled = [_fill(part, tensors) for part in parts]
    if code == _DICT:
        return dict(zip(keys, filled, strict=True))
    return filled if code == _LIST else tuple(filled)
