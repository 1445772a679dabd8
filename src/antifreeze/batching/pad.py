"""`Pad`: a collate function for samples of different lengths.

    [[5, 7, 2], [3]]  ──Pad(0, lengths=True)──▶  tensor [[5, 7, 2], [3, 0, 0]], tensor [3, 1]

1. Every field whose arrays differ in size is filled up with `value` to the longest of the batch, in whichever dimensions they differ. With
   a mapping {field: value} only the named ones are; others must have one shape, as in torch's default_collate.
2. `multiple_of`, `length`, `lengths` and `mask` speak of named fields, or of samples that are arrays themselves: what merely happens to
   be equally long in one batch would else be another shape there.
3. What does not fit (another number of dimensions, longer than `length`, a value its dtype cannot hold) is refused, with its row and field.
4. What is no plain array in memory (bfloat16, tensors with a gradient) goes torch's way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np
import torch

from antifreeze.batching.arrays import refuse_other_shapes, same_kind
from antifreeze.batching.checked import whole_number
from antifreeze.batching.fields import arrays_of, bad_row, called, collate_fields, listed, odd_of, refuse_unknown, with_parts
from antifreeze.errors import OptionError

Value = int | float | bool


class Pad:
    """A collate_fn: `DataLoader(dataset, batch_size=64, collate_fn=Pad({"input_ids": 0, "labels": -100}, multiple_of=8))`.

    value        what is filled in; or a mapping of the fields that are padded to theirs: {"input_ids": 0}, {0: 0} for the first of a tuple
    dim          the dimensions of a sample that `multiple_of`, `length`, `lengths` and `mask` speak of
    multiple_of  sizes are rounded up to multiples of it
    length       every batch has exactly this size there; a longer sample is a bad one, or cut (`truncate`)
    side         "right" (default) or "left": where the filling goes
    lengths      the sizes as they were: a key for them where samples are dicts, else True, and they come as one more part of the batch
    mask         likewise, a tensor that is True where there is no filling; both are those of the first field that is named
    """

    def __init__(
        self,
        value: Value | Mapping[Any, Value] = 0,
        *,
        dim: int | Sequence[int] = 0,
        multiple_of: int = 1,
        length: int | None = None,
        truncate: bool = False,
        side: str = "right",
        lengths: str | bool = False,
        mask: str | bool = False,
    ) -> None:
        self.values = {str(field): _filling(each) for field, each in value.items()} if isinstance(value, Mapping) else None
        self.value = 0 if isinstance(value, Mapping) else _filling(value)
        dims = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
        self.dims = tuple(whole_number("Pad", "dim", each, least=None) for each in dims)
        self.multiple_of = whole_number("Pad", "multiple_of", multiple_of)
        self.length = None if length is None else whole_number("Pad", "length", length)
        self.truncate, self.side, self.lengths, self.mask = truncate, side, lengths, mask
        self._check()

    def _check(self) -> None:
        if not self.dims:
            raise OptionError("Pad: dim=() names no dimension")
        if self.values is not None and not self.values:
            raise OptionError("Pad: value={} names no field; leave it out to pad every field that needs it")
        if self.side not in ("right", "left"):
            raise OptionError(f'Pad: side is "right" or "left", not {self.side!r}')
        if self.length is not None and self.length % self.multiple_of:
            raise OptionError(f"Pad: length={self.length} is no multiple of multiple_of={self.multiple_of}")
        if self.truncate and self.length is None:
            raise OptionError("Pad: truncate=True cuts to `length`, which is not given")

    def __repr__(self) -> str:
        return f"Pad({self.value if self.values is None else self.values})"

    def __call__(self, samples: list[Any]) -> Any:
        return _Padding(self, samples).batch()

    @property
    def speaks_of_a_field(self) -> bool:
        return bool(self.multiple_of > 1 or self.length is not None or self.lengths or self.mask)


class _Padding:
    """One batch."""

    def __init__(self, pad: Pad, samples: list[Any]) -> None:
        self._pad = pad
        self._samples = samples
        self._sizes: list[list[int]] = []  # of the first named field, in each of the dimensions `dim`, as they were
        self._padded: tuple[int, ...] = ()

    def batch(self) -> Any:
        pad = self._pad
        refuse_unknown(pad, pad.values or (), self._samples)
        batch = collate_fields(self._samples, self._field)
        parts: list[tuple[str | bool, torch.Tensor]] = []
        if pad.lengths:
            parts.append((pad.lengths, torch.tensor(self._sizes).T.contiguous() if len(pad.dims) > 1 else torch.tensor(self._sizes[0])))
        if pad.mask:
            parts.append((pad.mask, self._mask()))
        return with_parts(pad, batch, parts)

    def _mask(self) -> torch.Tensor:
        mask: Any = True
        for at, padded in enumerate(self._padded):
            places, size = np.arange(padded), np.array(self._sizes[at])[:, None]
            real = places < size if self._pad.side == "right" else places >= padded - size
            mask = mask & real.reshape(len(size), *(padded if other == at else 1 for other in range(len(self._padded))))
        return torch.from_numpy(mask)

    # --- one field ---

    def _field(self, path: str, column: Sequence[Any]) -> torch.Tensor:
        pad = self._pad
        if pad.values is None and path and pad.speaks_of_a_field:
            raise OptionError(
                "Pad: multiple_of, length, lengths and mask must be told which fields they are for: one whose samples happen to be equally "
                f"long in a batch could not be told from one that never changes; Pad({{{path!r}: {pad.value}}}, …). Arrays of the "
                f"samples are {listed(path for path, _ in arrays_of(self._samples[0]))}"
            )
        parts, dtype = same_kind(path, column)
        named = path in pad.values if pad.values is not None else not path
        if named and pad.speaks_of_a_field:
            return self._padded_field(path, self._measured(path, parts), dtype)
        if pad.values is not None and not named:
            refuse_other_shapes(path, parts, pad)
        return self._filled(path, parts, dtype, _largest(path, parts))

    def _measured(self, path: str, parts: list[Any]) -> list[Any]:
        """Cut to `length` where that is to be; their sizes are noted for the first named field."""
        pad, dims = self._pad, self._dims_of(path, parts[0])
        sizes = [[part.shape[dim] for part in parts] if dim else list(map(len, parts)) for dim in dims]
        if pad.length is not None and max(map(max, sizes)) > pad.length:
            if not pad.truncate:
                longest = [max(of_one) for of_one in zip(*sizes, strict=True)]
                row = next(row for row, size in enumerate(longest) if size > pad.length)
                raise bad_row(
                    row, f"{called(path)} is {longest[row]:,} long, and Pad(length={pad.length}) takes no more; truncate=True cuts"
                )
            kept = slice(None, pad.length) if pad.side == "right" else slice(-pad.length, None)
            parts = [part[tuple(kept if at in dims else slice(None) for at in range(part.ndim))] for part in parts]
            sizes = [[min(size, pad.length) for size in of_dim] for of_dim in sizes]
        if pad.values is None or path == next(iter(pad.values)):
            self._sizes = sizes
        return parts

    def _padded_field(self, path: str, parts: list[Any], dtype: torch.dtype) -> torch.Tensor:
        shape, pad = _largest(path, parts), self._pad
        for dim in self._dims_of(path, parts[0]):
            shape[dim] = -(-shape[dim] // pad.multiple_of) * pad.multiple_of if pad.length is None else pad.length
        if pad.values is None or path == next(iter(pad.values)):
            self._padded = tuple(shape[dim] for dim in self._dims_of(path, parts[0]))
        return self._filled(path, parts, dtype, shape)

    def _dims_of(self, path: str, part: Any) -> tuple[int, ...]:
        wrong = next((dim for dim in self._pad.dims if not -part.ndim <= dim < part.ndim), None)
        if wrong is not None:
            raise OptionError(f"Pad: dim={wrong}, but {called(path)} has {part.ndim} dimensions")
        dims = tuple(dim % part.ndim for dim in self._pad.dims)
        if len(set(dims)) < len(dims):
            raise OptionError(f"Pad: dim={self._pad.dims} names a dimension twice, as {called(path)} has {part.ndim}")
        return dims

    def _filled(self, path: str, parts: list[Any], dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
        pad = self._pad
        value = pad.value if pad.values is None else pad.values.get(path, 0)
        if not _can_hold(dtype, value):
            raise OptionError(
                f"{pad}: {value!r} cannot be filled into {called(path)}, whose samples are {str(dtype).removeprefix('torch.')}"
            )
        whole = torch.empty((len(parts), *shape), dtype=dtype, device=getattr(parts[0], "device", None) if _is_tensor(parts[0]) else None)
        rows: Any = whole if _is_tensor(parts[0]) else whole.numpy()
        if len(shape) == 1:
            _fill_lines(rows, parts, value, pad.side == "left")
        else:
            _fill_blocks(rows, parts, value, pad.side == "left")
        return whole


def _filling(value: Any) -> Value:
    if not isinstance(value, Real):
        raise OptionError(f"Pad: value is a number, or a mapping from fields to numbers, not {value!r}")
    return value.item() if isinstance(value, np.generic) else value  # type: ignore[return-value]


def _fill_lines(rows: Any, parts: list[Any], value: Value, left: bool) -> None:
    rows[...] = value  # all at once: what is written twice lies in the caches, and a piece of a row costs as much as 2 KB
    for number, part in enumerate(parts):
        if not left:
            rows[number, : len(part)] = part
        elif len(part):
            rows[number, -len(part) :] = part


def _fill_blocks(rows: Any, parts: list[Any], value: Value, left: bool) -> None:
    for number, part in enumerate(parts):
        row = rows[number]
        if row.shape != part.shape:
            row[...] = value
            row = row[tuple(slice(has - size, None) if left else slice(size) for size, has in zip(part.shape, row.shape, strict=True))]
        row[...] = part


def _largest(path: str, parts: list[Any]) -> list[int]:
    shapes = [part.shape for part in parts]
    dims = len(shapes[0])
    if any(len(shape) != dims for shape in shapes):
        row, usual, where = odd_of(list(map(len, shapes)))
        raise bad_row(row, f"{called(path)} has {len(shapes[row])} dimensions, but {len(shapes[usual])} {where}")
    return [max(sizes) for sizes in zip(*shapes, strict=True)]


@lru_cache
def _can_hold(dtype: torch.dtype, value: Value) -> bool:
    if dtype.is_complex or dtype.is_floating_point:
        return not dtype.is_floating_point or not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    if dtype is torch.bool:
        return value in (0, 1)
    return math.isfinite(value) and value == int(value) and torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max


def _is_tensor(part: Any) -> bool:
    return isinstance(part, torch.Tensor)
