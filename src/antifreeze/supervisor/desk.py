"""Who has which task: a table of workers, batches and open tasks, and who is given the next one. Pure.

1. Every open task is in one worker's queue or in the backlog.
2. Whoever has least to do gets the next one; a task that is bound to a worker waits for that one.
3. A slot is free when no batch has it and nobody writes to it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace

from antifreeze.supervisor.exchange import Action, FreeSlot, Send
from antifreeze.supervisor.races import Races
from antifreeze.supervisor.tasks import Batch, Task, Worker

_MOST_ENTRIES = 8
"""For each worker, of who has least to do."""


class Desk:
    def __init__(self, workers: int) -> None:
        self.workers = [Worker(number) for number in range(workers)]
        self.batches: dict[int, Batch] = {}
        self.backlog: deque[Task] = deque()
        self.tasks: dict[int, tuple[Task, int | None]] = {}
        """Open ones, and whose they are."""
        self.races = Races()
        self._next_task = 0
        self._idlest = _Idlest(self.workers)

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
        while backlog:
            task = backlog.popleft()
            worker = self._worker_for(task)
            if worker is None:
                waiting.append(task)
                continue
            worker.queue.append(task)
            self.tasks[task.number] = (task, worker.number)
            actions.append(Send(worker.number, task))
        backlog.extend(waiting)
        return actions

    def _worker_for(self, task: Task) -> Worker | None:
        if task.worker is not None:
            worker = self.workers[task.worker]
            return worker if worker.live else None
        return self._idlest.worker() if task.home is None else self._idlest.at_home(task.home, task.rows)

    def anybody_idle(self) -> bool:
        idlest = self._idlest.worker()
        return idlest is not None and not idlest.queue

    def has_less(self, worker: Worker) -> None:
        """To do, than before: a task of its queue is gone."""
        self._idlest.has_less(worker)

    def look_anew(self) -> None:
        """At who has least to do: somebody is there who was not."""
        self._idlest.look_anew()

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
    """The live worker with the least to do, of any number of them: not all are looked at for every task.

    Each live worker has an entry that says it has no more to do than it has. One that says too little is put right when it comes to the
    top; who has less than before gets another entry."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers
        self.look_anew()

    def look_anew(self) -> None:
        self._heap = [(worker.load, worker.number) for worker in self._workers if worker.live]
        heapify(self._heap)

    def worker(self) -> Worker | None:
        heap, workers = self._heap, self._workers
        while heap:
            said, number = heap[0]
            worker = workers[number]
            if not worker.live:
                heappop(heap)
            elif worker.load != said:
                heapreplace(heap, (worker.load, number))
            else:
                return worker
        return None

    def at_home(self, home: int, rows: int) -> Worker | None:
        """That worker, unless another one would be done with the task before that one begins it."""
        idlest = self.worker()
        if idlest is None or home >= len(self._workers):
            return idlest
        worker = self._workers[home]
        return idlest if not worker.live or worker.load > idlest.load + rows else worker

    def has_less(self, worker: Worker) -> None:
        if len(self._heap) > _MOST_ENTRIES * len(self._workers):
            self.look_anew()
        elif worker.live:
            heappush(self._heap, (worker.load, worker.number))
