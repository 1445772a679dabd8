"""What workers say: messages of all of them, and their ends, become events of the state.

poll(sockets, pidfds), bell ──▶ one message of each ──▶ TaskEnded, RowFailed … ──▶ PoolState ──▶ actions
                            └─▶ those that have ended ──▶ replacing.py, after all they have said is heard
"""

from __future__ import annotations

import pickle

from antifreeze import spans
from antifreeze.channel.line import Bell
from antifreeze.channel.messages import (
    Bounced,
    Collated,
    Ended,
    Hoards,
    ItemLeftOut,
    LayoutFound,
    Message,
    ParcelDone,
    Ready,
    RowsDone,
    SampleFailed,
    StreamEnded,
    StreamState,
    TaskFailed,
)
from antifreeze.supervisor.acting import Hands
from antifreeze.supervisor.exchange import Ending, LeftOut, RowFailed, TakenBack, TaskEnded
from antifreeze.supervisor.policy import slept_through
from antifreeze.supervisor.process import WorkerProcess
from antifreeze.supervisor.replacing import Replacing
from antifreeze.supervisor.starting import Starter
from antifreeze.supervisor.tasks import Batch
from antifreeze.supervisor.threads import WorkerThread
from antifreeze.supervisor.workshop import Workshop


class Ears:
    def __init__(self, shop: Workshop, hands: Hands, starter: Starter, replacing: Replacing) -> None:
        self.user_seeded: int | None = None
        self._state = shop.state
        self._jobs = shop.jobs
        self._crew = shop.crew
        self._costs = shop.costs
        self._hands = hands
        self._starter = starter
        self._replacing = replacing
        self._watch = shop.watch
        self._last_stream_state: dict[int, tuple[int, bytes | None, bool]] = {}

    def drain(self, wait_s: float) -> None:
        """Handles what has arrived, one message of each worker, waiting up to wait_s for the first of it."""
        if self._crew.bell is not None:
            self._hear(self._crew.bell, wait_s)
            return
        gone: list[int] = []
        for descriptor, _ in self._crew.poll.poll(wait_s):
            number = self._starter.by_descriptor.get(descriptor)
            worker = None if number is None else self._crew.workers[number]
            if number is None or worker is None or isinstance(worker, WorkerThread):
                if self._crew.nursery is not None:
                    self._replacing.look_into_nursery()
                continue
            message = worker.channel.try_receive()
            if message is not None:
                self._receive(number, message)
            if worker.outbox:
                self._hands.flush(worker)
            if descriptor == worker.pidfd:
                self._receive_all(number, worker)
                gone.append(number)
        for number in gone:
            self._replacing.gone(number)

    def _hear(self, bell: Bell, wait_s: float) -> None:
        """The same of threads."""
        if wait_s:
            given = len(self._state.desk.tasks) - len(self._state.desk.backlog)
            bell.wait(wait_s, slept_through(given, len(self._state.workers)))
        gone: list[int] = []
        for line, message in bell.heard():
            if isinstance(message, Ended):
                gone.append(line.worker)
            else:
                self._receive(line.worker, message)
        for number in gone:
            self._replacing.gone(number)

    def _receive_all(self, number: int, worker: WorkerProcess) -> None:
        while (message := worker.channel.try_receive()) is not None:
            self._receive(number, message)

    def _receive(self, number: int, message: Message) -> None:
        if isinstance(message, RowsDone):
            self._count(message.rows, message.fetch_ns, 0, message.write_ns, message.cpu_ns, message.queued_ns)
            if spans.active is not None:
                self._trace(spans.active, number, message, {"fetch": message.fetch_ns, "write": message.write_ns})
            event = TaskEnded(number, message.task, Ending.ROWS, rows=message.rows, layout=message.layout)
            self._ended(event)
        elif isinstance(message, ParcelDone):
            stages = (message.fetch_ns, message.collate_ns, message.write_ns)
            self._count(message.rows, *stages, message.cpu_ns, message.queued_ns)
            if spans.active is not None:
                self._trace(spans.active, number, message, dict(zip(("fetch", "collate", "write"), stages, strict=True)))
            self._ended(TaskEnded(number, message.task, Ending.PARCEL, rows=message.rows, parcel_bytes=message.size_bytes))
        elif isinstance(message, Collated):
            self._count(message.rows, message.fetch_ns, message.collate_ns, 0, message.cpu_ns, 0)
            if spans.active is not None:
                self._trace(spans.active, number, message, {"fetch": message.fetch_ns, "collate": message.collate_ns})
            batch = self._state.batch_of(message.task)
            if batch is not None and not self._state.batches[batch].discarded:
                self._jobs.collated[batch] = message.batch
            self._ended(TaskEnded(number, message.task, Ending.PARCEL, rows=message.rows, parcel_bytes=0))
        elif isinstance(message, TaskFailed):
            if number in self._replacing.useless:
                self._hands.perform(self._state.handle(TakenBack(number, (message.task,))))  # for somebody else
                return
            self._ended(TaskEnded(number, message.task, Ending.FAILED, failure=pickle.loads(message.payload)))
        elif isinstance(message, Bounced):
            self._ended(TaskEnded(number, message.task, Ending.BOUNCED))
        elif isinstance(message, StreamEnded):
            self._ended(TaskEnded(number, message.task, Ending.STREAM_ENDED))
        elif isinstance(message, SampleFailed):
            self._hands.perform(self._state.handle(RowFailed(message.task, message.row, pickle.loads(message.payload))))
        elif isinstance(message, ItemLeftOut):
            self._hands.perform(self._state.handle(LeftOut(message.task, pickle.loads(message.payload))))
        elif isinstance(message, Hoards):
            self._costs.memory.hoards = message.payload.decode(errors="replace")
        elif isinstance(message, LayoutFound):
            self._jobs.layouts[message.key] = pickle.loads(message.payload)
        elif isinstance(message, StreamState):
            self._last_stream_state[message.stream] = (message.drawn, message.payload or None, bool(message.ended))
        elif isinstance(message, Ready):
            self.user_seeded = message.user_seeded if self.user_seeded is None else self.user_seeded
            worker = self._crew.workers[number]
            assert worker is not None
            worker.ready = True
            self._replacing.is_ready(number)
            if message.payload and not self._jobs.streams and not self.user_seeded:  # else its tasks are its own, and say it
                self._replacing.is_useless(number, pickle.loads(message.payload))

    def _ended(self, event: TaskEnded) -> None:
        batch_number = self._state.batch_of(event.task)
        if batch_number is not None and self._state.batches[batch_number].stream is not None:
            self._stream_advanced(self._state.batches[batch_number], event)
        self._replacing.failed_starts = 0
        self._hands.perform(self._state.handle(event))
        self._replacing.recycle_if_due(event.worker)

    def _stream_advanced(self, batch: Batch, event: TaskEnded) -> None:
        assert batch.stream is not None
        plainly = (event.rows, None, False)
        drawn, state, ended = self._last_stream_state.pop(batch.stream, plainly)
        if not batch.discarded and event.ending is not Ending.STREAM_ENDED:
            self._jobs.streams[batch.stream].advanced(batch.number, drawn, state, ended)

    def _count(self, rows: int, fetch_ns: int, collate_ns: int, write_ns: int, cpu_ns: int, queued_ns: int) -> None:
        self._costs.add(rows, fetch_ns, collate_ns, write_ns, cpu_ns, queued_ns)
        if rows:
            self._watch.slowest_sample_s = max(self._watch.slowest_sample_s, fetch_ns / rows / 1e9)

    def _trace(self, recorder: spans.Recorder, number: int, message: RowsDone | ParcelDone | Collated, stages: dict[str, int]) -> None:
        worker = self._crew.workers[number]
        assert worker is not None
        recorder.task(worker.pid, number, self._state.batch_of(message.task), message.began_ns, stages, message.rows, message.cpu_ns)
