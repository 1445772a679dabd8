"""Who has which task: a table of workers, batches and open tasks, and who is given the next one. Pure.

1. Every open task is in one worker's queue or in the backlog.
2. Whoever has least to do gets the next one; a task that is bound to a worker waits for that one.
3. A slot is free when no batch has it and nobody writes to it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from heapq import heapify, heapreplace

from antifreeze.supervisor.exchange import Action, FreeSlot, Send
from antifreeze.supervisor.races import Races
from antifreeze.supervisor.tasks import Batch, Task, Worker


class Desk:
    def __init__(self, workers: int) -> None:
        self.workers = [Worker(number) for number in range(workers)]
        self.batches: dict[int, Batch] = {}
        self.backlog: deque[Task] = deque()
        self.tasks: dict[int, tuple[Task, int | None]] = {}
        """Open ones, and whose they are."""
        self.races = Races()
        self._next_task = 0

    def __repr__(self) -> str:
        return f"<Desk {self}>"

    def __str__(self) -> str:
        queued = sum(len(worker.queue) for worker in self.workers)
        return f"{len(self.batches)} batches in flight, {queued} tasks queued, {len(self.backlog)} waiting"

    def clear(self) -> None:
        """The workers are gone."""
        self.batches.clear()
        self.backlog.clear()
        self.tasks.clear()
        self.races.clear()

    # --- tasks ---

    def next_number(self) -> int:
        self._next_task += 1
        return self._next_task - 1

    def add_task(
        self, batch: Batch, first_row: int, rows: int, *, whole: bool, worker: int | None, first: bool = False, home: int | None = None
    ) -> None:
        task = Task(self._next_task, batch.number, first_row, rows, whole, worker, singly=batch.singly, home=home)
        self._next_task += 1
        self.tasks[task.number] = (task, None)
        batch.open_tasks.add(task.number)
        if first:
            self.backlog.appendleft(task)
        else:
            self.backlog.append(task)

    def assign(self) -> list[Action]:
        """Whatever waits goes to whoever may do it."""
        actions: list[Action] = []
        backlog = self.backlog
        if not backlog:
            return actions
        waiting: list[Task] = []
        idlest = _Idlest(self.workers)
        while backlog:
            task = backlog.popleft()
            worker = self._worker_for(task, idlest)
            if worker is None:
                waiting.append(task)
                continue
            worker.queue.append(task)
            idlest.given(worker, task.rows)
            self.tasks[task.number] = (task, worker.number)
            actions.append(Send(worker.number, task))
        backlog.extend(waiting)
        return actions

    def _worker_for(self, task: Task, idlest: _Idlest) -> Worker | None:
        if task.worker is not None:
            worker = self.workers[task.worker]
            return worker if worker.live else None
        return idlest.worker() if task.home is None else idlest.at_home(task.home, task.rows)

    def put_back(self, task: Task) -> None:
        """Given out once in vain: from now on to whoever is free first."""
        task = replace(task, home=None)
        self.tasks[task.number] = (task, None)
        self.backlog.appendleft(task)

    def drop(self, task: Task) -> list[Action]:
        self.tasks.pop(task.number, None)
        self.batches[task.batch].open_tasks.discard(task.number)
        return self.free(task.slot)

    # --- slots ---

    def slot_of(self, task: Task) -> int:
        """What a task in a worker's queue may write to."""
        lost = self.races.losers.get(task.number)
        if lost is not None:
            return lost
        return self.batches[task.batch].slot if task.slot is None else task.slot

    def free(self, slot: int | None) -> list[Action]:
        """Unless somebody still writes to it, or a batch has it: then it is free when that ends."""
        if slot is None or self.races.writes_to(slot) or any(batch.slot == slot for batch in self.batches.values()):
            return []
        return [FreeSlot(slot)]


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
