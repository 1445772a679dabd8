"""What the state has decided is done: tasks go to workers, come back from them, slots are freed and filled.

    Send ──▶ Work ──▶ outbox ──▶ worker's queue          TakeBack ──▶ what it has not read ──▶ PoolState
    FreeSlot ──▶ ring                                    Gather ──▶ rows of several slots in another one

1. Nothing here waits: what does not fit into a worker's queue is sent when it has read something.
2. A worker that has ended gets nothing; its end is an event of its own, and what it held comes back then.
"""

from __future__ import annotations

import array
import pickle
from typing import Any

from antifreeze.channel.messages import WITH_OFFSETS, Message, NewEpoch, OpenStream, Stop, Work
from antifreeze.errors import LoadingError
from antifreeze.slots.gathering import gather_rows
from antifreeze.supervisor.crew import AnyWorker
from antifreeze.supervisor.exchange import Action, FreeSlot, Gather, Send, TakenBack
from antifreeze.supervisor.tasks import Task
from antifreeze.supervisor.work import StreamStart
from antifreeze.supervisor.workshop import Workshop
from antifreeze.worker.main import WorkerSpec


class Hands:
    def __init__(self, shop: Workshop) -> None:
        self._state = shop.state
        self._jobs = shop.jobs
        self._crew = shop.crew
        self._ring = shop.ring

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send_task(action.worker, action.task)
            elif isinstance(action, FreeSlot):
                self._ring.give_back(action.slot)
            elif isinstance(action, Gather):
                self._gather(action)
            else:
                self.take_back(action.worker)

    def _send_task(self, number: int, task: Task) -> None:
        batch, content = self._state.batches[task.batch], self._jobs.contents[task.batch]
        indices = content.indices
        if content.divisible and task.rows < len(indices):
            indices = indices[task.first_row : task.first_row + task.rows]
        if content.offsets is None:
            payload, pickled = _encode_indices(indices)
        else:
            offsets = [at - task.first_row for at in content.offsets[task.first_row : task.first_row + task.rows]]
            payload, pickled = pickle.dumps((indices, offsets)), WITH_OFFSETS
        stream = -1 if batch.stream is None else batch.stream
        slot = batch.slot if task.slot is None else task.slot
        position = content.position + task.first_row
        worker = self._crew.workers[number]
        assert worker is not None
        self.send(
            worker,
            Work(
                task.number,
                content.number,
                slot,
                batch.rows,
                task.first_row,
                task.rows,
                position,
                stream,
                int(task.whole),
                int(task.singly),
                self._ring.arena.age(slot),
                content.key,
                pickled,
                payload,
            ),
        )

    def send(self, worker: AnyWorker, message: Message) -> None:
        worker.outbox.append(message)
        self.flush(worker)

    def begin_epoch(self, number: int, spec: WorkerSpec) -> None:
        worker = self._crew.workers[number]
        if worker is not None:
            self.send(worker, NewEpoch(spec.epoch, pickle.dumps((spec.base_seed, spec.shared_seed))))

    def flush(self, worker: AnyWorker) -> None:
        try:
            while worker.outbox and worker.try_send(worker.outbox[0]):
                worker.outbox.popleft()
        except ConnectionError:
            worker.outbox.clear()

    def open_stream(self, start: StreamStart) -> None:
        worker = self._crew.workers[start.worker]
        if worker is not None:
            stop_at = self._state.losses.stops.get(start.stream, -1)
            past = pickle.dumps(start.past)
            self.send(worker, OpenStream(start.stream, start.streams, start.batch_rows, int(start.replay), stop_at, past))

    def take_back(self, number: int) -> None:
        worker = self._crew.workers[number]
        if worker is None:
            return
        tasks = []
        for message in worker.take_back():
            if isinstance(message, Work):
                tasks.append(message.task)
            else:
                self.send(worker, message)
        if tasks:
            self.perform(self._state.handle(TakenBack(number, tuple(tasks))))

    def take_back_all(self) -> None:
        """The epoch is over: of what was not read only the word to end is still meant."""
        for number, worker in enumerate(self._crew.workers):
            if worker is None:
                continue
            messages = worker.take_back()
            for message in messages:
                if isinstance(message, Stop):
                    self.send(worker, message)
            unread = tuple(message.task for message in messages if isinstance(message, Work))
            self.perform(self._state.take_back_to_backlog(TakenBack(number, unread)))

    def _gather(self, action: Gather) -> None:
        batch, slot = self._state.batches[action.batch], self._ring.take()
        if action.pieces:
            assert batch.layout is not None
            pieces = [(piece.slot, piece.first_row, piece.rows) for piece in action.pieces]
            gather_rows(self._ring.arena, self._jobs.layouts[batch.layout], batch.rows, pieces, slot)
        self.perform(self._state.hedging.gathered(action, slot))


def _encode_indices(indices: Any) -> tuple[bytes, int]:
    if isinstance(indices, array.array):
        return indices.tobytes(), 0
    if type(indices) is list and set(map(type, indices)) <= {int}:
        try:
            return array.array("q", indices).tobytes(), 0
        except OverflowError:
            pass
    try:
        return pickle.dumps(indices, protocol=5), 1
    except Exception as error:
        raise LoadingError(f"the sampler gave an index that cannot be sent to a worker: {error}") from error
