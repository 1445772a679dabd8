"""A resolved batch becomes what the user receives: tensors over its slot, which keep the slot until the last of them dies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from antifreeze.errors import BatchTooLarge
from antifreeze.slots import parcel
from antifreeze.slots.layout import RowLayout
from antifreeze.slots.ring import Ring
from antifreeze.supervisor.tasks import Batch
from antifreeze.supervisor.work import Copies


def build(batch: Batch, layouts: dict[int, RowLayout], ring: Ring, copies: Copies) -> tuple[Any, int]:
    """The batch and its size in bytes. Rows that are still bad are left out."""
    crowded = ring.crowded
    copies.again += crowded or bool(batch.bad_rows)
    if batch.parcel_bytes is not None:
        size = batch.parcel_bytes
        owner = ring.lend(batch.slot, size)
        # the user keeps many batches: this one becomes his own memory, and the slot is free at once
        return parcel.unpack(owner[:size].copy() if crowded else owner), size
    assert batch.layout is not None
    layout = layouts[batch.layout]
    size = layout.offsets(batch.rows)[-1]
    owner = ring.lend(batch.slot, size)
    columns = layout.columns(owner[:size].copy() if crowded else owner, batch.rows)
    if batch.short_by:
        columns = [column[: batch.rows - batch.short_by] for column in columns]
    if batch.bad_rows:
        good = [row for row in range(batch.rows - batch.short_by) if row not in batch.bad_rows]
        columns = [column[good] for column in columns]
    elif batch.rows_loaded < batch.rows:  # the last batch of a stream
        columns = [column[: batch.rows_loaded] for column in columns]
    return layout.assemble(columns), size


def size_within(budget_bytes: int | None, batch: Any) -> int:
    """Of a batch that was made in this process and lies in no slot: its size, which is looked at only where there is a budget."""
    if budget_bytes is None:
        return 0
    size_bytes = size_of(batch)
    if size_bytes > budget_bytes:
        raise BatchTooLarge(f"a batch of {size_bytes:,} bytes does not fit into memory_budget ({budget_bytes:,} bytes)")
    return size_bytes


def size_of(part: Any) -> int:
    """Of its tensors, arrays and texts."""
    if isinstance(part, (torch.Tensor, np.ndarray)):
        return int(part.nbytes)
    if isinstance(part, (str, bytes, bytearray)):
        return len(part)
    if isinstance(part, dict):
        return sum(map(size_of, part.values()))
    return sum(map(size_of, part)) if isinstance(part, (list, tuple)) else 0
