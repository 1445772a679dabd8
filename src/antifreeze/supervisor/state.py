"""What the pool knows and what follows from it: events in, actions out. No process, no clock, no torch.

    plan ──submit──▶ batch ──split──▶ tasks ──Send──▶ worker's queue ──TaskEnded──▶ batch resolved ──▶ delivered by the pool
                                        ▲                    │
                                        └── WorkerGone, TakenBack: the tasks come back, and go out again exactly once

1. Every task belongs to one worker, or to the backlog, or it has ended (desk.py).
2. A batch is resolved when all its tasks have ended, whatever their end: then no worker writes to its slot any more.
3. The task a worker died in is suspected, and given out again so that only the guilty sample stays alone (losses.py).
4. In a static plan (streams; generators seeded by worker_init_fn) a task may only be done by the worker it is bound to.
5. A late task may be run a second time (hedging.py): its batch is resolved by whichever is done first, and what the other one may
   still write to is free when that one has ended.
6. Workers come and go while tasks are under way: who retires ends what it has begun, and what it has not begun goes to others; its
   place is free for another when it is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from heapq import nsmallest
from typing import Any

from antifreeze.supervisor.desk import Desk
from antifreeze.supervisor.exchange import (
    Action,
    Ending,
    Event,
    LeftOut,
    RowFailed,
    TakeBack,
    TakenBack,
    TaskEnded,
    WorkerBack,
    WorkerGone,
)
from antifreeze.supervisor.hedging import Hedging
from antifreeze.supervisor.losses import Losses
from antifreeze.supervisor.tasks import Batch, Phase, Piece, Task, Worker, around, split_evenly

_ONE_RUNS_ONE_WAITS = 2


class PoolState:
    def __init__(self, workers: int, forgive: bool) -> None:
        self.desk = Desk(workers)
        self.hedging = Hedging(self.desk)
        self.losses = Losses(self.desk, self.hedging, forgive)
        self.workers, self.batches, self.backlog = self.desk.workers, self.desk.batches, self.desk.backlog
        self._tasks, self._races = self.desk.tasks, self.desk.races
        self._forgive = forgive

    def __repr__(self) -> str:
        return f"<PoolState {self.desk}>"

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
            self.desk.add_task(batch, 0, rows, whole=True, worker=worker)
        else:
            for part, (first, count) in enumerate(split_evenly(rows, tasks)):
                self.desk.add_task(batch, first, count, whole=False, worker=worker, home=part)
        return self.desk.assign()

    def reload(self, number: int, rows: int) -> list[Action]:
        """A batch whose samples have changed, or that must be collated in one place: once more, whole."""
        batch = self.batches[number]
        batch.bad_rows, batch.strikes, batch.errors = {}, {}, {}
        return self._reload(batch, rows)

    def _reload(self, batch: Batch, rows: int) -> list[Action]:
        self._restart_batch(batch, rows)
        self.desk.add_task(batch, 0, rows, whole=True, worker=batch.worker, first=True)
        return self.desk.assign()

    def fill_row(self, number: int, row: int) -> list[Action]:
        """One row of a loaded batch again, with another sample."""
        batch = self.batches[number]
        batch.phase = Phase.LOADING
        batch.bad_rows.pop(row, None)
        batch.strikes.pop(row, None)
        self.desk.add_task(batch, row, 1, whole=batch.rows == 1, worker=batch.worker, first=True)
        return self.desk.assign()

    def take(self, number: int) -> Batch:
        """Delivered: the batch is the pool's no more."""
        return self.batches.pop(number)

    def discard_all(self, but: Collection[int] = ()) -> list[Action]:
        """The epoch is over for the user: what is not begun is forgotten, what runs is waited out by its slot. Batches that are kept
        (`but`) are of the next epoch, and go on."""
        actions: list[Action] = []
        self.hedging.lose_all()
        waiting = sorted(self.backlog, key=lambda task: (task.batch, task.first_row))
        self.backlog.clear()
        for task in waiting:
            if task.batch in but:
                self.backlog.append(task)
            else:
                actions += self.desk.drop(task)
        self.losses.clear()
        for batch in list(self.batches.values()):
            if batch.number not in but:
                batch.discarded = True
                actions += self._resolve_if_done(batch)
        return [*actions, *self.desk.assign()]

    def forget_all(self) -> None:
        """The workers are gone."""
        self.desk.clear()

    def recalls(self) -> list[Action]:
        """Called when the loop waits: who has nothing to do may do what others have not begun."""
        if not self.desk.anybody_idle():
            return []
        idle = sum(worker.live and not worker.queue for worker in self.workers)
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
            self.desk.look_anew()
            return self.desk.assign()
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
            return self.hedging.loser_ended(event)
        task, _ = self._tasks.pop(event.task)
        worker = self.workers[event.worker]
        worker.queue.remove(task)
        self.desk.has_less(worker)
        batch = self.batches[task.batch]
        if self._races.is_hedge(task.number) and not self.hedging.has_won(task, event):
            return self.desk.free(task.slot)
        batch.open_tasks.discard(task.number)
        hedge = self._races.hedge_of(task.number)
        if hedge is not None:
            self.hedging.lose(hedge)
        if task.slot is not None:
            return self._ended_elsewhere(batch, task, task.slot, event)
        return self._ended(batch, task, event)

    def _ended_elsewhere(self, batch: Batch, task: Task, slot: int, event: TaskEnded) -> list[Action]:
        if event.ending in (Ending.ROWS, Ending.PARCEL):
            batch.elsewhere.append(Piece(slot, task.first_row, task.rows))
            return self._ended(batch, task, event)
        return [*self.desk.free(slot), *self._ended(batch, task, event)]

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
        if self._forgive and row is not None and getattr(failure, "index", None) is not None:
            batch.bad_rows[row] = failure
            batch.must_reload |= task.whole
            if not task.whole:
                for first, count in around(task.row_range(), row, alone=False):
                    self.desk.add_task(batch, first, count, whole=False, worker=task.worker, first=True)
        else:
            batch.errors[task.first_row if row is None else row] = failure

    def _resolve_if_done(self, batch: Batch) -> list[Action]:
        if batch.open_tasks:
            return self.desk.assign()
        if batch.discarded:
            del self.batches[batch.number]
            return [action for slot in (batch.slot, *(piece.slot for piece in batch.elsewhere)) for action in self.desk.free(slot)]
        if batch.phase is Phase.EMPTY:
            return []
        moves = self.hedging.settle(batch) if batch.elsewhere or self._races.writes_to(batch.slot) else []
        if batch.errors:
            batch.phase = Phase.FAILED
        elif batch.bad_rows:
            batch.phase = Phase.HOLED
        elif batch.must_reload:
            return [*moves, *self._reload(batch, batch.rows)]
        else:
            batch.phase = Phase.READY
        return [*moves, *self.desk.assign()]

    def _worker_gone(self, event: WorkerGone) -> list[Action]:
        worker = self.workers[event.worker]
        worker.live = False
        worker.vacant, worker.retiring = worker.retiring, False
        orphans, worker.queue = worker.queue, deque()
        actions: list[Action] = []
        touched: dict[int, None] = {}
        for task in reversed(orphans):
            settled = self.hedging.left_by_worker(task)
            if settled is None:
                touched[task.batch] = None
                settled = self.losses.orphaned(task, event)
            actions += settled
        for batch in touched:
            if batch in self.batches:
                actions += self._resolve_if_done(self.batches[batch])
        return actions

    def _taken_back(self, event: TakenBack) -> list[Action]:
        return [*self.take_back_to_backlog(event), *self.desk.assign()]

    def take_back_to_backlog(self, event: TakenBack) -> list[Action]:
        """Without giving them out again at once: the epoch may be over."""
        worker = self.workers[event.worker]
        taken = [task for task in worker.queue if task.number in event.tasks]
        worker.queue = deque(task for task in worker.queue if task.number not in event.tasks)
        self.desk.has_less(worker)
        actions: list[Action] = []
        for task in reversed(taken):
            settled = self.hedging.left_by_worker(task)
            if settled is None:
                self.desk.put_back(task)
            else:
                actions += settled
        return actions

    def batch_of(self, task: int) -> int | None:
        entry = self._tasks.get(task)
        return None if entry is None else entry[0].batch

    def _restart_batch(self, batch: Batch, rows: int) -> None:
        batch.rows, batch.rows_loaded, batch.phase = rows, 0, Phase.LOADING
        batch.layout = batch.parcel_bytes = None
        batch.must_reload = False
