"""Rows of one batch that lie in several slots, brought together in another: plain copies, in the parent."""

from __future__ import annotations

from collections.abc import Iterable

from antifreeze.slots.arena import Arena
from antifreeze.slots.layout import RowLayout


def gather_rows(arena: Arena, layout: RowLayout, batch_rows: int, pieces: Iterable[tuple[int, int, int]], into: int) -> None:
    """`pieces`: (slot, first row, rows)."""
    size = layout.offsets(batch_rows)[-1]
    target = layout.columns(arena.map(into, size), batch_rows)
    arena.take_pages(into, 0, size)
    for slot, first, rows in pieces:
        source = layout.columns(arena.map(slot, size), batch_rows)
        for to_column, from_column in zip(target, source, strict=True):
            to_column[first : first + rows].copy_(from_column[first : first + rows])
