"""What the pool knows and what follows from it: events in, actions out. No process, no clock, no torch.

    plan ──submit──▶ batch ──split──▶ tasks ──Send──▶ worker's queue ──TaskEnded──▶ batch resolved ──▶ delivered by the pool
                                        ▲                    │
                                        └── WorkerGone, TakenBack: the tasks come back, and go out again exactly once

1. Every task belongs to one worker, or to the backlog, or it has ended.
2. A batch is resolved when all its tasks have ended, whatever their end: then no worker writes to its slot any more.
3. The task a worker died in is suspected by its row: it is given out again split around that row, so that only the guilty
   sample stays alone. A row suspected twice, or ended by its deadline, is bad.
4. In a static plan (streams; generators seeded by worker_init_fn) a task may only be done by the worker it is bound to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

STRIKES = 2
WHOLE_BATCH = -1
"""In the place of a row: not one sample is suspected but what was done to the batch as a whole, such as its collate."""

_ONE_RUNS_ONE_WAITS = 2


class Phase(Enum):
    LOADING = "loading"
    READY = "ready"
    HOLED = "holed"  # loaded, but some rows are bad
    FAILED = "failed"
    EMPTY = "empty"  # its stream had ended


@dataclass(frozen=True)
class Task:
    """Rows first_row … of a batch, in its slot."""

    number: int
    batch: int
    first_row: int
    rows: int
    whole: bool
    worker: int | None = None  # the only one that may do it

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
    must_reload: bool = False  # its good rows are not all in the slot

    def first_error(self) -> Any:
        return self.errors[min(self.errors)]


@dataclass
class Worker:
    number: int
    live: bool = True
    queue: deque[Task] = field(default_factory=deque)

    @property
    def load(self) -> int:
        return sum(task.rows for task in self.queue)


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


Action = Send | TakeBack | FreeSlot


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
class WorkerGone:
    """A worker has ended and is reaped. `row` of `task` is suspected unless None; `failure` says what to report if it is bad,
    `final` that it is bad already (its deadline passed), `strikes` how many such ends make it bad otherwise."""

    worker: int
    task: int | None = None
    row: int | None = None
    failure: Any = None
    final: bool = False
    strikes: int = STRIKES


@dataclass(frozen=True)
class WorkerBack:
    worker: int


@dataclass(frozen=True)
class TakenBack:
    worker: int
    tasks: tuple[int, ...]


Event = TaskEnded | RowFailed | WorkerGone | WorkerBack | TakenBack


class PoolState:
    def __init__(self, workers: int, forgive: bool) -> None:
        self.workers = [Worker(number) for number in range(workers)]
        self.forgive = forgive
        self.batches: dict[int, Batch] = {}
        self.backlog: deque[Task] = deque()
        self._tasks: dict[int, tuple[Task, int | None]] = {}  # open tasks, and whose they are
        self._next_task = 0

    def __repr__(self) -> str:
        queued = sum(len(worker.queue) for worker in self.workers)
        return f"<PoolState {len(self.batches)} batches in flight, {queued} tasks queued, {len(self.backlog)} waiting>"

    # --- what the pool asks for ---

    def submit(self, number: int, slot: int, rows: int, tasks: int, stream: int | None = None, worker: int | None = None) -> list[Action]:
        """A new batch, to be loaded in `tasks` tasks; `worker` binds it."""
        batch = Batch(number, slot, rows, stream, worker)
        self.batches[number] = batch
        for first, count in _split_evenly(rows, tasks):
            self._add_task(batch, first, count, whole=tasks == 1, worker=worker)
        return self._assign()

    def reload(self, number: int, rows: int) -> list[Action]:
        """A batch whose samples have changed, or that must be collated in one place: once more, whole."""
        batch = self.batches[number]
        batch.bad_rows, batch.strikes = {}, {}
        return self._reload(batch, rows)

    def _reload(self, batch: Batch, rows: int) -> list[Action]:
        self._restart_batch(batch, rows)
        self._add_task(batch, 0, rows, whole=True, worker=batch.worker, first=True)
        return self._assign()

    def fill_row(self, number: int, row: int) -> list[Action]:
        """One row of a loaded batch again, with another sample."""
        batch = self.batches[number]
        batch.phase = Phase.LOADING
        batch.bad_rows.pop(row, None)
        batch.strikes.pop(row, None)
        self._add_task(batch, row, 1, whole=batch.rows == 1, worker=batch.worker, first=True)
        return self._assign()

    def take(self, number: int) -> Batch:
        """Delivered: the batch is the pool's no more."""
        return self.batches.pop(number)

    def discard_all(self) -> list[Action]:
        """The epoch is over for the user: what is not begun is forgotten, what runs is waited out by its slot."""
        actions: list[Action] = []
        for task in list(self.backlog):
            self._drop(task)
        self.backlog.clear()
        for batch in list(self.batches.values()):
            batch.discarded = True
            actions += self._resolve_if_done(batch)
        return actions

    def forget_all(self) -> None:
        """The workers are gone."""
        self.batches.clear()
        self.backlog.clear()
        self._tasks.clear()

    def recalls(self) -> list[Action]:
        """Called when the loop waits: who has nothing to do may do what others have not begun."""
        if not any(worker.live and not worker.queue for worker in self.workers):
            return []
        return [
            TakeBack(worker.number) for worker in self.workers if sum(task.worker is None for task in worker.queue) >= _ONE_RUNS_ONE_WAITS
        ]

    # --- what happens ---

    def handle(self, event: Event) -> list[Action]:
        if isinstance(event, TaskEnded):
            return self._task_ended(event)
        if isinstance(event, RowFailed):
            return self._row_failed(event)
        if isinstance(event, WorkerGone):
            return self._worker_gone(event)
        if isinstance(event, WorkerBack):
            self.workers[event.worker].live = True
            return self._assign()
        return self._taken_back(event)

    def _row_failed(self, event: RowFailed) -> list[Action]:
        task, _ = self._tasks[event.task]
        self.batches[task.batch].bad_rows[event.row] = event.failure
        return []

    def _task_ended(self, event: TaskEnded) -> list[Action]:
        if event.task not in self._tasks:
            return []
        task, _ = self._tasks.pop(event.task)
        self.workers[event.worker].queue.remove(task)
        batch = self.batches[task.batch]
        batch.open_tasks.discard(task.number)
        if event.ending is Ending.ROWS:
            batch.rows_loaded += event.rows
            batch.must_reload |= batch.layout not in (None, event.layout)  # two tasks saw samples of different kinds
            batch.layout = event.layout
        elif event.ending is Ending.PARCEL:
            batch.rows_loaded += event.rows
            batch.parcel_bytes = event.parcel_bytes
        elif event.ending is Ending.BOUNCED:
            batch.must_reload = True
        elif event.ending is Ending.STREAM_ENDED:
            batch.phase = Phase.EMPTY
        elif not batch.discarded:
            self._failed(batch, task, event.failure)
        return self._resolve_if_done(batch)

    def _failed(self, batch: Batch, task: Task, failure: Any) -> None:
        row = getattr(failure, "row", None)
        if self.forgive and row is not None and getattr(failure, "index", None) is not None:
            batch.bad_rows[row] = failure
            batch.must_reload |= task.whole
            if not task.whole:
                for first, count in _around(task.row_range(), row, alone=False):
                    self._add_task(batch, first, count, whole=False, worker=task.worker, first=True)
        else:
            batch.errors[task.first_row if row is None else row] = failure

    def _resolve_if_done(self, batch: Batch) -> list[Action]:
        if batch.open_tasks:
            return self._assign()
        if batch.discarded:
            del self.batches[batch.number]
            return [FreeSlot(batch.slot)]
        if batch.phase is Phase.EMPTY:
            return []
        if batch.errors:
            batch.phase = Phase.FAILED
        elif batch.bad_rows:
            batch.phase = Phase.HOLED
        elif batch.must_reload:
            return self._reload(batch, batch.rows)
        else:
            batch.phase = Phase.READY
        return self._assign()

    def _worker_gone(self, event: WorkerGone) -> list[Action]:
        worker = self.workers[event.worker]
        worker.live = False
        orphans, worker.queue = worker.queue, deque()
        for task in reversed(orphans):
            if self.batches[task.batch].discarded:
                self._drop(task)
                continue
            if task.number == event.task and event.row is not None and (event.row == WHOLE_BATCH or event.row in task.row_range()):
                self._retry_suspect(task, event.row, event)
            else:
                self._tasks[task.number] = (task, None)
                self.backlog.appendleft(task)
        actions: list[Action] = []
        for batch in {task.batch for task in orphans}:
            if batch in self.batches:
                actions += self._resolve_if_done(self.batches[batch])
        return actions

    def _retry_suspect(self, task: Task, row: int, event: WorkerGone) -> None:
        batch = self.batches[task.batch]
        batch.strikes[row] = batch.strikes.get(row, 0) + 1
        del self._tasks[task.number]
        batch.open_tasks.discard(task.number)
        bad = event.final or batch.strikes[row] >= event.strikes
        if bad and (row == WHOLE_BATCH or not self.forgive):
            batch.errors[row] = event.failure
            return
        if bad:
            batch.bad_rows[row] = event.failure
        if task.whole or row == WHOLE_BATCH:
            batch.must_reload |= bad
            if not bad:
                self._add_task(batch, task.first_row, task.rows, whole=task.whole, worker=task.worker, first=True)
            return
        for first, count in reversed(_around(task.row_range(), row, alone=not bad)):
            self._add_task(batch, first, count, whole=False, worker=task.worker, first=True)

    def _taken_back(self, event: TakenBack) -> list[Action]:
        self.take_back_to_backlog(event)
        return self._assign()

    def take_back_to_backlog(self, event: TakenBack) -> None:
        """Without giving them out again at once: the epoch may be over."""
        queue = self.workers[event.worker].queue
        for number in reversed(event.tasks):
            task, _ = self._tasks[number]
            queue.remove(task)
            self._tasks[number] = (task, None)
            self.backlog.appendleft(task)

    def batch_of(self, task: int) -> int | None:
        entry = self._tasks.get(task)
        return None if entry is None else entry[0].batch

    # --- tasks ---

    def _add_task(self, batch: Batch, first_row: int, rows: int, *, whole: bool, worker: int | None, first: bool = False) -> None:
        task = Task(self._next_task, batch.number, first_row, rows, whole, worker)
        self._next_task += 1
        self._tasks[task.number] = (task, None)
        batch.open_tasks.add(task.number)
        if first:
            self.backlog.appendleft(task)
        else:
            self.backlog.append(task)

    def _assign(self) -> list[Action]:
        actions: list[Action] = []
        waiting: deque[Task] = deque()
        while self.backlog:
            task = self.backlog.popleft()
            worker = self._worker_for(task)
            if worker is None:
                waiting.append(task)
                continue
            worker.queue.append(task)
            self._tasks[task.number] = (task, worker.number)
            actions.append(Send(worker.number, task))
        self.backlog = waiting
        return actions

    def _worker_for(self, task: Task) -> Worker | None:
        if task.worker is not None:
            worker = self.workers[task.worker]
            return worker if worker.live else None
        return min((worker for worker in self.workers if worker.live), key=lambda worker: worker.load, default=None)

    def _drop(self, task: Task) -> None:
        self._tasks.pop(task.number, None)
        batch = self.batches[task.batch]
        batch.open_tasks.discard(task.number)

    def _restart_batch(self, batch: Batch, rows: int) -> None:
        batch.rows, batch.rows_loaded, batch.phase = rows, 0, Phase.LOADING
        batch.layout = batch.parcel_bytes = None
        batch.must_reload = False


def _split_evenly(rows: int, parts: int) -> list[tuple[int, int]]:
    """(first, count) of each part; parts differ by one row at most."""
    parts = max(1, min(rows, parts))
    size, extra = divmod(rows, parts)
    pieces, first = [], 0
    for part in range(parts):
        count = size + (part < extra)
        pieces.append((first, count))
        first += count
    return pieces


def _around(rows: range, row: int, *, alone: bool) -> list[tuple[int, int]]:
    """The rows before and after `row`, and `row` by itself where it gets another chance."""
    pieces: Sequence[tuple[int, int]] = (
        (rows.start, row - rows.start),
        (row, int(alone)),
        (row + 1, rows.stop - row - 1),
    )
    return [(first, count) for first, count in pieces if count > 0]
