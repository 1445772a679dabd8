"""Two workers at the same rows: a late task is run a second time elsewhere, and the first good result wins. Pure.

    task ──late──▶ hedge: the same rows and seeds, in a slot of its own, by a worker that has nothing else to do
                     ├─ the hedge is done first: its slot holds these rows, and the task has lost
                     └─ the task is done first: the hedge has lost

1. Who has lost may still write: the slot it writes to is nobody else's until it has ended.
2. A hedge that fails, bounces, meets a bad row or dies is forgotten: the task it ran beside is still there, and decides.
3. A task whose worker ends while its hedge runs is replaced by the hedge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from antifreeze.supervisor.desk import Desk
from antifreeze.supervisor.exchange import Action, Ending, Gather, Send, TaskEnded
from antifreeze.supervisor.tasks import WHOLE_BATCH, Batch, Piece, Task


class Hedging:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._races = desk.races

    def late_task(self, late: Collection[int]) -> Task | None:
        """The oldest task that one of the `late` workers is at, where somebody idle may run it too."""
        workers = self._desk.workers
        if not any(worker.live and not worker.queue for worker in workers):
            return None
        running = [workers[number].queue[0] for number in late if workers[number].queue]
        return min((task for task in running if self._may_hedge(task)), key=lambda task: task.batch, default=None)

    def _may_hedge(self, task: Task) -> bool:
        desk, races = self._desk, self._races
        known = task.worker is None and task.number in desk.tasks and not desk.batches[task.batch].discarded
        if not known or races.is_hedge(task.number) or races.hedge_of(task.number) is not None:
            return False
        strikes = desk.batches[task.batch].strikes  # a worker ended at it: no race again, or it would never be bad
        return WHOLE_BATCH not in strikes and not any(row in strikes for row in task.row_range())

    def begin(self, task: Task, slot: int) -> list[Action]:
        """Once more, by somebody idle, into `slot`."""
        worker = next(worker for worker in self._desk.workers if worker.live and not worker.queue)
        hedge = Task(self._desk.next_number(), task.batch, task.first_row, task.rows, task.whole, None, slot)
        self._races.begin(task.number, hedge)
        self._desk.tasks[hedge.number] = (hedge, worker.number)
        worker.queue.append(hedge)
        return [Send(worker.number, hedge)]

    def has_won(self, hedge: Task, event: TaskEnded) -> bool:
        """It has ended: if it has won, the task it ran beside has lost."""
        desk = self._desk
        number, bad_rows = self._races.end(hedge.number)
        if event.ending not in (Ending.ROWS, Ending.PARCEL) or bad_rows or desk.batches[hedge.batch].discarded:
            return False
        task, owner = desk.tasks.pop(number)
        desk.batches[task.batch].open_tasks.discard(number)
        if owner is None:
            desk.backlog.remove(task)
        else:
            self._races.lose(number, desk.slot_of(task))
        return True

    def lose(self, hedge: Task) -> None:
        self._races.end(hedge.number)
        del self._desk.tasks[hedge.number]
        assert hedge.slot is not None
        self._races.lose(hedge.number, hedge.slot)

    def lose_all(self) -> None:
        for hedge in self._races.hedges():
            self.lose(hedge)

    def loser_ended(self, event: TaskEnded) -> list[Action]:
        slot = self._races.losers.pop(event.task, None)
        if slot is None:
            return []  # of an epoch that is forgotten
        worker = self._desk.workers[event.worker]
        worker.queue = deque(task for task in worker.queue if task.number != event.task)
        self._desk.has_less(worker)
        return self._desk.free(slot)

    def left_by_worker(self, task: Task) -> list[Action] | None:
        """No worker has it any more: all there is to do about a loser or a hedge; None where it is neither."""
        if task.number in self._races.losers:
            return self._desk.free(self._races.losers.pop(task.number))
        if not self._races.is_hedge(task.number):
            return None
        self._races.end(task.number)
        del self._desk.tasks[task.number]
        return self._desk.free(task.slot)

    def put_in_place_of(self, task: Task, hedge: Task) -> None:
        desk = self._desk
        batch = desk.batches[task.batch]
        _, bad_rows = self._races.end(hedge.number)
        batch.bad_rows.update(bad_rows)
        del desk.tasks[task.number]
        batch.open_tasks.discard(task.number)
        batch.open_tasks.add(hedge.number)

    def settle(self, batch: Batch) -> list[Action]:
        """All tasks of the batch have ended: its rows come together in a slot to which nobody writes."""
        pieces, batch.elsewhere = batch.elsewhere, []
        slots = tuple(piece.slot for piece in pieces)
        if len(pieces) == 1 and pieces[0].rows == batch.rows and not batch.must_reload:
            old, batch.slot = batch.slot, slots[0]
            return self._desk.free(old)
        kept = () if batch.layout is None or batch.must_reload else (*_rest(batch, pieces), *pieces)
        return [Gather(batch.number, kept, (batch.slot, *slots))]

    def gathered(self, done: Gather, slot: int) -> list[Action]:
        self._desk.batches[done.batch].slot = slot
        return [action for old in done.from_slots for action in self._desk.free(old)]


def _rest(batch: Batch, pieces: list[Piece]) -> list[Piece]:
    """The rows of the batch that lie in its own slot."""
    rest, first = [], 0
    for piece in sorted(pieces, key=lambda piece: piece.first_row):
        rest.append(Piece(batch.slot, first, piece.first_row - first))
        first = piece.first_row + piece.rows
    rest.append(Piece(batch.slot, first, batch.rows - first))
    return [piece for piece in rest if piece.rows > 0]
