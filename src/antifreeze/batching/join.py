"""`Join`: a collate function that puts samples one behind the other, without any filling.

    [[5, 7, 2], [3]]  ──Join(offsets=True)──▶  tensor [5, 7, 2, 3], tensor [0, 3, 4]

1. The named fields are joined along their first dimension; without names every array is. All else is collated as torch does it.
2. `offsets` are where each sample begins, and the end (int32: what attention over sequences of different lengths takes as cu_seqlens);
   `positions` count from 0 within each sample. Both are those of the first joined field; all joined fields of a sample must be as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from antifreeze.batching.arrays import refuse_other_shapes, same_kind
from antifreeze.batching.fields import arrays_of, bad_row, called, collate_fields, odd_of, refuse_unknown, with_parts
from antifreeze.errors import OptionError


class Join:
    """A collate_fn: `DataLoader(dataset, batch_sampler=…, collate_fn=Join("input_ids", "labels", offsets="cu_seqlens"))`.

    fields     which arrays are joined (default: every one)
    offsets    a key for the offsets where samples are dicts; else True, and they come as one more part of the batch
    positions  likewise for the positions
    """

    def __init__(self, *fields: str | int, offsets: str | bool = False, positions: str | bool = False) -> None:
        self.fields = tuple(map(str, fields))
        self.offsets, self.positions = offsets, positions

    def __repr__(self) -> str:
        return f"Join({', '.join(map(repr, self.fields))})"

    def __call__(self, samples: list[Any]) -> Any:
        joined: dict[str, list[int]] = {}

        def field(path: str, column: Sequence[Any]) -> Any:
            parts, dtype = same_kind(path, column)
            if self.fields and path not in self.fields:
                refuse_other_shapes(path, parts, self)
                return _behind_each_other([part[None] for part in parts], dtype)
            self._check_rest(path, parts)
            joined[path] = list(map(len, parts))
            return _behind_each_other(parts, dtype)

        refuse_unknown(self, self.fields, samples)
        batch = collate_fields(samples, field)
        if not joined:
            if any(any(arrays_of(sample)) for sample in samples[1:]):
                raise bad_row(0, "the sample has no array, as others of its batch have")
            raise OptionError(f"{self} joins arrays, which the samples have not")
        return self._with(batch, self._one_length(joined))

    def _check_rest(self, path: str, parts: list[Any]) -> None:
        first = parts[0].shape[1:]
        if any(part.ndim != parts[0].ndim or part.shape[1:] != first for part in parts):
            row, usual, where = odd_of([(part.ndim, tuple(part.shape[1:])) for part in parts])
            shapes = f"{tuple(parts[row].shape)}, {where} {tuple(parts[usual].shape)}"
            raise bad_row(row, f"{called(path)} has the shape {shapes}: they can only differ in the first dimension")

    def _one_length(self, joined: dict[str, list[int]]) -> list[int]:
        (first, lengths), *others = joined.items()
        for path, theirs in others if self.offsets or self.positions else ():
            row = next((row for row, (one, other) in enumerate(zip(lengths, theirs, strict=True)) if one != other), None)
            if row is not None:
                raise bad_row(
                    row, f"{called(path)} is {theirs[row]:,} long, but {called(first)} {lengths[row]:,}: one set of offsets is not both's"
                )
        return lengths

    def _with(self, batch: Any, lengths: list[int]) -> Any:
        ends = np.cumsum([0, *lengths])
        parts: list[tuple[str | bool, torch.Tensor]] = []
        if self.offsets:
            parts.append((self.offsets, torch.from_numpy(ends.astype(np.int32))))
        if self.positions:
            parts.append((self.positions, torch.from_numpy(np.arange(ends[-1]) - np.repeat(ends[:-1], lengths))))
        return with_parts(self, batch, parts)


def _behind_each_other(parts: list[Any], dtype: torch.dtype) -> torch.Tensor:
    if isinstance(parts[0], torch.Tensor):
        return torch.cat([part.to(dtype) for part in parts])
    whole = torch.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype=dtype)
    np.concatenate(parts, out=whole.numpy(), casting="unsafe")
    return whole
