"""A worker's view of the slots: columns of rows, or the room for a parcel; mapped once and kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch

from antifreeze.errors import BatchTooLarge
from antifreeze.slots.arena import SLOT_STRIDE, Arena, Mapping
from antifreeze.slots.layout import RowLayout

_KEPT_VIEWS = 64

Limit = Callable[[], tuple[int | None, str]]
"""How many bytes a batch may have, and whose limit that is; asked for when it is needed, since looking for it takes a while."""


class SlotWriter:
    def __init__(self, arena: Arena, limit: Limit) -> None:
        self._arena = arena
        self._limit = limit
        self._columns: dict[tuple[int, int, int], list[torch.Tensor]] = {}
        self._offsets: dict[tuple[int, int], list[int]] = {}
        self._rows: dict[tuple[int, int, int, int, int], list[torch.Tensor]] = {}  # parts of columns whose pages are there
        self._forgotten = arena.forgotten

    def at_age(self, slot: int, age: int) -> None:
        """Before a task writes to it: how often the parent has given the slot's memory back to the system."""
        self._arena.note_age(slot, age)

    def columns(self, slot: int, layout: RowLayout, rows: int) -> list[torch.Tensor]:
        """The columns of a batch of `rows` rows in this slot."""
        self._forget_what_was_discarded()
        key = (slot, layout.key, rows)
        columns = self._columns.get(key) if self._arena.mapped_bytes(slot) else None  # in a thread, the parent may have dropped it
        if columns is None:
            size = layout.offsets(rows)[-1]
            limit_bytes, limit_name = self._known_limit
            if size > limit_bytes:
                raise BatchTooLarge(
                    f"a batch of {rows:,} samples × {layout.row_bytes:,} bytes = {size:,} bytes does not fit into "
                    f"{limit_name} ({limit_bytes:,} bytes); a batch size of "
                    f"{max(1, limit_bytes // max(1, layout.row_bytes)):,} or less would"
                )
            columns = layout.columns(self._room(slot, size), rows)
            self._offsets[layout.key, rows] = layout.offsets(rows)
            if len(self._columns) >= _KEPT_VIEWS:
                self._columns.clear()
            self._columns[key] = columns
        return columns

    def rows(self, slot: int, layout: RowLayout, batch_rows: int, first: int, end: int) -> list[torch.Tensor]:
        """Rows first … end of each column, ready to be written."""
        self._forget_what_was_discarded()
        key = (slot, layout.key, batch_rows, first, end)
        rows = self._rows.get(key) if self._arena.mapped_bytes(slot) else None
        if rows is None:
            columns = self.columns(slot, layout, batch_rows)
            for leaf, offset in zip(layout.leaves, self._offsets[layout.key, batch_rows], strict=False):
                self._take_pages(slot, offset + first * leaf.row_bytes, offset + end * leaf.row_bytes)
            rows = [column[first:end] for column in columns]
            if len(self._rows) >= _KEPT_VIEWS:
                self._rows.clear()
            self._rows[key] = rows
        return rows

    def room(self, slot: int, size_bytes: int) -> Mapping:
        """At least `size_bytes` of the slot, for a parcel."""
        limit_bytes, limit_name = self._known_limit
        if size_bytes > limit_bytes:
            raise BatchTooLarge(f"a batch of {size_bytes:,} bytes does not fit into {limit_name} ({limit_bytes:,} bytes)")
        room = self._room(slot, size_bytes)
        self._take_pages(slot, 0, size_bytes)
        return room

    @cached_property
    def _known_limit(self) -> tuple[int, str]:
        limit_bytes, name = self._limit()
        return min(limit_bytes or SLOT_STRIDE, SLOT_STRIDE), name

    def _forget_what_was_discarded(self) -> None:
        if self._arena.forgotten != self._forgotten:
            self._forgotten = self._arena.forgotten
            self._columns.clear()
            self._rows.clear()

    def _take_pages(self, slot: int, begin: int, end: int) -> None:
        try:
            self._arena.take_pages(slot, begin, end)
        except OSError as error:
            raise BatchTooLarge(f"{error.strerror}; a smaller batch, or more memory, would help") from None

    def _room(self, slot: int, size_bytes: int) -> Mapping:
        if self._arena.mapped_bytes(slot) < size_bytes:
            self._rows.clear()
            for key in [key for key in self._columns if key[0] == slot]:
                del self._columns[key]
        try:
            return self._arena.map(slot, size_bytes)
        except OSError as error:
            raise BatchTooLarge(f"{error.strerror}; a smaller batch, or a higher limit, would help") from None
