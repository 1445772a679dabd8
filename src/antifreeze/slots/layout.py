"""How the rows of a batch lie in a slot, and how samples become rows and rows a batch.

    sample (tree)            slot (columns)                      batch (tree)
    (image, {"y": 3})  ──▶  |image 0|image 1|…|  |y 0|y 1|…|  ──▶  [images, {"y": ys}]

1. A layout is learned from one sample by asking torch's default_collate what it makes of it; only plain tensors, numpy arrays, numbers
   and, beside larger ones of these, texts in plain containers have one (`learn` returns None for all else).
2. Leaf offsets are a function of the layout and the rows of the batch, so workers that never spoke agree on them.
3. A later sample that differs in type, dtype, shape or structure is Irregular: nothing is converted or broadcast silently.
"""

from __future__ import annotations

import math
import pickle
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import torch

from antifreeze.signals import raise_if_of_signal
from antifreeze.slots import texts
from antifreeze.torch_private import SHARED_AMONG_THREADS, collates_as_torch, default_collate

ALIGNMENT = 64
LARGE_ROW_BYTES = 128 * 1024
"""From here on a row is copied as soon as it is there, so its memory can serve the next sample; smaller ones are stacked together, which
costs 9 µs a sample less."""

_KEPT_OFFSETS = 64
_STACKED_BYTES = 256 * 1024
"""Up to here a column is stacked in memory of its own and then copied: cheaper than looking at each part first."""


class Irregular(Exception):
    """A sample does not fit the layout; its text says how."""


class LeafKind(Enum):
    TENSOR = "tensor"
    ARRAY = "array"
    NUMBER = "number"
    TEXT = "text"


@dataclass(frozen=True)
class Leaf:
    kind: LeafKind
    python_type: type
    dtype: torch.dtype
    shape: tuple[int, ...]
    gathered_in: type = torch.Tensor
    """What default_collate makes of many: of texts it makes a list or a tuple."""

    @property
    def is_tensor(self) -> bool:
        return self.kind is LeafKind.TENSOR

    @cached_property
    def row_bytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize

    def __str__(self) -> str:
        if self.kind in (LeafKind.NUMBER, LeafKind.TEXT):
            return self.python_type.__name__
        return f"{self.kind.value} {str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class Branch:
    """An inner node: a tuple, list, dict (with its keys) or namedtuple (with its type)."""

    python_type: type
    keys: tuple[Any, ...] | None
    children: tuple[Branch | Leaf, ...]


@dataclass(frozen=True)
class RowLayout:
    tree: Branch | Leaf
    leaves: tuple[Leaf, ...]

    @cached_property
    def row_bytes(self) -> int:
        return sum(leaf.row_bytes for leaf in self.leaves)

    @cached_property
    def has_keys(self) -> bool:
        """Whether there is a dict in it."""
        return _has_keys(self.tree)

    @cached_property
    def key(self) -> int:
        """Equal in all processes for equal layouts."""
        return zlib.crc32(repr((self.tree, self.leaves)).encode())

    def offsets(self, rows: int) -> list[int]:
        """Where each leaf's column begins in a slot of `rows` rows; one more entry: the bytes used in all."""
        known = self._offsets.get(rows)
        if known is not None:
            return known
        offsets, at = [], 0
        for leaf in self.leaves:
            offsets.append(at)
            at += -(-leaf.row_bytes * rows // ALIGNMENT) * ALIGNMENT
        if len(self._offsets) < _KEPT_OFFSETS:
            self._offsets[rows] = [*offsets, at]
        return [*offsets, at]

    @cached_property
    def _offsets(self) -> dict[int, list[int]]:
        return {}

    def columns(self, buffer: Any, rows: int) -> list[torch.Tensor]:
        """One tensor per leaf over `buffer`, all `rows` rows of it."""
        return [
            tensor_over(buffer, leaf.dtype, (rows, *leaf.shape), offset)
            if leaf.row_bytes * rows
            else torch.empty((rows, *leaf.shape), dtype=leaf.dtype, device="cpu")
            for leaf, offset in zip(self.leaves, self.offsets(rows), strict=False)
        ]

    def assemble(self, columns: Sequence[torch.Tensor]) -> Any:
        """The batch as default_collate would have built it."""
        return _assemble(self.tree, iter(columns))


_NUMPY_NAMES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
NUMPY_DTYPES = {getattr(torch, name): np.dtype(name) for name in _NUMPY_NAMES}


def tensor_over(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> torch.Tensor:
    """A tensor of its own storage, not a view of another tensor: the user may do to it what he likes (detach_(), for one)."""
    numpy_dtype = NUMPY_DTYPES.get(dtype)
    if numpy_dtype is not None:
        return torch.from_numpy(np.ndarray(shape, numpy_dtype, buffer, offset))
    flat = torch.frombuffer(buffer, dtype=torch.uint8, count=math.prod(shape) * dtype.itemsize, offset=offset)
    return torch.empty(0, dtype=dtype, device="cpu").set_(flat.untyped_storage(), 0, shape, torch.empty(shape, device="meta").stride())


def learn(sample: Any) -> RowLayout | None:
    """The layout of samples like this one, or None where they have none."""
    try:
        if not _is_plain(sample):
            return None
        reference = default_collate([sample])
        tree = _tree(sample, reference)
    except Exception as error:  # the batch itself will raise what torch raises, with the sample's index
        raise_if_of_signal(error)
        return None
    leaves: list[Leaf] = []
    _collect(tree, leaves)
    layout = RowLayout(tree, tuple(leaves)) if leaves and _texts_pay(leaves) else None
    return layout if _can_be_told(layout) else None


def _texts_pay(leaves: Sequence[Leaf]) -> bool:
    """Cells are mostly empty: they are for texts beside something larger."""
    cells = sum(leaf.row_bytes for leaf in leaves if leaf.kind is LeafKind.TEXT)
    return not cells or 2 * cells <= sum(leaf.row_bytes for leaf in leaves)


def _can_be_told(layout: RowLayout | None) -> bool:
    """A namedtuple made inside a function has no name by which the parent could find it."""
    try:
        pickle.dumps(layout)
    except Exception as error:
        raise_if_of_signal(error)
        return False
    return True


def transpose(layout: RowLayout, samples: Sequence[Any]) -> list[Sequence[Any]]:
    """One column of sample parts per leaf, in the order of layout.leaves."""
    columns: list[Sequence[Any]] = []
    _transpose(layout.tree, samples, columns)
    return columns


def write_column(leaf: Leaf, into: torch.Tensor, column: Sequence[Any], alone: bool = False) -> None:
    """Copies `column` into the rows of `into`, all of one kind, dtype and shape, or raises Irregular. `alone`: not in several threads."""
    if alone and leaf.kind is LeafKind.TENSOR and into.numel() >= SHARED_AMONG_THREADS * max(1, len(into)):
        for row, part in enumerate(column):
            _write_tensor(leaf, into, row, part, alone)
        return
    _WRITERS[leaf.kind](leaf, into, column)


def starts_as(layout: RowLayout, sample: Any) -> bool:
    """Whether a batch whose first sample this is has the layout's containers and tensors of its dtypes."""
    parts: list[Any] = []
    try:
        _flatten(layout.tree, sample, parts)
    except Irregular:
        return False
    return all(getattr(part, "dtype", leaf.dtype) == leaf.dtype for leaf, part in zip(layout.leaves, parts, strict=True) if leaf.is_tensor)


def write_sample(layout: RowLayout, columns: Sequence[torch.Tensor], row: int, sample: Any, alone: bool = False) -> None:
    """One sample into row `row` of the columns, as write_column does it for many; or raises Irregular."""
    parts: list[Any] = []
    _flatten(layout.tree, sample, parts)
    for leaf, column, part in zip(layout.leaves, columns, parts, strict=True):
        if leaf.kind is LeafKind.TENSOR:
            _write_tensor(leaf, column, row, part, alone)
        else:
            _SAMPLE_WRITERS[leaf.kind](leaf, column, row, part)


# --- learning ---------------------------------------------------------------------------------------------------------

_CONTAINERS = (tuple, list, dict)


def _is_plain(sample: Any) -> bool:
    kind = type(sample)
    if not collates_as_torch(sample):
        return False
    if kind is dict:
        return bool(sample) and all(_is_plain(part) for part in sample.values())
    if kind in (tuple, list) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return bool(sample) and all(_is_plain(part) for part in sample)
    if kind is torch.Tensor:
        return bool(sample.layout is torch.strided and sample.device.type == "cpu" and not (sample.requires_grad or sample.is_nested))
    if kind is np.ndarray or kind is np.memmap:
        return bool(sample.dtype.isnative and sample.dtype.kind in "biufc")
    if kind in texts.CELLS:
        return texts.fits(kind, sample)
    return kind in (int, float, bool) or (isinstance(sample, (np.number, np.bool_)) and sample.dtype.isnative)


def _tree(sample: Any, reference: Any) -> Branch | Leaf:
    kind = type(sample)
    if kind is dict:
        return Branch(dict, tuple(sample), tuple(_tree(sample[key], reference[key]) for key in sample))
    if issubclass(kind, (tuple, list)):
        return Branch(kind, None, tuple(_tree(part, made) for part, made in zip(sample, reference, strict=True)))
    if kind in texts.CELLS:
        return Leaf(LeafKind.TEXT, kind, texts.CELLS[kind][0], (texts.WIDTH,), type(reference))
    if kind is torch.Tensor:
        leaf_kind = LeafKind.TENSOR
    elif issubclass(kind, np.ndarray):
        leaf_kind = LeafKind.ARRAY
    else:
        leaf_kind = LeafKind.NUMBER
    if kind is np.ndarray or kind is np.memmap:
        kind = np.ndarray
    return Leaf(leaf_kind, kind, reference.dtype, tuple(reference.shape[1:]))


def _has_keys(node: Branch | Leaf) -> bool:
    return isinstance(node, Branch) and (node.keys is not None or any(map(_has_keys, node.children)))


def _collect(node: Branch | Leaf, leaves: list[Leaf]) -> None:
    if isinstance(node, Leaf):
        leaves.append(node)
    else:
        for child in node.children:
            _collect(child, leaves)


# --- samples to rows --------------------------------------------------------------------------------------------------


def _transpose(node: Branch | Leaf, samples: Sequence[Any], columns: list[Sequence[Any]]) -> None:
    if isinstance(node, Leaf):
        columns.append(samples)
        return
    if set(map(type, samples)) != {node.python_type}:
        raise Irregular(f"its container is not a {node.python_type.__name__}")
    if set(map(len, samples)) != {len(node.children)}:
        raise Irregular(f"its {node.python_type.__name__} has not {len(node.children)} parts")
    for key, child in zip(node.keys or range(len(node.children)), node.children, strict=True):
        try:
            parts = list(map(itemgetter(key), samples))
        except KeyError:
            raise Irregular(f"its dict has no key {key!r}") from None
        _transpose(child, parts, columns)


def _flatten(node: Branch | Leaf, sample: Any, parts: list[Any]) -> None:
    if isinstance(node, Leaf):
        parts.append(sample)
        return
    kind: Any = node.python_type
    if type(sample) is not kind:
        raise Irregular(f"its container is not a {kind.__name__}")
    if len(sample) != len(node.children):
        raise Irregular(f"its {kind.__name__} has not {len(node.children)} parts")
    for key, child in zip(node.keys or range(len(node.children)), node.children, strict=True):
        try:
            part = sample[key]
        except KeyError:
            raise Irregular(f"its dict has no key {key!r}") from None
        _flatten(child, part, parts)


_dtype_of: Callable[[Any], Any] = attrgetter("dtype")
_shape_of: Callable[[Any], Any] = attrgetter("shape")


def _write_tensors(leaf: Leaf, into: torch.Tensor, column: Sequence[Any]) -> None:
    try:
        if into.nbytes <= _STACKED_BYTES and len(column) > 1:
            stacked = torch.stack(tuple(column))
            _check_is(leaf, stacked, stacked.shape[1:])
            into.copy_(stacked)
            return
        if set(map(type, column)) != {torch.Tensor} or set(map(_dtype_of, column)) != {leaf.dtype}:
            raise Irregular(f"a part is not a {leaf}")
        if len(column) > 1:
            torch.stack(tuple(column), out=into)
        else:
            _check_is(leaf, column[0], column[0].shape)
            into[0].copy_(column[0])
    except (RuntimeError, TypeError) as error:
        raise Irregular(str(error)) from None


def _check_is(leaf: Leaf, tensor: torch.Tensor, shape: torch.Size) -> None:
    """Of a stack it tells as much as of each part: a part of another type, dtype or kind makes another stack, or none."""
    if type(tensor) is not torch.Tensor or tensor.dtype != leaf.dtype or tensor.layout is not torch.strided:
        raise Irregular(f"a part is not a {leaf}")
    if tensor.requires_grad or tensor.is_nested:
        raise Irregular("a tensor requires grad or is not dense")
    if shape != leaf.shape:
        raise Irregular(f"a part has shape {list(shape)}, not {list(leaf.shape)}")


def _write_arrays(leaf: Leaf, into: torch.Tensor, column: Sequence[Any]) -> None:
    rows = into.numpy()
    if not set(map(type, column)) <= {np.ndarray, np.memmap} or set(map(_dtype_of, column)) != {rows.dtype}:
        raise Irregular(f"a part is not a {leaf}")
    if set(map(_shape_of, column)) != {leaf.shape}:
        raise Irregular(f"a part has not shape {list(leaf.shape)}")
    for row, part in enumerate(column):
        rows[row] = part


def _write_numbers(leaf: Leaf, into: torch.Tensor, column: Sequence[Any]) -> None:
    if set(map(type, column)) != {leaf.python_type}:
        raise Irregular(f"a part is not a {leaf.python_type.__name__}")
    try:
        into.numpy()[:] = column
    except OverflowError as error:
        raise Irregular(str(error)) from None


def _write_texts(leaf: Leaf, into: torch.Tensor, column: Sequence[Any]) -> None:
    if not all(map(partial(texts.fits, leaf.python_type), column)):
        raise Irregular(f"a part is not a {leaf.python_type.__name__} of up to {texts.WIDTH} characters")
    texts.write(leaf.python_type, into, column)


_WRITERS: dict[LeafKind, Callable[[Leaf, torch.Tensor, Sequence[Any]], None]] = {
    LeafKind.TENSOR: _write_tensors,
    LeafKind.ARRAY: _write_arrays,
    LeafKind.NUMBER: _write_numbers,
    LeafKind.TEXT: _write_texts,
}


def _write_tensor(leaf: Leaf, column: torch.Tensor, row: int, part: Any, alone: bool) -> None:
    if type(part) is not torch.Tensor:
        raise Irregular(f"a part is not a {leaf}")
    _check_is(leaf, part, part.shape)
    try:
        _copy(part, column, row, alone)
    except RuntimeError as error:
        raise Irregular(str(error)) from None


def _copy(part: torch.Tensor, column: torch.Tensor, row: int, alone: bool) -> None:
    """By numpy, which leaves a contiguous piece to the C library: on some processors that is half again as fast as torch's loop, but
    not as torch's loop in several threads. What numpy does not know (bfloat16, a lazy conjugate) torch copies."""
    if not alone and torch.get_num_threads() > 1:
        column[row].copy_(part)
        return
    try:
        into, array = column.numpy(), part.numpy()
    except (TypeError, RuntimeError):
        column[row].copy_(part)
    else:
        into[row] = array


def _write_array(leaf: Leaf, column: torch.Tensor, row: int, part: Any) -> None:
    rows = column.numpy()
    if type(part) not in (np.ndarray, np.memmap) or part.dtype != rows.dtype:
        raise Irregular(f"a part is not a {leaf}")
    if part.shape != leaf.shape:
        raise Irregular(f"a part has not shape {list(leaf.shape)}")
    rows[row] = part


def _write_number(leaf: Leaf, column: torch.Tensor, row: int, part: Any) -> None:
    if type(part) is not leaf.python_type:
        raise Irregular(f"a part is not a {leaf.python_type.__name__}")
    try:
        column.numpy()[row] = part
    except OverflowError as error:
        raise Irregular(str(error)) from None


def _write_text(leaf: Leaf, column: torch.Tensor, row: int, part: Any) -> None:
    _write_texts(leaf, column[row : row + 1], (part,))


_SAMPLE_WRITERS: dict[LeafKind, Callable[[Leaf, torch.Tensor, int, Any], None]] = {
    LeafKind.ARRAY: _write_array,
    LeafKind.NUMBER: _write_number,
    LeafKind.TEXT: _write_text,
}


# --- rows to batch ----------------------------------------------------------------------------------------------------


def _assemble(node: Branch | Leaf, columns: Any) -> Any:
    if isinstance(node, Leaf):
        column = next(columns)
        return column if node.kind is not LeafKind.TEXT else node.gathered_in(texts.read(node.python_type, column))
    parts = [_assemble(child, columns) for child in node.children]
    if node.keys is not None:
        return dict(zip(node.keys, parts, strict=True))
    if hasattr(node.python_type, "_fields"):
        return node.python_type(*parts)
    return parts
