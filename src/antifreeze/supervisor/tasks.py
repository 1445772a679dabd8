"""What is loaded and by whom: a batch, the tasks it is split into, a worker's place. Plain records, no decisions. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

STRIKES = 2
WHOLE_BATCH = -1
"""In the place of a row: not one sample is suspected but what was done to the batch as a whole, such as its collate."""


@dataclass(frozen=True)
class Piece:
    """Rows of a batch that lie in another slot than the batch's."""

    slot: int
    first_row: int
    rows: int


class Phase(Enum):
    LOADING = "loading"
    READY = "ready"
    HOLED = "holed"  # loaded, but some rows are bad
    FAILED = "failed"
    EMPTY = "empty"  # its stream had ended


@dataclass(frozen=True)
class Task:
    """Rows first_row … of a batch, in the batch's slot or in one of its own."""

    number: int
    batch: int
    first_row: int
    rows: int
    whole: bool
    worker: int | None = None  # the only one that may do it
    slot: int | None = None  # its own
    singly: bool = False  # each sample is tried alone before all are loaded
    home: int | None = field(default=None, compare=False)  # who has done these rows of other batches, and has their pages

    def row_range(self) -> range:
        return range(self.first_row, self.first_row + self.rows)


@dataclass
class Batch:
    number: int
    slot: int
    rows: int
    stream: int | None
    worker: int | None = None  # the only one that may load it
    phase: Phase = Phase.LOADING
    open_tasks: set[int] = field(default_factory=set)
    layout: int | None = None
    parcel_bytes: int | None = None
    rows_loaded: int = 0
    bad_rows: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, Any] = field(default_factory=dict)
    strikes: dict[int, int] = field(default_factory=dict)
    discarded: bool = False
    short_by: int = 0  # rows at its end that went to earlier batches
    left_out: list[Any] = field(default_factory=list)  # bad items of its stream, which it came without
    stops_with: Any = None  # what ended its stream
    must_reload: bool = False  # its good rows are not all in the slot
    singly: bool = False  # all its rows together ended a worker: from now on each is tried alone first
    elsewhere: list[Piece] = field(default_factory=list)  # rows that a hedge was first to load

    def first_error(self) -> Any:
        return self.errors[min(self.errors)]


@dataclass
class Worker:
    number: int
    live: bool = True
    retiring: bool = False  # nobody comes in its place
    vacant: bool = False  # a place without a worker
    queue: deque[Task] = field(default_factory=deque)

    @property
    def stays(self) -> bool:
        return not self.retiring and not self.vacant

    @property
    def load(self) -> int:
        rows = 0
        for task in self.queue:
            rows += task.rows
        return rows


def split_evenly(rows: int, parts: int) -> list[tuple[int, int]]:
    """(first, count) of each part; parts differ by one row at most."""
    parts = max(1, min(rows, parts))
    size, extra = divmod(rows, parts)
    pieces, first = [], 0
    for part in range(parts):
        count = size + (part < extra)
        pieces.append((first, count))
        first += count
    return pieces


def around(rows: range, row: int, *, alone: bool) -> list[tuple[int, int]]:
    """The rows before and after `row`, and `row` by itself where it gets another chance."""
    pieces: Sequence[tuple[int, int]] = (
        (rows.start, row - rows.start),
        (row, int(alone)),
        (row + 1, rows.stop - row - 1),
    )
    return [(first, count) for first, count in pieces if count > 0]
