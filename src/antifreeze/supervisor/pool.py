"""The only loop: waits for workers, lets the state decide, acts.

    submit ──▶ PoolState ──▶ Send ──▶ worker            wait ──▶ poll(sockets, pidfds) ──▶ PoolState ──▶ resolved batch

1. It waits only inside `wait`, in steps of TICK_S at most, and looks at deadlines at each step.
2. The end of a worker is an event like any other: its tasks are given out again once it is reaped.
3. Past the restart budget, or when a worker cannot be started, it gives up with the whole story.
4. Its processes and descriptors are its crew's, which ends them.
5. `resize` changes the number of workers between tasks: nothing that was given out is lost or done twice. Who is added takes part when
   it is ready, and one that does not get so far is no fault: `growth_failed` says why.
"""

from __future__ import annotations

import array
import itertools
import os
import pickle
import select
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from antifreeze import spans
from antifreeze.channel.line import Bell
from antifreeze.channel.messages import (
    WITH_OFFSETS,
    Bounced,
    Collated,
    Ended,
    ItemLeftOut,
    LayoutFound,
    Message,
    NewEpoch,
    OpenStream,
    ParcelDone,
    Ready,
    RowsDone,
    SampleFailed,
    Stop,
    StreamEnded,
    StreamState,
    TaskFailed,
    Work,
)
from antifreeze.errors import LoaderClosed, LoaderGaveUp, LoaderTimeout, LoadingError, WorkerStartFailed
from antifreeze.events import Happening, Story
from antifreeze.options import Options
from antifreeze.slots.gathering import gather_rows
from antifreeze.slots.layout import RowLayout
from antifreeze.slots.ring import Ring
from antifreeze.supervisor import telling
from antifreeze.supervisor.clean_server import PickledSpecs, cloudpickle_dumps
from antifreeze.supervisor.crew import AnyWorker, Crew
from antifreeze.supervisor.observe import oom_kills, private_bytes
from antifreeze.supervisor.policy import RestartBudget, is_late, stall_intervals_s
from antifreeze.supervisor.process import Born, ByContext, ByServer, Exit, WorkerProcess
from antifreeze.supervisor.sample_path import path_of
from antifreeze.supervisor.state import (
    STRIKES,
    WHOLE_BATCH,
    Action,
    Batch,
    Ending,
    FreeSlot,
    Gather,
    LeftOut,
    PoolState,
    RowFailed,
    Send,
    TakenBack,
    Task,
    TaskEnded,
    WorkerBack,
    WorkerGone,
)
from antifreeze.supervisor.threads import WorkerThread
from antifreeze.supervisor.unpicklable import name_culprit
from antifreeze.supervisor.watch import Look, Watch, where_is
from antifreeze.supervisor.work import Content, Costs, StreamStart
from antifreeze.worker.failure import Failure
from antifreeze.worker.journal import ALL_ROWS, Entry, Stage
from antifreeze.worker.main import WorkerSpec
from antifreeze.worker.task import few
from antifreeze.worker.turns import Turns, Usage

TICK_S = 0.25
HEDGE_TICK_S = 0.05
LOOK_EVERY_S = 0.05
"""Every worker's journal is looked at so often at most, however many messages wake the loop."""

_worker_keys = itertools.count()
_FROM_OUTSIDE = (-9, -15)  # SIGKILL and SIGTERM, which not every system has a name for


class Pool:
    def __init__(
        self,
        context: Any,
        specs: list[WorkerSpec],
        ring: Ring,
        options: Options,
        costs: Costs,
        story: Story,
        use_server: bool = False,
        begin_with: int | None = None,
        usage: Usage | None = None,
    ) -> None:
        """`specs`: of as many workers as there can ever be, of which `begin_with` are started (default: all).
        `usage`: workers are threads, and this is what is known of the random generators they use."""
        self.ring = ring
        self.options = options
        self.story = story
        self.costs = costs
        self.layouts: dict[int, RowLayout] = {}
        self.contents: dict[int, Content] = {}
        self.streams: dict[int, StreamStart] = {}
        self.user_seeded: int | None = None
        self.state = PoolState(len(specs) if begin_with is None else begin_with, options.forgives)
        self.growth_failed: str | None = None
        self._specs = specs
        self._context = context
        self._turns = None if usage is None else Turns(usage)
        self.collated: dict[int, Any] = {}
        self.crew = Crew(len(specs), ring, use_server, threads=usage is not None)
        self._watch = Watch(self.crew.journal, len(specs))
        self._budget = RestartBudget(options.max_restarts_per_minute)
        self._by_descriptor: dict[int, int] = {}
        self._blame: dict[int, WorkerGone] = {}
        self._killed_at: dict[int, float] = {}
        self._stopped_by_others: set[int] = set()
        self._recycling: set[int] = set()
        self._coming: set[int] = set()  # added, and not ready yet
        self._failed_starts = 0
        self._tick_s = HEDGE_TICK_S if options.hedge else TICK_S
        self._pickled_specs: PickledSpecs | None = None
        self._forks = usage is None and context.get_start_method() == "fork"
        self._began_s = time.monotonic()
        self._looked_s = 0.0
        self._oom_kills = oom_kills()
        self._last_stream_state: dict[int, tuple[int, bytes | None, bool]] = {}

    def __repr__(self) -> str:
        live = sum(worker is not None for worker in self.crew.workers)
        return f"<Pool {self.size} workers: {live} live, {self.costs.restarts} restarts, {self.state!r}>"

    # --- life ---

    def start(self) -> None:
        for number in self.state.staying():
            self._start_worker(number)

    @property
    def started(self) -> bool:
        return any(worker is not None for worker in self.crew.workers)

    @property
    def size(self) -> int:
        """Workers that are there, or about to be, and not on their way out."""
        return len(self.state.staying())

    @property
    def ready(self) -> int:
        """How many of them take part."""
        return sum(worker.live for worker in self.state.workers)

    def resize(self, count: int) -> None:
        """Between tasks: `count` workers from now on, as far as there is room for them. Whoever is bound to its worker cannot be resized,
        and none can stay only where nothing is being loaded."""
        self._check_usable()
        if count < 1 and any(not batch.discarded for batch in self.state.batches.values()):
            raise ValueError(f"{len(self.state.batches)} batches are being loaded: a pool without workers would never end them")
        staying = self.state.staying()
        for number in reversed(staying[max(0, count) :]):
            self._retire(number)
        self.growth_failed = None
        for _ in range(count - len(staying)):
            if not self._add_worker():
                return

    def look_after(self) -> None:
        """While the loop does not wait for the pool: what has happened, and who has been at it for too long."""
        self.catch_up()
        self._check_deadlines()

    def _retire(self, number: int) -> None:
        self._perform(self.state.retire(number))
        self._coming.discard(number)
        worker = self.crew.workers[number]
        if worker is not None and worker.ready:
            worker.ask_to_end()
        elif worker is not None:
            self._kill(number, worker)

    def _add_worker(self) -> bool:
        if not any(worker.vacant for worker in self.state.workers) and len(self.state.workers) == len(self.crew.workers):
            return False  # those that go are not gone yet
        number = self.state.add_worker()
        self._coming.add(number)
        try:
            self._start_worker(number)
        except Exception as error:
            self._give_up_growth(number, str(error))
            return False
        return True

    def _give_up_growth(self, number: int, why: str) -> None:
        """One more worker could not be had: its place is free again, and the others go on."""
        self.growth_failed = why
        self._tell(Happening.WORKER_ENDED, f"worker {number} could not be added: {why}")
        self._coming.discard(number)
        self._perform(self.state.retire(number))
        self._perform(self.state.handle(WorkerGone(number)))

    def close(self) -> None:
        """May be called twice."""
        self.crew.close()

    @property
    def closed(self) -> bool:
        return self.crew.closed

    def _start_worker(self, number: int) -> None:
        self.crew.journal.clear(number)
        self._watch.forget(number)
        if self._turns is not None:
            self._start_thread(number, self._turns)
            return
        shared = (self.ring.arena.descriptor, self.crew.journal.descriptor)
        key = next(_worker_keys)
        self.ring.quarantine(key)
        worker = WorkerProcess(self._way(), self._specs[number], shared, key, max(1, self.size))
        self.crew.workers[number] = worker
        for descriptor in (worker.channel.fileno(), worker.pidfd):
            self.crew.poll.register(descriptor, select.EPOLLIN)
            self._by_descriptor[descriptor] = number
        for start in self.streams.values():
            if start.worker == number:
                self._open_stream(start)

    def _start_thread(self, number: int, turns: Turns) -> None:
        bell, row = self.crew.bell, self.crew.journal.row(number)
        assert bell is not None
        self.crew.workers[number] = WorkerThread(self._specs[number], self.ring.arena, row, bell, turns, next(_worker_keys))
        for start in self.streams.values():
            if start.worker == number:
                self._open_stream(start)

    def _way(self) -> Callable[..., Born]:
        """By the user's context; from the clean server where a fork has shown that it is not safe."""
        if self.crew.use_server and self._pickled_specs is None:
            try:
                self._pickled_specs = PickledSpecs(self._specs)
            except Exception as error:
                if not self._forks:
                    raise name_culprit(error, self._specs[0].picklable_parts(), dumps=cloudpickle_dumps) from error
                self.crew.use_server = False
                self._tell(Happening.WORKER_STARTED, f"the data set does not pickle ({error}), so workers are still forked")
        if self.crew.use_server and self._pickled_specs is not None:
            return partial(ByServer, self._pickled_specs)
        return partial(ByContext, self._context)

    # --- giving out ---

    def submit(self, number: int, content: Content, rows: int, tasks: int, worker: int | None, stream: int | None = None) -> None:
        self.contents[number] = content
        self._perform(self.state.submit(number, self.ring.take(), rows, tasks, stream=stream, worker=worker))

    def fill_row(self, number: int, row: int, index: Any) -> None:
        self.contents[number].indices[row] = index
        self._perform(self.state.fill_row(number, row))

    def reload(self, number: int, indices: Any, rows: int, offsets: list[int] | None = None) -> None:
        self.contents[number].indices, self.contents[number].offsets = indices, offsets
        self._perform(self.state.reload(number, rows))

    def begin_epoch(self, specs: list[WorkerSpec]) -> None:
        """Persistent workers go on; what is left of the last epoch is dropped."""
        self._specs = specs
        self._pickled_specs = None
        self._drain(0)
        self._take_back_all()
        self._perform(self.state.discard_all())
        self.contents = {number: self.contents[number] for number in self.state.batches}
        self.streams.clear()
        for worker in self.crew.workers:
            if worker is not None:
                spec = specs[worker.number]
                self._send(worker, NewEpoch(spec.epoch, pickle.dumps((spec.base_seed, spec.shared_seed))))

    def open_streams(self, starts: list[StreamStart]) -> None:
        for start in starts:
            self.streams[start.stream] = start
            self._open_stream(start)

    def _open_stream(self, start: StreamStart) -> None:
        worker = self.crew.workers[start.worker]
        if worker is not None:
            stop_at = self.state.stops.get(start.stream, -1)
            past = pickle.dumps(start.past)
            self._send(worker, OpenStream(start.stream, start.streams, start.batch_rows, int(start.replay), stop_at, past))

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send_task(action.worker, action.task)
            elif isinstance(action, FreeSlot):
                self.ring.give_back(action.slot)
            elif isinstance(action, Gather):
                self._gather(action)
            else:
                self._take_back(action.worker)

    def _send_task(self, number: int, task: Task) -> None:
        batch, content = self.state.batches[task.batch], self.contents[task.batch]
        indices = content.indices
        if content.divisible:
            indices = indices[task.first_row : task.first_row + task.rows]
        if content.offsets is None:
            payload, pickled = _encode_indices(indices)
        else:
            offsets = [at - task.first_row for at in content.offsets[task.first_row : task.first_row + task.rows]]
            payload, pickled = pickle.dumps((indices, offsets)), WITH_OFFSETS
        stream = -1 if batch.stream is None else batch.stream
        slot = batch.slot if task.slot is None else task.slot
        position = content.position + task.first_row
        worker = self.crew.workers[number]
        assert worker is not None
        self._send(
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
                self.ring.arena.age(slot),
                pickled,
                payload,
            ),
        )

    def _send(self, worker: AnyWorker, message: Message) -> None:
        """Never waits: what does not fit into the worker's queue now is sent when it has read something."""
        worker.outbox.append(message)
        self._flush(worker)

    def _flush(self, worker: AnyWorker) -> None:
        try:
            while worker.outbox and worker.try_send(worker.outbox[0]):
                worker.outbox.popleft()
        except ConnectionError:
            worker.outbox.clear()  # it has ended; that is an event of its own, and what it held comes back then

    def _take_back(self, number: int) -> None:
        worker = self.crew.workers[number]
        if worker is None:
            return
        tasks = []
        for message in worker.take_back():
            if isinstance(message, Work):
                tasks.append(message.task)
            else:
                self._send(worker, message)
        if tasks:
            self._perform(self.state.handle(TakenBack(number, tuple(tasks))))

    def _take_back_all(self) -> None:
        for number, worker in enumerate(self.crew.workers):
            if worker is None:
                continue
            messages = worker.take_back()
            for message in messages:
                if isinstance(message, Stop):
                    self._send(worker, message)
            unread = tuple(message.task for message in messages if isinstance(message, Work))
            self._perform(self.state.take_back_to_backlog(TakenBack(number, unread)))

    # --- a late task a second time ---

    def _hedge_late(self) -> None:
        """One late task, if a worker is idle and the budget has room for another slot."""
        now_s, sample_ns = time.monotonic(), self.costs.sample_ns
        typical_s = None if sample_ns is None else sample_ns / 1e9
        late = []
        for number, worker in enumerate(self.crew.workers):
            if worker is None or number in self._killed_at or not (queue := self.state.workers[number].queue):
                continue
            look = self._watch.look(number, now_s)
            if look.entry.task == queue[0].number and look.entry.stage in (Stage.FETCH, Stage.COLLATE):
                rows, together = queue[0].rows, look.entry.row == ALL_ROWS or look.entry.stage is Stage.COLLATE
                in_sample_s = 0.0 if together else now_s - look.since_s
                if is_late(in_sample_s, now_s - look.entry.since_ns / 1e9, rows, typical_s):
                    late.append(number)
        task = self.state.late_task(late) if late else None
        if task is not None and self._has_room_for_hedge():
            batch, last_row = self.contents[task.batch].number, task.first_row + task.rows - 1
            text = f"rows {task.first_row}–{last_row} of batch {batch} are late and are loaded a second time"
            self._tell(Happening.HEDGE, text)
            self.costs.hedges += 1
            self._perform(self.state.hedge(task, self.ring.take()))

    def _has_room_for_hedge(self) -> bool:
        budget, slots = self.options.memory_budget_bytes, max(1, len(self.state.batches))
        return budget is None or self.ring.used_bytes() * (slots + 1) <= budget * slots

    def _gather(self, action: Gather) -> None:
        batch, slot = self.state.batches[action.batch], self.ring.take()
        if action.pieces:
            assert batch.layout is not None
            pieces = [(piece.slot, piece.first_row, piece.rows) for piece in action.pieces]
            gather_rows(self.ring.arena, self.layouts[batch.layout], batch.rows, pieces, slot)
        self._perform(self.state.gathered(action, slot))

    # --- waiting ---

    def wait_ready(self) -> int:
        """Until a worker has run worker_init_fn: the mask of generators that are the user's."""
        self._wait(lambda: self.user_seeded, "the first worker to be ready", None)
        assert self.user_seeded is not None
        return self.user_seeded

    def catch_up(self) -> None:
        """Handles what has arrived, without waiting."""
        self._check_usable()
        self._drain(0)

    def wait_resolved(self, pick: Callable[[], Batch | None], waiting_for: Callable[[], str], timeout_s: float | None) -> Batch:
        """Until `pick` finds a batch that is no longer loading."""
        found: Batch = self._wait(pick, waiting_for, timeout_s)
        return found

    def _wait(self, found: Callable[[], Any], waiting_for: Callable[[], str] | str, timeout_s: float | None) -> Any:
        self._check_usable()
        if (result := found()) is not None:
            return result
        self._drain(0)
        if (result := found()) is not None:
            return result
        began_s = time.monotonic()
        if self._turns is not None:
            self._turns.open()
        try:
            return self._wait_long(found, waiting_for, timeout_s, began_s)
        except BaseException:
            self.costs.stalls += 1  # whoever waited got nothing
            raise
        finally:
            self.costs.blocked_s += time.monotonic() - began_s
            if self._turns is not None:
                self._turns.close()
                self.costs.taking_turns = self._turns.usage.names()

    def _wait_long(self, found: Callable[[], Any], waiting_for: Callable[[], str] | str, timeout_s: float | None, began_s: float) -> Any:
        reports = 0
        while True:
            self._perform(self.state.recalls())
            self._drain(self._tick_s if timeout_s is None else min(self._tick_s, timeout_s))
            if (result := found()) is not None and (self._turns is None or self._turns.try_close(self._tick_s)):
                return result
            waited_s = time.monotonic() - began_s
            reason = waiting_for if isinstance(waiting_for, str) else waiting_for()
            first_s = self.options.stall_report_s
            if first_s is not None and waited_s >= stall_intervals_s(first_s, reports):
                reports += 1
                self._report_stall(reason, waited_s)
            if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
                self._looked_s = time.monotonic()
                self._check_deadlines()
                self.look_at_memory()
                if self.options.hedge:
                    self._hedge_late()
            if timeout_s is not None and waited_s >= timeout_s:
                raise LoaderTimeout(f"DataLoader timed out after {timeout_s:g} seconds\n{self.describe_wait(reason, waited_s)}")

    def _check_usable(self) -> None:
        if self.crew.owner_pid != os.getpid():
            raise LoaderClosed(
                f"this iterator belongs to process {self.crew.owner_pid}; make a new one with iter(loader) in process {os.getpid()}"
            )
        if self.closed:
            raise LoaderClosed("this iterator was closed; make a new one with iter(loader)")

    def _drain(self, wait_s: float) -> None:
        """Handles what has arrived, one message of each worker, waiting up to wait_s for the first of it."""
        gone: list[int] = []
        ready = self.crew.poll.poll(wait_s)
        if self.crew.bell is not None:
            gone += self._hear(self.crew.bell, bool(ready))
        for descriptor, _ in ready:
            number = self._by_descriptor.get(descriptor)
            worker = None if number is None else self.crew.workers[number]
            if number is None or worker is None or isinstance(worker, WorkerThread):
                continue
            message = worker.channel.try_receive()
            if message is not None:
                self._receive(number, message)
            if worker.outbox:
                self._flush(worker)
            if descriptor == worker.pidfd:
                self._receive_all(number, worker)
                gone.append(number)
        for number in gone:
            self._worker_gone(number)

    def _hear(self, bell: Bell, rings: bool) -> list[int]:
        """What threads have said; the numbers of those that have ended."""
        gone: list[int] = []
        for line, message in bell.heard(rings):
            if isinstance(message, Ended):
                gone.append(line.worker)
            else:
                self._receive(line.worker, message)
        return gone

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
            batch = self.state.batch_of(message.task)
            if batch is not None and not self.state.batches[batch].discarded:
                self.collated[batch] = message.batch
            self._ended(TaskEnded(number, message.task, Ending.PARCEL, rows=message.rows, parcel_bytes=0))
        elif isinstance(message, TaskFailed):
            self._ended(TaskEnded(number, message.task, Ending.FAILED, failure=pickle.loads(message.payload)))
        elif isinstance(message, Bounced):
            self._ended(TaskEnded(number, message.task, Ending.BOUNCED))
        elif isinstance(message, StreamEnded):
            self._ended(TaskEnded(number, message.task, Ending.STREAM_ENDED))
        elif isinstance(message, SampleFailed):
            self._perform(self.state.handle(RowFailed(message.task, message.row, pickle.loads(message.payload))))
        elif isinstance(message, ItemLeftOut):
            self._perform(self.state.handle(LeftOut(message.task, pickle.loads(message.payload))))
        elif isinstance(message, LayoutFound):
            self.layouts[message.key] = pickle.loads(message.payload)
        elif isinstance(message, StreamState):
            self._last_stream_state[message.stream] = (message.drawn, message.payload or None, bool(message.ended))
        elif isinstance(message, Ready):
            self.user_seeded = message.user_seeded
            worker = self.crew.workers[number]
            assert worker is not None
            worker.ready = True
            if number in self._coming:
                self._coming.discard(number)
                self._perform(self.state.handle(WorkerBack(number)))

    def _ended(self, event: TaskEnded) -> None:
        batch_number = self.state.batch_of(event.task)
        if batch_number is not None and self.state.batches[batch_number].stream is not None:
            self._stream_advanced(self.state.batches[batch_number], event)
        self._failed_starts = 0
        self._perform(self.state.handle(event))
        self._recycle_if_due(event.worker)

    def _stream_advanced(self, batch: Batch, event: TaskEnded) -> None:
        assert batch.stream is not None
        plainly = (event.rows, None, False)
        drawn, state, ended = self._last_stream_state.pop(batch.stream, plainly)
        if not batch.discarded and event.ending is not Ending.STREAM_ENDED:
            self.streams[batch.stream].advanced(batch.number, drawn, state, ended)

    def _count(self, rows: int, fetch_ns: int, collate_ns: int, write_ns: int, cpu_ns: int, queued_ns: int) -> None:
        self.costs.add(rows, fetch_ns, collate_ns, write_ns, cpu_ns, queued_ns)
        if rows:
            self._watch.slowest_sample_s = max(self._watch.slowest_sample_s, fetch_ns / rows / 1e9)

    # --- faults ---

    def _worker_gone(self, number: int) -> None:
        worker = self.crew.workers[number]
        assert worker is not None
        entry = self.crew.journal.row(number).read()
        end = worker.reap()
        self._forget_descriptors(worker)
        worker.let_go()
        self.ring.release_quarantine(worker.key)
        self.crew.workers[number] = None
        end = end if end.peak_bytes or not entry.peak_bytes else replace(end, peak_bytes=entry.peak_bytes)
        how = self._explain(number, worker, end)
        gone = self._blame.pop(number, None) or self._suspect(number, entry, end, how)
        self._tell(Happening.WORKER_ENDED, f"worker {number} ({worker.who}) {how}{self._was_at(entry)}")
        leaves = self.state.workers[number].retiring
        if number in self._coming and not (number in self._killed_at and self.crew.use_server):  # but one from the clean server may do
            self._forget_end(number)
            self._give_up_growth(number, f"it {how}")
            return
        if (not worker.ready or entry.stage is Stage.INITIALISING) and not leaves and not self._ended_from_outside(number, end):
            self._start_failed()
        self._replace(number, gone)

    def _ended_from_outside(self, number: int, end: Exit) -> bool:
        """Killed or stopped, but not by us: that says nothing about the next one; the restart budget bounds it."""
        return number in self._stopped_by_others or (end.code in _FROM_OUTSIDE and number not in self._killed_at)

    def _start_failed(self) -> None:
        """Workers that end before they load anything: another one would end the same way."""
        self._failed_starts += 1
        if self._failed_starts > STRIKES:
            text = telling.start_failed(self._failed_starts, self.story, self._forks)
            self.close()
            raise WorkerStartFailed(text)

    def _replace(self, number: int, gone: WorkerGone) -> None:
        """Another worker in the place of one that is no more, unless it was to go."""
        recycled = number in self._recycling
        self._forget_end(number)
        if self.state.workers[number].retiring:
            self._perform(self.state.handle(gone))
            return
        if not recycled:
            self.costs.restarts += 1
            if not self._budget.spend(time.monotonic()):
                self._give_up(number)
        self._tell_streams(number)
        self._perform(self.state.handle(gone))
        self._coming.discard(number)
        try:
            self._start_worker(number)
        except BaseException:
            self.close()
            raise
        self._perform(self.state.handle(WorkerBack(number)))

    def _forget_end(self, number: int) -> None:
        self._killed_at.pop(number, None)
        self._stopped_by_others.discard(number)
        self._recycling.discard(number)

    def _tell_streams(self, number: int) -> None:
        """What becomes of the streams of a worker that has ended."""
        for start in self.streams.values():
            if start.worker == number and start.past.batches:
                text = telling.stream_goes_on(start)
                self._tell(Happening.STREAM, text)
                if start.past.state is None and not start.replay:
                    self.costs.streams_continued += 1
                    print(f"antifreeze: {text}", file=sys.stderr, flush=True)

    def _forget_descriptors(self, worker: AnyWorker) -> None:
        if isinstance(worker, WorkerThread):
            return
        for descriptor in (worker.channel.fileno(), worker.pidfd):
            self.crew.poll.unregister(descriptor)
            self._by_descriptor.pop(descriptor, None)

    def _kill(self, number: int, worker: AnyWorker) -> None:
        self._killed_at.setdefault(number, time.monotonic())
        worker.kill()

    def _abandon(self, number: int, worker: AnyWorker) -> None:
        """SIGKILL did not end it (the kernel waits for a device): it is left behind, and what it may still write to is never used again."""
        text = telling.left_behind(worker)
        self._tell(Happening.WORKER_ENDED, text)
        print(f"antifreeze: {text}", file=sys.stderr, flush=True)
        self._forget_descriptors(worker)
        self.crew.workers[number] = None
        self.crew.abandoned.append(worker)
        worker.disown()
        queue = self.state.workers[number].queue
        for slot in {self.state.slot_of(task) for task in queue}:
            self.ring.abandon(slot)
            for moved in [batch for batch in self.state.batches.values() if batch.slot == slot]:
                held = sum(task.batch == moved.number for task in queue)
                moved.slot = self.ring.take()
                moved.must_reload |= moved.rows_loaded > 0 or len(moved.open_tasks) > held
        self._replace(number, self._blame.pop(number, WorkerGone(number)))

    def _recycle_if_due(self, number: int) -> None:
        """Between two tasks: a worker that has done its share, or grown too large, makes room for a fresh one."""
        worker = self.crew.workers[number]
        samples, size = self.options.recycle_after_samples, self.options.recycle_after_bytes
        if worker is None or number in self._recycling or (samples is None and size is None):
            return
        if not self.state.workers[number].stays:
            return
        due = samples is not None and self.crew.journal.row(number).read().samples >= samples
        if due or (size is not None and private_bytes(worker.pid) >= size):
            self._recycling.add(number)
            self._blame[number] = WorkerGone(number)
            self.state.workers[number].live = False
            self._take_back(number)
            worker.ask_to_end()

    def _suspect(self, number: int, entry: Entry, end: Exit, how: str) -> WorkerGone:
        """Who was at it when the worker ended by itself."""
        if entry.stage in (Stage.STARTING, Stage.INITIALISING, Stage.IDLE, Stage.ENDED, Stage.TURN, Stage.AWAIT):
            return WorkerGone(number)
        if entry.stage is Stage.SEND and end.code in _FROM_OUTSIDE:
            return WorkerGone(number)  # what it had loaded was loaded well
        # a kill from outside says little about the sample; a crash says more
        strikes = STRIKES + 1 if end.code in _FROM_OUTSIDE else STRIKES
        scene = self._scene(number, entry, strikes)
        return self._blamed(scene, telling.sample_lost(scene, how), strikes=strikes)

    def _path_of(self, entry: Entry) -> str | None:
        """The file of the sample that a worker is (was) at, where the data set tells."""
        if entry.stage not in (Stage.FETCH, Stage.COLLATE, Stage.WRITE) or entry.row == ALL_ROWS or self.streams:
            return None
        return path_of(self._specs[0].dataset, entry.index)

    def look_at_memory(self) -> bool:
        """From time to time; whether it was time."""
        if self._turns is not None or not self.costs.memory.due(time.monotonic()):
            return False  # threads have no memory of their own
        workers = [(number, worker) for number, worker in enumerate(self.crew.workers) if worker is not None]
        self.costs.memory.look((number, worker.pid, self.crew.journal.row(number).read().samples) for number, worker in workers)
        return True

    def _is_of_batch(self, number: int, entry: Entry) -> bool:
        """Whether the worker is (was) at all samples of its task together, so that none of them alone can be blamed."""
        if self.streams:
            return True
        task = next((task for task in self.state.workers[number].queue if task.number == entry.task), None)
        together = entry.row == ALL_ROWS or entry.stage in (Stage.COLLATE, Stage.WRITE, Stage.SEND)
        return together and (task is None or task.rows > 1)

    def _scene(self, number: int, entry: Entry, strikes: int) -> telling.Scene:
        batch = self.state.batch_of(entry.task)
        content = None if batch is None else self.contents.get(batch)
        stream = None if batch is None else self.state.batches[batch].stream
        batch_of = None
        if self._is_of_batch(number, entry):
            batch_of = "" if content is None or not content.indices else f"of samples {few(content.indices)}"
        item = None if stream is None else self._item(self.streams[stream], entry)
        again = stream is not None and self.state.is_lost_again(stream, item, strikes)
        return telling.Scene(number, self._named(entry), batch_of, self._path_of(entry), stream, item, again, self.options.forgives)

    def _item(self, start: StreamStart, entry: Entry) -> int | None:
        """Which one a stream cannot be led past; None where a new iterator goes on with whatever comes."""
        if start.past.state is None and not start.replay:
            return None
        return entry.index if entry.stage is Stage.FETCH and isinstance(entry.index, int) else start.past.samples

    def _blamed(self, scene: telling.Scene, failure: Failure, *, final: bool = False, strikes: int = STRIKES) -> WorkerGone:
        row = WHOLE_BATCH if scene.batch_of is not None else scene.entry.row
        return WorkerGone(scene.worker, scene.entry.task, row, failure, final, strikes, scene.item)

    def _was_at(self, entry: Entry) -> str:
        return telling.was_at(self._named(entry), self._path_of(entry))

    def _named(self, entry: Entry) -> Entry:
        """The item of a stream is named with it."""
        number = self.state.batch_of(entry.task)
        stream = None if number is None else self.state.batches[number].stream
        return entry if stream is None else replace(entry, index=f"{entry.index} of stream {stream}")

    def _check_deadlines(self) -> None:
        now_s = time.monotonic()
        for number, worker in enumerate(self.crew.workers):
            if worker is None:
                continue
            if number in self._killed_at and now_s - self._killed_at[number] > worker.patience_s and not worker.is_gone():
                self._abandon(number, worker)
                continue
            if isinstance(worker, WorkerThread) and worker.is_gone():
                self._drain(0)
                if self.crew.workers[number] is worker:
                    self._worker_gone(number)  # it ended before it could say so
                continue
            if number in self._killed_at:
                continue
            look = self._watch.look(number, now_s)
            queue = self.state.workers[number].queue
            if (queue or look.entry.stage is Stage.STARTING) and self._watch.stopped(worker, look, now_s):
                self._tell(Happening.DEADLINE, f"worker {number} ({worker.who}) was stopped by a signal and is replaced")
                self._blame[number] = self._stopped(number, worker, look, now_s)
                self._stopped_by_others.add(number)
                self._kill(number, worker)
                continue
            if self._forks and not worker.is_from_server and self._watch.stuck_in_inherited_lock(worker, look, now_s):
                self._leave_fork(number, worker)
                continue
            samples = (
                queue[0].rows
                if queue
                and look.entry.stage is not Stage.INITIALISING
                and (look.entry.row == ALL_ROWS or look.entry.stage in (Stage.COLLATE, Stage.WRITE))
                else 1
            )
            if self._watch.overdue(look, now_s, self.options.sample_timeout_s, samples):
                self._end_overdue(number, worker, look, now_s - look.since_s)

    def _stopped(self, number: int, worker: AnyWorker, look: Look, now_s: float) -> WorkerGone:
        """Most likely somebody stopped the worker; only a sample at which it happens again and again is at fault itself."""
        entry = look.entry
        if entry.stage not in (Stage.FETCH, Stage.COLLATE, Stage.WRITE):
            return WorkerGone(number)
        scene = self._scene(number, entry, STRIKES + 1)
        failure = telling.sample_overdue(scene, worker, now_s - look.since_s, self.options.sample_timeout_s)
        return self._blamed(scene, failure, strikes=STRIKES + 1)

    def _leave_fork(self, number: int, worker: AnyWorker) -> None:
        text = (
            f"worker {number} ({worker.who}) waits since its start for a lock that was held when it was forked; "
            f"it is replaced by one from a clean process\n{where_is(worker)}"
        )
        self._tell(Happening.DEADLINE, text)
        print(f"antifreeze: {text}", file=sys.stderr, flush=True)
        self.crew.use_server = True
        self._blame[number] = WorkerGone(number)
        self._kill(number, worker)

    def _end_overdue(self, number: int, worker: AnyWorker, look: Look, stuck_s: float) -> None:
        entry = look.entry
        if self._forks and not worker.is_from_server and self._watch.waits_for_lock_since_start(worker, look):
            self._leave_fork(number, worker)
            return
        self._blame[number] = WorkerGone(number)
        if entry.stage in (Stage.STARTING, Stage.INITIALISING):
            self._tell(Happening.DEADLINE, f"worker {number} ({worker.who}) did not start within {stuck_s:.1f} s\n{where_is(worker)}")
        else:
            scene = self._scene(number, entry, STRIKES)
            failure = telling.sample_overdue(scene, worker, stuck_s, self.options.sample_timeout_s)
            self._tell(Happening.DEADLINE, failure.message)
            self._blame[number] = self._blamed(scene, failure, final=True)
        self._kill(number, worker)

    def _give_up(self, number: int) -> None:
        self._tell(Happening.GAVE_UP, f"after {self._budget.allowed} restarts")
        text = telling.gave_up(number, self._budget, self.story)
        self.close()
        raise LoaderGaveUp(text)

    def _explain(self, number: int, worker: AnyWorker, end: Exit) -> str:
        text = end.describe() + telling.memory_at_end(end.peak_bytes, self.costs.memory.last_bytes(number, worker.pid))
        now = oom_kills()
        if end.code == -9 and now > self._oom_kills:
            text += " (the kernel's out-of-memory killer struck in the meantime)"
        self._oom_kills = now
        return text

    # --- telling ---

    def _trace(self, recorder: spans.Recorder, number: int, message: RowsDone | ParcelDone | Collated, stages: dict[str, int]) -> None:
        worker = self.crew.workers[number]
        assert worker is not None
        recorder.task(worker.pid, number, self.state.batch_of(message.task), message.began_ns, stages, message.rows, message.cpu_ns)

    def _tell(self, what: Happening, text: str) -> None:
        if spans.active is not None:
            spans.active.add(os.getpid(), spans.THE_LOOP, f"antifreeze: {what.value}", time.perf_counter_ns(), None, text=text)
        self.story.tell(time.monotonic() - self._began_s, what, text)

    def _report_stall(self, reason: str, waited_s: float) -> None:
        text = self.describe_wait(reason, waited_s)
        self.costs.stalls += 1
        self._tell(Happening.STALL, text)
        print(f"antifreeze: {text}", file=sys.stderr, flush=True)

    def describe_wait(self, reason: str, waited_s: float) -> str:
        """What everybody is doing, for a stall report or a timeout."""
        now_s = time.monotonic()
        seen = [
            (worker, self._named(look.entry), now_s - look.since_s, self._path_of(look.entry))
            for number, worker in enumerate(self.crew.workers)
            if worker is not None
            for look in [self._watch.look(number, now_s)]
        ]
        return telling.waiting(reason, waited_s, seen, self.options.sample_timeout_s)


def _encode_indices(indices: Any) -> tuple[bytes, int]:
    if isinstance(indices, array.array):
        return indices.tobytes(), 0
    if isinstance(indices, list) and set(map(type, indices)) <= {int}:
        try:
            return array.array("q", indices).tobytes(), 0
        except OverflowError:
            pass
    try:
        return pickle.dumps(indices, protocol=5), 1
    except Exception as error:
        raise LoadingError(f"the sampler gave an index that cannot be sent to a worker: {error}") from error
