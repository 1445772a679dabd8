"""What becomes of the tasks of a worker that has ended. Pure.

1. The task it ended in is suspected by its row: it is given out again split around that row, so that only the guilty sample stays
   alone. A row suspected twice, or ended by its deadline, is bad.
2. Where not a row but what was done to all rows of a task together ended the worker, the task is given out again to be tried
   singly: each sample alone first, so that the guilty one is known by its row. Only a task that ends its worker again, though
   each of its samples alone did not, is an error of the whole batch.
3. A stream cannot be led past the item at which its worker ends again and again: it comes to its end before that one.
4. All its other tasks were not begun, and go to others.
"""

from __future__ import annotations

from collections import Counter

from antifreeze.supervisor.desk import Desk
from antifreeze.supervisor.exchange import Action, WorkerGone
from antifreeze.supervisor.hedging import Hedging
from antifreeze.supervisor.tasks import WHOLE_BATCH, Batch, Task, around


class Losses:
    def __init__(self, desk: Desk, hedging: Hedging, forgive: bool) -> None:
        self.stops: dict[int, int] = {}
        """Streams that cannot go on, and the item before which each comes to its end."""
        self._lost_at: Counter[tuple[int, int]] = Counter()  # (stream, item)
        self._desk = desk
        self._hedging = hedging
        self._forgive = forgive

    def clear(self) -> None:
        self.stops.clear()
        self._lost_at.clear()

    def orphaned(self, task: Task, event: WorkerGone) -> list[Action]:
        desk = self._desk
        batch, hedge = desk.batches[task.batch], desk.races.hedge_of(task.number)
        if batch.discarded:
            return desk.drop(task)
        batch.left_out.clear()  # they will be met again
        suspect = self._strike(task, event)
        if hedge is not None:
            self._hedging.put_in_place_of(task, hedge)
            return desk.free(task.slot)
        if suspect is not None:
            self._retry_suspect(task, suspect, event)
            return desk.free(task.slot)
        desk.put_back(task)
        return []

    def _strike(self, task: Task, event: WorkerGone) -> int | None:
        """The row (or WHOLE_BATCH) of the task that its worker ended at, which is counted; None where it was at none of it."""
        row = event.row if task.number == event.task else None
        if row is None or (row != WHOLE_BATCH and row not in task.row_range()):
            return None
        strikes = self._desk.batches[task.batch].strikes
        strikes[row] = strikes.get(row, 0) + 1
        return row

    def _retry_suspect(self, task: Task, row: int, event: WorkerGone) -> None:
        desk = self._desk
        batch = desk.batches[task.batch]
        del desk.tasks[task.number]
        batch.open_tasks.discard(task.number)
        if batch.stream is not None:
            self._retry_stream(batch, batch.stream, task, row, event)
            return
        bad = event.final or batch.strikes[row] >= event.strikes
        if row == WHOLE_BATCH and not task.singly and task.rows > 1:
            batch.singly, bad = True, False
        if bad and (row == WHOLE_BATCH or not self._forgive):
            batch.errors[row] = event.failure
            return
        if bad:
            batch.bad_rows[row] = event.failure
        if task.whole or row == WHOLE_BATCH:
            batch.must_reload |= bad
            if not bad:
                desk.add_task(batch, task.first_row, task.rows, whole=task.whole, worker=task.worker, first=True)
            return
        for first, count in reversed(around(task.row_range(), row, alone=not bad)):
            desk.add_task(batch, first, count, whole=False, worker=task.worker, first=True)

    def is_lost_again(self, stream: int, item: int | None, strikes: int) -> bool:
        """Whether a stream that is lost at this item now cannot go on."""
        return item is not None and self._lost_at[stream, item] + 1 >= strikes

    def _retry_stream(self, batch: Batch, stream: int, task: Task, row: int, event: WorkerGone) -> None:
        """Once more, up to that item where it is lost there again: what comes before it is not lost with it. (A deadline that passed
        once is an error at once where nothing is forgiven; the loop may go on, and the stream with it.)"""
        if event.item is not None and self.is_lost_again(stream, event.item, event.strikes):
            self.stops[stream], batch.stops_with = event.item, event.failure
        elif (event.final and not self._forgive) or (event.item is None and batch.strikes[row] >= event.strikes):
            batch.errors[row] = event.failure
        if event.item is not None:
            self._lost_at[stream, event.item] += 1
        if not batch.errors:
            self._desk.add_task(batch, task.first_row, task.rows, whole=task.whole, worker=task.worker, first=True)
