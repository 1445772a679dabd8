"""A worker process from its first instruction to its last.

    Welcome ──▶ seed as torch does ──▶ worker_init_fn ──▶ Ready ──▶ [ Work ──▶ RowsDone | ParcelDone | … ]* ──▶ Stop

1. It ends when told to, or when its parent is gone, whatever it is blocked on; how it settles in for that, settling.py says.
2. It reads one packet at a time, so what it has not begun can be taken back by the parent.
"""

from __future__ import annotations

import array
import faulthandler
import gc
import os
import pickle
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from antifreeze.channel.channel import Channel
from antifreeze.channel.messages import (
    WITH_OFFSETS,
    Bounced,
    Hoards,
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
    Welcome,
    Work,
)
from antifreeze.linux import LAST_SIGNAL
from antifreeze.slots.arena import Arena
from antifreeze.torch_private import loads, numpy_seed, seed_datapipe, seed_torch, swap_worker_info, worker_info
from antifreeze.worker.as_found import AsFound
from antifreeze.worker.awaiting import AsyncMapFetcher, map_fetcher_for
from antifreeze.worker.effort import Effort, Usage
from antifreeze.worker.failure import Failure, begin_process
from antifreeze.worker.fetch import MapFetcher
from antifreeze.worker.generators import global_generators
from antifreeze.worker.hoard import Hoard
from antifreeze.worker.journal import Journal, JournalRow, Stage, Word
from antifreeze.worker.making import SampleMaker
from antifreeze.worker.seeding import SampleSeeds, Seeds
from antifreeze.worker.serving import Serving
from antifreeze.worker.settling import die_with_parent, settle_in
from antifreeze.worker.slot_writer import Limit, SlotWriter
from antifreeze.worker.stream import StreamExhausted, StreamFetcher
from antifreeze.worker.task import Bounce, FetchConfig, FetchError, Packed, Rows, Task

STACK_SIGNAL = LAST_SIGNAL - 7
"""On it a worker's faulthandler writes the stacks of all threads."""


@dataclass(frozen=True)
class WorkerSpec:
    """All a worker needs to know; under spawn it is pickled, under fork it is simply there."""

    worker_id: int
    num_workers: int
    dataset: Any
    iterable: bool
    collate_fn: Callable[[Any], Any]
    auto_collation: bool
    drop_last: bool
    worker_init_fn: Callable[[int], None] | None
    base_seed: int
    epoch: int
    shared_seed: int | None
    hosting: bool  # its streams are of a run with another number of workers, and worker_init_fn is called for each of them
    forgive: bool
    fill: bool
    concurrency: int
    sample_timeout_s: float | None
    limit: Limit
    as_found: AsFound = field(default_factory=AsFound)

    def of(self, worker_id: int) -> WorkerSpec:
        """The same for another worker."""
        return replace(self, worker_id=worker_id)

    def fetching(self) -> FetchConfig:
        given = (self.collate_fn, self.auto_collation, self.drop_last, self.forgive, self.worker_id)
        return FetchConfig(*given, self.concurrency, self.sample_timeout_s, self.fill)

    def picklable_parts(self) -> dict[str, Any]:
        """What must pickle where workers are not forked, by the names the user knows."""
        return {"dataset": self.dataset, "collate_fn": self.collate_fn, "worker_init_fn": self.worker_init_fn}


def run_worker(spec: WorkerSpec | bytes, end: Any) -> None:
    """The body of the worker process; `end` is its socket, `spec` may come pickled."""
    collects = gc.isenabled()
    gc.disable()  # a collection would touch, and so copy, every page that was inherited
    begin_process()
    if isinstance(spec, bytes):
        spec = loads(spec)
        assert isinstance(spec, WorkerSpec)
    spec.as_found.put_back()
    channel = Channel(end)
    settle_in()
    welcome = channel.receive()
    if not isinstance(welcome, Welcome):
        return  # the parent gave up before it began
    arena_fd, journal_fd, lifeline, stacks = channel.descriptors
    die_with_parent(lifeline)
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
    journal = Journal(journal_fd)
    row = journal.row(welcome.journal_row)
    row.words[Word.PID] = os.getpid()
    row.stage(Stage.STARTING)
    ProcessWorker(replace(spec, num_workers=welcome.workers), channel, Arena(arena_fd), row, collects).run()
    row.stage(Stage.ENDED)


class Line(Protocol):
    """A worker's end of the line to its parent."""

    def receive(self) -> Message | None:
        """Waits; None when the parent is gone."""

    def send(self, message: Message) -> None: ...

    def check(self) -> None:
        """Raises OSError where the line is no more."""

    def try_receive(self) -> Message | None: ...

    def listen(self, loop: Any, heard: Callable[[], None]) -> None:
        """`heard` is called in the event loop when there may be something to receive, or nobody is there any more."""

    def unlisten(self, loop: Any) -> None: ...


class Worker:
    """What a worker does, in a process of its own (ProcessWorker) or in a thread (thread.py)."""

    _fetcher: MapFetcher | StreamFetcher | None = None
    _init_failure: Failure | None = None
    """Nothing can be loaded here, ever."""

    def __init__(self, spec: WorkerSpec, line: Line, journal: JournalRow, seeds: Seeds, writer: SlotWriter, maker: SampleMaker) -> None:
        self._spec = spec
        self._channel = line
        self._journal = journal
        self._dataset = spec.dataset
        self._seeds = seeds
        self._writer = writer
        self._maker = maker
        self._known_layouts: set[int] = set()
        self._unopened: dict[int, Failure | None] = {}  # streams that could not be begun; None where that was told

    def run(self) -> None:
        self._initialise()
        self._effort = self._new_effort()
        message: Message | None = None
        while True:
            if message is None:
                self._journal.stage(Stage.IDLE)
                message = self._channel.receive()
            if message is None or isinstance(message, Stop):
                self._note_last()
                self._fetcher = None  # iterators of streams end with it, and a `finally` of theirs runs, as with torch
                return
            message = self._handle(message)

    def _initialise(self) -> None:
        """Until Ready is sent."""
        raise NotImplementedError

    def _say_ready(self, user_seeded: int) -> None:
        self._channel.send(Ready(user_seeded, b"" if self._init_failure is None else pickle.dumps(self._init_failure)))

    def _new_effort(self) -> Effort:
        raise NotImplementedError

    def _note_last(self) -> None:
        """What was used since the last look, where that is this worker's own."""

    def _seed_as_torch(self, worker_id: int) -> None:
        seed = self._spec.base_seed + worker_id
        random.seed(seed)
        seed_torch(seed)
        np.random.seed(numpy_seed(self._spec.base_seed, worker_id))

    def _begin(self) -> None:
        """worker_init_fn, and all it needs."""
        spec = self._spec
        self._journal.stage(Stage.INITIALISING)
        try:
            self._dataset = self._own_dataset()
            swap_worker_info(worker_info(spec.worker_id, spec.num_workers, spec.base_seed, self._dataset))
            if spec.worker_init_fn is not None and not spec.hosting:
                spec.worker_init_fn(spec.worker_id)
            self._fetcher = self._new_fetcher()
        except Exception as error:
            self._init_failure = Failure.of(error, stage="worker_init_fn", worker=spec.worker_id)

    def _own_dataset(self) -> Any:
        return seed_datapipe(self._spec.dataset, self._spec.shared_seed)

    def _new_fetcher(self) -> MapFetcher | StreamFetcher:
        if isinstance(self._fetcher, AsyncMapFetcher):
            return self._fetcher  # its loop lives as long as the worker, and so do the clients that belong to it
        kind = StreamFetcher if self._spec.iterable else map_fetcher_for(self._dataset)
        return kind(self._dataset, self._maker.config, self._maker, self._seeds, self._journal)

    def _handle(self, message: Message) -> Message | None:
        """Returns what was read meanwhile and is to be done next."""
        if isinstance(message, Work):
            return self._work(message)
        if isinstance(message, OpenStream):
            self._open_stream(message)
        elif isinstance(message, NewEpoch):
            base_seed, shared_seed = loads(message.payload)
            self._seeds.begin_epoch(base_seed, message.epoch)
            self._dataset = seed_datapipe(self._dataset, shared_seed)
            if self._init_failure is None:
                self._fetcher = self._new_fetcher()
        return None

    def _open_stream(self, message: OpenStream) -> None:
        self._unopened.pop(message.stream, None)
        if not isinstance(self._fetcher, StreamFetcher):
            assert self._init_failure is not None
            self._unopened[message.stream] = self._init_failure
            return
        self._journal.stage(Stage.INITIALISING)
        stage = "worker_init_fn"
        try:
            dataset = self._fetcher.dataset_for_next(alone=message.streams <= self._spec.num_workers)
            info = self._info_of_stream(message, dataset)
            stage = "__iter__ of the iterable data set"
            given = (loads(message.payload), message.batch_rows, bool(message.replay), message.stop_at)
            self._fetcher.open(message.stream, dataset, info, *given)
        except Exception as error:
            self._unopened[message.stream] = Failure.of(error, stage=stage, worker=self._spec.worker_id)

    def _info_of_stream(self, message: OpenStream, dataset: Any) -> Any:
        """Of one that this worker hosts: as if it were in a worker of its own, worker_init_fn included."""
        if message.streams == 0:
            return None
        worker_init_fn = self._spec.worker_init_fn if self._spec.hosting else None
        info = worker_info(message.stream, message.streams, self._spec.base_seed, dataset)
        if worker_init_fn is not None:
            before = swap_worker_info(info)
            try:
                self._initialise_stream(message.stream, worker_init_fn)
            finally:
                swap_worker_info(before)
        return info

    def _initialise_stream(self, number: int, worker_init_fn: Callable[[int], None]) -> None:
        self._seed_as_torch(number)
        worker_init_fn(number)

    def _work(self, work: Work) -> Message | None:
        task = self._begin_task(work)
        if self._init_failure is not None or work.stream in self._unopened:
            self._refuse(work)
            return None
        if isinstance(self._fetcher, AsyncMapFetcher) and self._fetcher.is_together(task):
            return Serving(self._fetcher, self._channel, self._begin_task, self._answer).serve(work, task)
        self._answer(work, partial(self._load, work, task))
        return None

    def _refuse(self, work: Work) -> None:
        """A stream that could not be begun is told once, and has ended; whoever loads by index fails each time."""
        failure = self._unopened.get(work.stream, self._init_failure)
        if failure is None:
            self._channel.send(StreamEnded(work.task, work.stream))
            return
        if work.stream in self._unopened:
            self._unopened[work.stream] = None
            lost = f"stream {work.stream} could not be begun, so nothing of it comes"
            failure = replace(failure, explanation="\n".join(filter(None, (failure.explanation, lost))), ends_stream=True)
        self._channel.send(TaskFailed(work.task, pickle.dumps(failure)))

    def _begin_task(self, work: Work) -> Task:
        task = task_of(work)
        self._seeds.use_key(work.key)
        self._writer.at_age(work.slot, work.slot_age)
        self._journal.begin(work.task, work.batch, time.monotonic_ns(), work.first_row, b"" if work.pickled else work.payload)
        return task

    def _answer(self, work: Work, load: Callable[[], Any]) -> None:
        try:
            done = False
            try:
                outcome = load()
                done = True
            finally:
                self._report_stream(work, done)
        except StreamExhausted:
            self._channel.send(StreamEnded(work.task, work.stream))
            return
        except FetchError as error:
            self._channel.send(TaskFailed(work.task, pickle.dumps(error.failure)))
            return
        except Exception as error:
            failure = Failure.of(error, stage="loading", worker=self._spec.worker_id)
            self._channel.send(TaskFailed(work.task, pickle.dumps(failure)))
            return
        self._journal.stage(Stage.SEND)
        self._report(work, outcome)

    def _load(self, work: Work, task: Task) -> Any:
        if isinstance(self._fetcher, StreamFetcher):
            return self._fetcher.load(work.stream, task)
        assert self._fetcher is not None
        return self._fetcher.load(task, self._channel.check)

    def _report_stream(self, work: Work, done: bool) -> None:
        """What was drawn for a batch, before its own message: that one makes it count. Nothing where that one says it all."""
        if not isinstance(self._fetcher, StreamFetcher):
            return
        for failure in self._fetcher.take_left_out():
            self._channel.send(ItemLeftOut(work.task, pickle.dumps(failure)))
        stream = self._fetcher.streams[work.stream]
        state = stream.state()
        if state is not None or stream.ended or not done or stream.drawn != work.batch_rows:
            self._channel.send(StreamState(work.stream, stream.drawn, int(stream.ended), state or b""))

    def _report(self, work: Work, outcome: Rows | Packed | Bounce) -> None:
        send, effort, began_ns = self._channel.send, self._effort, self._journal.words[Word.SINCE_NS]
        if isinstance(outcome, Packed):
            stages = (outcome.fetch_ns, outcome.collate_ns, outcome.write_ns)
            send(ParcelDone(work.task, outcome.rows, outcome.size_bytes, began_ns, *stages, effort.cpu_ns(), effort.queued_ns()))
            return
        for row, failure in outcome.failures.items():
            send(SampleFailed(work.task, row, pickle.dumps(failure)))
        if isinstance(outcome, Bounce):
            send(Bounced(work.task))
            return
        if outcome.layout.key not in self._known_layouts:
            self._announce(work, outcome)
        took = (outcome.fetch_ns, outcome.write_ns)
        send(RowsDone(work.task, outcome.layout.key, outcome.rows, began_ns, *took, effort.cpu_ns(), effort.queued_ns()))

    def _announce(self, work: Work, outcome: Rows) -> None:
        self._channel.send(LayoutFound(outcome.layout.key, pickle.dumps(outcome.layout)))
        self._known_layouts.add(outcome.layout.key)


class ProcessWorker(Worker):
    """Everything in the process is its own."""

    def __init__(self, spec: WorkerSpec, channel: Channel, arena: Arena, journal: JournalRow, collects: bool) -> None:
        self._collects = collects
        self._generators = global_generators()
        self._sample_seeds = SampleSeeds(spec.base_seed, spec.epoch, self._generators)
        writer = SlotWriter(arena, spec.limit)
        super().__init__(spec, channel, journal, self._sample_seeds, writer, SampleMaker(spec.fetching(), writer, journal))

    def _initialise(self) -> None:
        self._seed_as_torch(self._spec.worker_id)
        marks = [generator.mark() for generator in self._generators]
        self._begin()
        moved = self._leave_to_user(marks)
        gc.freeze()  # what was inherited is not walked again, so its pages stay shared
        if self._collects:
            gc.enable()
        self._say_ready(sum(1 << self._generators.index(generator) for generator in moved))

    def _new_effort(self) -> Effort:
        self._hoard = Hoard(self._dataset)
        return Effort(self._note)

    def _note(self, usage: Usage) -> None:
        self._journal.note(usage)
        hoards = self._hoard.look(usage.peak_kib)
        if hoards is not None:
            self._channel.send(Hoards(hoards.encode(errors="replace")))

    def _note_last(self) -> None:
        self._journal.note(self._effort.used())

    def _leave_to_user(self, marks: list[Any]) -> list[Any]:
        """The generators that worker_init_fn has seeded."""
        moved = [generator for generator, mark in zip(self._generators, marks, strict=True) if generator.moved_since(mark)]
        if self._spec.worker_init_fn is None:
            return []
        self._sample_seeds.leave_to_user(moved)
        return moved

    def _initialise_stream(self, number: int, worker_init_fn: Callable[[int], None]) -> None:
        self._seed_as_torch(number)
        marks = [generator.mark() for generator in self._generators]
        worker_init_fn(number)
        self._leave_to_user(marks)


def task_of(work: Work) -> Task:
    indices: Any
    offsets: list[int] | None = None
    if work.pickled == WITH_OFFSETS:
        indices, offsets = loads(work.payload)
    elif work.pickled:
        indices = loads(work.payload)
    else:
        numbers = array.array("q")
        numbers.frombytes(work.payload)
        indices = numbers.tolist()
    return Task(
        work.task,
        work.batch,
        work.slot,
        work.batch_rows,
        work.first_row,
        work.position,
        indices,
        bool(work.whole),
        offsets,
        bool(work.singly),
        work.key,
    )
