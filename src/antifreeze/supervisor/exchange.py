"""What the state hears and what it answers: events in, actions out. Plain records. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from antifreeze.supervisor.tasks import STRIKES, Piece, Task

# --- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    worker: int
    task: Task


@dataclass(frozen=True)
class TakeBack:
    """Ask the kernel for what this worker has not read yet."""

    worker: int


@dataclass(frozen=True)
class FreeSlot:
    slot: int


@dataclass(frozen=True)
class Gather:
    """The batch needs another slot, with these rows in it: its own is still written to, or its rows lie in several.
    PoolState.gathered() is told which."""

    batch: int
    pieces: tuple[Piece, ...]
    from_slots: tuple[int, ...]


Action = Send | TakeBack | FreeSlot | Gather


# --- events -----------------------------------------------------------------------------------------------------------


class Ending(Enum):
    ROWS = "rows"
    PARCEL = "parcel"
    BOUNCED = "bounced"
    STREAM_ENDED = "stream ended"
    FAILED = "failed"


@dataclass(frozen=True)
class TaskEnded:
    worker: int
    task: int
    ending: Ending
    rows: int = 0
    layout: int | None = None
    parcel_bytes: int | None = None
    failure: Any = None


@dataclass(frozen=True)
class RowFailed:
    task: int
    row: int
    failure: Any


@dataclass(frozen=True)
class LeftOut:
    task: int
    failure: Any


@dataclass(frozen=True)
class WorkerGone:
    """A worker has ended and is reaped. `row` of `task` is suspected unless None; `failure` says what to report if it is bad,
    `final` that it is bad already (its deadline passed), `strikes` how many such ends make it bad otherwise.
    `item`: of a stream, the one that it cannot be led past."""

    worker: int
    task: int | None = None
    row: int | None = None
    failure: Any = None
    final: bool = False
    strikes: int = STRIKES
    item: int | None = None


@dataclass(frozen=True)
class WorkerBack:
    worker: int


@dataclass(frozen=True)
class TakenBack:
    worker: int
    tasks: tuple[int, ...]


Event = TaskEnded | RowFailed | LeftOut | WorkerGone | WorkerBack | TakenBack
