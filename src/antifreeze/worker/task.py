"""What a fetcher is given, and what it gives back: the words between the data set's side of a worker and the line to its parent."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from antifreeze.naming import shown
from antifreeze.slots.layout import RowLayout
from antifreeze.worker.failure import Failure

NOT_PLAIN = object()
"""In the place of a batch, which may be anything that a collate_fn returns, None too."""


class Task(NamedTuple):
    """`first_row` … of a batch of `batch_rows` rows in `slot`; the sample of the first index stands at `position` of the epoch."""

    number: int
    batch: int
    slot: int
    batch_rows: int
    first_row: int
    position: int
    indices: Any
    whole: bool
    offsets: list[int] | None = None  # of the samples' positions from `position`, where some between them were left out
    singly: bool = False  # try each sample alone first
    key: int | None = None  # what the random numbers of its epoch are made from; None: there is one epoch at a time

    def position_of(self, number: int) -> int:
        return self.position + (number if self.offsets is None else self.offsets[number])


@dataclass
class Rows:
    layout: RowLayout
    rows: int
    failures: dict[int, Failure]
    fetch_ns: int
    write_ns: int


@dataclass
class Packed:
    rows: int
    size_bytes: int
    fetch_ns: int
    collate_ns: int
    write_ns: int


@dataclass
class Bounce:
    failures: dict[int, Failure] = field(default_factory=dict)


Outcome = Rows | Packed | Bounce


class FetchError(Exception):
    """Carries the Failure of the task to whoever reports it; its cause is the data set's own exception."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.describe())
        self.failure = failure


@dataclass(frozen=True)
class FetchConfig:
    """What a loader fixed about fetching, for as long as it lives."""

    collate_fn: Callable[[Any], Any]
    auto_collation: bool
    drop_last: bool
    forgive: bool
    worker: int | None
    concurrency: int = 1  # of samples that are coroutines
    sample_timeout_s: float | None = None  # of each of them
    fill: bool = True  # a stream's next sample takes the place of one that is left out


def few(indices: Any) -> str:
    """Some of the indices of a batch, for a message."""
    if not isinstance(indices, (list, array, range)):
        return shown(indices)
    some = ", ".join(map(shown, indices[:8]))
    return f"[{some}, … {len(indices):,} in all]" if len(indices) > 8 else f"[{some}]"
