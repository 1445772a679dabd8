"""What the pool knows and what follows from it: events in, actions out. No process, no clock, no torch.

    plan ──submit──▶ batch ──split──▶ tasks ──Send──▶ worker's queue ──TaskEnded──▶ batch resolved ──▶ delivered by the pool
                                        ▲                    │
                                        └── WorkerGone, TakenBack: the tasks come back, and go out again exactly once

1. Every task belongs to one worker, or to the backlog, or it has ended.
2. A batch is resolved when all its tasks have ended, whatever their end: then no worker writes to its slot any more.
3. The task a worker died in is suspected by its row: it is given out again split around that row, so that only the guilty
   sample stays alone. A row suspected twice, or ended by its deadline, is bad.
4. In a static plan (streams; generators seeded by worker_init_fn) a task may only be done by the worker it is bound to.
5. Where not a row but what was done to all rows of a task together ended the worker, the task is given out again to be tried
   singly: each sample alone first, so that the guilty one is known by its row. Only a task that ends its worker again, though
   each of its samples alone did not, is an error of the whole batch.
   A stream cannot be led past the item at which its worker ends again and again: it comes to its end before that one.
6. A late task may be run a second time (hedging.py): its batch is resolved by whichever is done first, and what the other one may
   still write to is free when that one has ended.
7. Workers come and go while tasks are under way: who retires ends what it has begun, and what it has not begun goes to others; its
   place is free for another when it is gone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import heapify, heapreplace, nsmallest
from typing import Any

from antifreeze.supervisor.hedging import Piece, Races

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


class PoolState:
    def __init__(self, workers: int, forgive: bool) -> None:
        self.workers = [Worker(number) for number in range(workers)]
        self.forgive = forgive
        self.batches: dict[int, Batch] = {}
        self.backlog: deque[Task] = deque()
        self.stops: dict[int, int] = {}
        """Streams that cannot go on, and the item before which each comes to its end."""
        self._lost_at: Counter[tuple[int, int]] = Counter()  # (stream, item)
        self._tasks: dict[int, tuple[Task, int | None]] = {}  # open tasks, and whose they are
        self._races = Races()
        self._next_task = 0

    def __repr__(self) -> str:
        queued = sum(len(worker.queue) for worker in self.workers)
        return f"<PoolState {len(self.batches)} batches in flight, {queued} tasks queued, {len(self.backlog)} waiting>"

    # --- what the pool asks for ---

    def submit(
        self,
        number: int,
        slot: int,
        rows: int,
        tasks: int,
        stream: int | None = None,
        worker: int | None = None,
    ) -> list[Action]:
        """A new batch, to be loaded in `tasks` tasks; `worker` binds it."""
        batch = Batch(number, slot, rows, stream, worker)
        self.batches[number] = batch
        if tasks == 1:
            self._add_task(batch, 0, rows, whole=True, worker=worker)
        else:
            for part, (first, count) in enumerate(_split_evenly(rows, tasks)):
                self._add_task(batch, first, count, whole=False, worker=worker, home=part)
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
        for hedge in self._races.hedges():
            self._lose_hedge(hedge)
        for task in list(self.backlog):
            actions += self._drop(task)
        self.backlog.clear()
        self.stops.clear()
        self._lost_at.clear()
        for batch in list(self.batches.values()):
            batch.discarded = True
            actions += self._resolve_if_done(batch)
        return actions

    def forget_all(self) -> None:
        """The workers are gone."""
        self.batches.clear()
        self.backlog.clear()
        self._tasks.clear()
        self._races.clear()

    def recalls(self) -> list[Action]:
        """Called when the loop waits: who has nothing to do may do what others have not begun."""
        idle = sum(worker.live and not worker.queue for worker in self.workers)
        if not idle:
            return []
        waiting = [
            worker
            for worker in self.workers
            if len(worker.queue) >= _ONE_RUNS_ONE_WAITS and sum(task.worker is None for task in worker.queue) >= _ONE_RUNS_ONE_WAITS
        ]
        if len(waiting) > idle:  # what the loop waits for first
            waiting = nsmallest(idle, waiting, key=lambda worker: worker.queue[1].batch)
        return [TakeBack(worker.number) for worker in waiting]

    # --- workers come and go ---

    def staying(self) -> list[int]:
        """Those that are there, or about to be, and not on their way out."""
        return [worker.number for worker in self.workers if worker.stays]

    def add_worker(self) -> int:
        """A place for one more, who takes part from WorkerBack on."""
        place = next((worker for worker in self.workers if worker.vacant), None)
        if place is None:
            place = Worker(len(self.workers))
            self.workers.append(place)
        place.live = place.vacant = False
        return place.number

    def retire(self, number: int) -> list[Action]:
        """Nothing new for this worker; somebody must stay while batches are loaded."""
        worker = self.workers[number]
        worker.live, worker.retiring = False, True
        return [TakeBack(number)]

    # --- a late task a second time ---

    def late_task(self, late: Collection[int]) -> Task | None:
        """The oldest task that one of the `late` workers is at, where somebody idle may run it too."""
        if not any(worker.live and not worker.queue for worker in self.workers):
            return None
        running = [self.workers[number].queue[0] for number in late if self.workers[number].queue]
        return min((task for task in running if self._may_hedge(task)), key=lambda task: task.batch, default=None)

    def _may_hedge(self, task: Task) -> bool:
        races = self._races
        known = task.worker is None and task.number in self._tasks and not self.batches[task.batch].discarded
        if not known or races.is_hedge(task.number) or races.hedge_of(task.number) is not None:
            return False
        strikes = self.batches[task.batch].strikes  # a worker ended at it: no race again, or it would never be bad
        return WHOLE_BATCH not in strikes and not any(row in strikes for row in task.row_range())

    def hedge(self, task: Task, slot: int) -> list[Action]:
        """Once more, by somebody idle, into `slot`."""
        worker = next(worker for worker in self.workers if worker.live and not worker.queue)
        hedge = Task(self._next_task, task.batch, task.first_row, task.rows, task.whole, None, slot)
        self._next_task += 1
        self._races.begin(task.number, hedge)
        self._tasks[hedge.number] = (hedge, worker.number)
        worker.queue.append(hedge)
        return [Send(worker.number, hedge)]

    def slot_of(self, task: Task) -> int:
        """What a task in a worker's queue may write to."""
        lost = self._races.losers.get(task.number)
        return lost if lost is not None else self._slot_of(task)

    def _slot_of(self, task: Task) -> int:
        return self.batches[task.batch].slot if task.slot is None else task.slot

    def _free(self, slot: int | None) -> list[Action]:
        """Unless somebody still writes to it, or a batch has it: then it is free when that ends."""
        if slot is None or self._races.writes_to(slot) or any(batch.slot == slot for batch in self.batches.values()):
            return []
        return [FreeSlot(slot)]

    def _hedge_ended(self, hedge: Task, event: TaskEnded) -> bool:
        """Whether it has won: then the task it ran beside has lost."""
        number, bad_rows = self._races.end(hedge.number)
        if event.ending not in (Ending.ROWS, Ending.PARCEL) or bad_rows or self.batches[hedge.batch].discarded:
            return False
        task, owner = self._tasks.pop(number)
        self.batches[task.batch].open_tasks.discard(number)
        if owner is None:
            self.backlog.remove(task)
        else:
            self._races.lose(number, self._slot_of(task))
        return True

    def _lose_hedge(self, hedge: Task) -> None:
        self._races.end(hedge.number)
        del self._tasks[hedge.number]
        assert hedge.slot is not None
        self._races.lose(hedge.number, hedge.slot)

    def _forget_hedge(self, hedge: Task) -> list[Action]:
        """No worker has it any more."""
        self._races.end(hedge.number)
        del self._tasks[hedge.number]
        return self._free(hedge.slot)

    def _put_hedge_in_place_of(self, task: Task, hedge: Task) -> None:
        batch = self.batches[task.batch]
        _, bad_rows = self._races.end(hedge.number)
        batch.bad_rows.update(bad_rows)
        del self._tasks[task.number]
        batch.open_tasks.discard(task.number)
        batch.open_tasks.add(hedge.number)

    def _settle(self, batch: Batch) -> list[Action]:
        """All tasks of the batch have ended: its rows come together in a slot to which nobody writes."""
        pieces, batch.elsewhere = batch.elsewhere, []
        slots = tuple(piece.slot for piece in pieces)
        if len(pieces) == 1 and pieces[0].rows == batch.rows and not batch.must_reload:
            old, batch.slot = batch.slot, slots[0]
            return self._free(old)
        kept = () if batch.layout is None or batch.must_reload else (*_rest(batch, pieces), *pieces)
        return [Gather(batch.number, kept, (batch.slot, *slots))]

    def gathered(self, done: Gather, slot: int) -> list[Action]:
        self.batches[done.batch].slot = slot
        return [action for old in done.from_slots for action in self._free(old)]

    # --- what happens ---

    def handle(self, event: Event) -> list[Action]:
        if isinstance(event, TaskEnded):
            return self._task_ended(event)
        if isinstance(event, RowFailed):
            return self._row_failed(event)
        if isinstance(event, LeftOut):
            if event.task in self._tasks:
                self.batches[self._tasks[event.task][0].batch].left_out.append(event.failure)
            return []
        if isinstance(event, WorkerGone):
            return self._worker_gone(event)
        if isinstance(event, WorkerBack):
            self.workers[event.worker].live = True
            return self._assign()
        return self._taken_back(event)

    def _row_failed(self, event: RowFailed) -> list[Action]:
        if event.task not in self._tasks:
            return []
        if self._races.is_hedge(event.task):
            self._races.note_bad_row(event.task, event.row, event.failure)
            return []
        task, _ = self._tasks[event.task]
        self.batches[task.batch].bad_rows[event.row] = event.failure
        return []

    def _task_ended(self, event: TaskEnded) -> list[Action]:
        if event.task not in self._tasks:
            return self._loser_ended(event)
        task, _ = self._tasks.pop(event.task)
        self.workers[event.worker].queue.remove(task)
        batch = self.batches[task.batch]
        if self._races.is_hedge(task.number) and not self._hedge_ended(task, event):
            return self._free(task.slot)
        batch.open_tasks.discard(task.number)
        hedge = self._races.hedge_of(task.number)
        if hedge is not None:
            self._lose_hedge(hedge)
        if task.slot is not None:
            return self._ended_elsewhere(batch, task, task.slot, event)
        return self._ended(batch, task, event)

    def _loser_ended(self, event: TaskEnded) -> list[Action]:
        slot = self._races.losers.pop(event.task, None)
        if slot is None:
            return []  # of an epoch that is forgotten
        worker = self.workers[event.worker]
        worker.queue = deque(task for task in worker.queue if task.number != event.task)
        return self._free(slot)

    def _ended_elsewhere(self, batch: Batch, task: Task, slot: int, event: TaskEnded) -> list[Action]:
        if event.ending in (Ending.ROWS, Ending.PARCEL):
            batch.elsewhere.append(Piece(slot, task.first_row, task.rows))
            return self._ended(batch, task, event)
        return [*self._free(slot), *self._ended(batch, task, event)]

    def _ended(self, batch: Batch, task: Task, event: TaskEnded) -> list[Action]:
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
            return [action for slot in (batch.slot, *(piece.slot for piece in batch.elsewhere)) for action in self._free(slot)]
        if batch.phase is Phase.EMPTY:
            return []
        moves = self._settle(batch) if batch.elsewhere or self._races.writes_to(batch.slot) else []
        if batch.errors:
            batch.phase = Phase.FAILED
        elif batch.bad_rows:
            batch.phase = Phase.HOLED
        elif batch.must_reload:
            return [*moves, *self._reload(batch, batch.rows)]
        else:
            batch.phase = Phase.READY
        return [*moves, *self._assign()]

    def _worker_gone(self, event: WorkerGone) -> list[Action]:
        worker = self.workers[event.worker]
        worker.live = False
        worker.vacant, worker.retiring = worker.retiring, False
        orphans, worker.queue = worker.queue, deque()
        actions: list[Action] = []
        touched: dict[int, None] = {}
        for task in reversed(orphans):
            if task.number in self._races.losers:
                actions += self._free(self._races.losers.pop(task.number))
            elif self._races.is_hedge(task.number):
                actions += self._forget_hedge(task)
            else:
                touched[task.batch] = None
                actions += self._orphaned(task, event)
        for batch in touched:
            if batch in self.batches:
                actions += self._resolve_if_done(self.batches[batch])
        return actions

    def _orphaned(self, task: Task, event: WorkerGone) -> list[Action]:
        batch, hedge = self.batches[task.batch], self._races.hedge_of(task.number)
        if batch.discarded:
            return self._drop(task)
        batch.left_out.clear()  # they will be met again
        suspect = self._strike(task, event)
        if hedge is not None:
            self._put_hedge_in_place_of(task, hedge)
            return self._free(task.slot)
        if suspect is not None:
            self._retry_suspect(task, suspect, event)
            return self._free(task.slot)
        self._put_back(task)
        return []

    def _strike(self, task: Task, event: WorkerGone) -> int | None:
        """The row (or WHOLE_BATCH) of the task that its worker ended at, which is counted; None where it was at none of it."""
        row = event.row if task.number == event.task else None
        if row is None or (row != WHOLE_BATCH and row not in task.row_range()):
            return None
        strikes = self.batches[task.batch].strikes
        strikes[row] = strikes.get(row, 0) + 1
        return row

    def _retry_suspect(self, task: Task, row: int, event: WorkerGone) -> None:
        batch = self.batches[task.batch]
        del self._tasks[task.number]
        batch.open_tasks.discard(task.number)
        if batch.stream is not None:
            self._retry_stream(batch, batch.stream, task, row, event)
            return
        bad = event.final or batch.strikes[row] >= event.strikes
        if row == WHOLE_BATCH and self._may_try_singly(batch, task, event):
            batch.singly, bad = True, False
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

    def _may_try_singly(self, batch: Batch, task: Task, event: WorkerGone) -> bool:
        """Whether it is still to be found out which sample of the task is guilty. A deadline that passed is not waited for a second
        time where the first bad sample is an error anyway."""
        return not task.singly and task.rows > 1 and (self.forgive or not event.final)

    def is_lost_again(self, stream: int, item: int | None, strikes: int) -> bool:
        """Whether a stream that is lost at this item now cannot go on."""
        return item is not None and self._lost_at[stream, item] + 1 >= strikes

    def _retry_stream(self, batch: Batch, stream: int, task: Task, row: int, event: WorkerGone) -> None:
        """Once more, up to that item where it is lost there again: what comes before it is not lost with it. (A deadline that passed
        once is an error at once where nothing is forgiven; the loop may go on, and the stream with it.)"""
        if event.item is not None and self.is_lost_again(stream, event.item, event.strikes):
            self.stops[stream], batch.stops_with = event.item, event.failure
        elif (event.final and not self.forgive) or (event.item is None and batch.strikes[row] >= event.strikes):
            batch.errors[row] = event.failure
        if event.item is not None:
            self._lost_at[stream, event.item] += 1
        if not batch.errors:
            self._add_task(batch, task.first_row, task.rows, whole=task.whole, worker=task.worker, first=True)

    def _taken_back(self, event: TakenBack) -> list[Action]:
        return [*self.take_back_to_backlog(event), *self._assign()]

    def take_back_to_backlog(self, event: TakenBack) -> list[Action]:
        """Without giving them out again at once: the epoch may be over."""
        worker = self.workers[event.worker]
        taken = [task for task in worker.queue if task.number in event.tasks]
        worker.queue = deque(task for task in worker.queue if task.number not in event.tasks)
        actions: list[Action] = []
        for task in reversed(taken):
            if task.number in self._races.losers:
                actions += self._free(self._races.losers.pop(task.number))
            elif self._races.is_hedge(task.number):
                actions += self._forget_hedge(task)
            else:
                self._put_back(task)
        return actions

    def _put_back(self, task: Task) -> None:
        """Given out once in vain: from now on to whoever is free first."""
        task = replace(task, home=None)
        self._tasks[task.number] = (task, None)
        self.backlog.appendleft(task)

    def batch_of(self, task: int) -> int | None:
        entry = self._tasks.get(task)
        return None if entry is None else entry[0].batch

    # --- tasks ---

    def _add_task(
        self, batch: Batch, first_row: int, rows: int, *, whole: bool, worker: int | None, first: bool = False, home: int | None = None
    ) -> None:
        task = Task(self._next_task, batch.number, first_row, rows, whole, worker, singly=batch.singly, home=home)
        self._next_task += 1
        self._tasks[task.number] = (task, None)
        batch.open_tasks.add(task.number)
        if first:
            self.backlog.appendleft(task)
        else:
            self.backlog.append(task)

    def _assign(self) -> list[Action]:
        actions: list[Action] = []
        if not self.backlog:
            return actions
        waiting: deque[Task] = deque()
        idlest = _Idlest(self.workers)
        while self.backlog:
            task = self.backlog.popleft()
            worker = self._worker_for(task, idlest)
            if worker is None:
                waiting.append(task)
                continue
            worker.queue.append(task)
            idlest.given(worker, task.rows)
            self._tasks[task.number] = (task, worker.number)
            actions.append(Send(worker.number, task))
        self.backlog = waiting
        return actions

    def _worker_for(self, task: Task, idlest: _Idlest) -> Worker | None:
        if task.worker is not None:
            worker = self.workers[task.worker]
            return worker if worker.live else None
        return idlest.worker() if task.home is None else idlest.at_home(task.home, task.rows)

    def _drop(self, task: Task) -> list[Action]:
        self._tasks.pop(task.number, None)
        self.batches[task.batch].open_tasks.discard(task.number)
        return self._free(task.slot)

    def _restart_batch(self, batch: Batch, rows: int) -> None:
        batch.rows, batch.rows_loaded, batch.phase = rows, 0, Phase.LOADING
        batch.layout = batch.parcel_bytes = None
        batch.must_reload = False


class _Idlest:
    """The live worker with the least to do, of any number of them, while tasks are given out: each is looked at once, not per task."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers
        self._loads = {worker.number: worker.load for worker in workers if worker.live}
        self._heap = [(load, number) for number, load in self._loads.items()]
        heapify(self._heap)

    def worker(self) -> Worker | None:
        while self._heap and self._heap[0][0] != self._loads[self._heap[0][1]]:
            number = self._heap[0][1]
            heapreplace(self._heap, (self._loads[number], number))
        return self._workers[self._heap[0][1]] if self._heap else None

    def at_home(self, home: int, rows: int) -> Worker | None:
        """That worker, unless another one would be done with the task before that one begins it."""
        idlest, load = self.worker(), self._loads.get(home)
        if idlest is None or load is None or load > self._loads[idlest.number] + rows:
            return idlest
        return self._workers[home]

    def given(self, worker: Worker, rows: int) -> None:
        self._loads[worker.number] = self._loads.get(worker.number, 0) + rows


def _rest(batch: Batch, pieces: list[Piece]) -> list[Piece]:
    """The rows of the batch that lie in its own slot."""
    rest, first = [], 0
    for piece in sorted(pieces, key=lambda piece: piece.first_row):
        rest.append(Piece(batch.slot, first, piece.first_row - first))
        first = piece.first_row + piece.rows
    rest.append(Piece(batch.slot, first, batch.rows - first))
    return [piece for piece in rest if piece.rows > 0]


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
