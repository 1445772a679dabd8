"""The iterator behind `for batch in loader`: draws the plan, keeps batches in flight, delivers them in order.

    plan ──draw──▶ planned ahead (indices only) ──submit──▶ in flight (slots) ──▶ repaired if rows are bad ──▶ the user

1. The sampler is advanced exactly as far as torch advances it: prefetch_factor × num_workers batches at the start, then one for
   each batch delivered. (With on_bad_sample other than "raise": LOOK_AHEAD batches, so that what moves up does not depend on workers.)
2. Fewer batches than that are in flight: a few, however many workers there are.
3. A batch is delivered once, or its error is raised once; then the next one follows.
4. `state_dict` speaks of what was delivered, not of what is in flight.
"""

from __future__ import annotations

import copy
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from antifreeze import spans
from antifreeze.delivery.bad_samples import BadSampleDesk, exception_of, failure_of, replacement
from antifreeze.delivery.batches import build
from antifreeze.delivery.device import AHEAD, DeviceFeed, Sent
from antifreeze.delivery.ledger import Ledger, LoopClock
from antifreeze.delivery.local_pool import LocalPool
from antifreeze.delivery.pinning import PageLock, page_lock
from antifreeze.delivery.position import Cursor, MapDelivered, fingerprint, length_of
from antifreeze.delivery.ranks import Ranks
from antifreeze.delivery.stages import Stage
from antifreeze.delivery.story_file import write_story
from antifreeze.delivery.traps import Traps
from antifreeze.errors import LoaderClosed
from antifreeze.options import OnBadSample, Options, StreamChoice
from antifreeze.plan.map_plan import MapPlan, PlannedBatch, Quarantine
from antifreeze.plan.randomness import own_generators
from antifreeze.plan.stream_plan import StreamPlan, StreamPosition, StreamProgress
from antifreeze.slots.ring import Ring
from antifreeze.supervisor.crew import Crew
from antifreeze.supervisor.observe import available_memory_bytes
from antifreeze.supervisor.policy import batches_in_flight, tasks_per_batch, within_budget
from antifreeze.supervisor.pool import Pool
from antifreeze.supervisor.sample_path import path_of
from antifreeze.supervisor.state import Batch, Phase
from antifreeze.supervisor.work import Content, StreamStart
from antifreeze.torch_private import (
    BaseIterator,
    apply_sharding,
    default_collate,
    is_datapipe,
    is_iterable_kind,
    is_profiling,
    pin_batch,
    sharded_init_fn,
)
from antifreeze.worker.fetch import FetchConfig, FetchError, fetches_many
from antifreeze.worker.main import WorkerSpec
from antifreeze.worker.seeding import sample_seed

LOOK_AHEAD = 64
_REPLACEMENTS = 8
_LOOK_AT_MEMORY_EVERY = 8
_KEPT_TO_REPEAT = 16


@dataclass
class InFlight:
    """A batch given to the pool under `ticket`."""

    ticket: int
    planned: PlannedBatch | None
    stream: int | None
    attempts: dict[int, int] = field(default_factory=dict)
    moved_up: int = 0  # samples at its end that went to earlier batches


@dataclass(frozen=True)
class _Raised:
    """In the place of a batch that was drawn ahead: its error, raised when its turn comes."""

    error: Exception


class LoaderIterator(BaseIterator):  # type: ignore[misc]
    """One pass (with persistent workers: pass after pass) over a loader."""

    def __init__(self, loader: Any) -> None:
        self._loader_ref = weakref.ref(loader)
        self._options: Options = loader.options
        resume, seeded = loader._take_resume_state()
        source = _SeedSource(loader.generator)
        super().__init__(loader)
        if not self._num_workers and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if seeded:
            source.put_back()  # the interrupted run drew these seeds; they are in the state
            self._base_seed, self._shared_seed = seeded["base_seed"], seeded["shared_seed"]
        self._generators = own_generators(loader.generator, loader._index_sampler)
        self._in_order = loader.in_order
        self._prefetch_asked = loader._prefetch_asked
        self._prefetch_factor = loader.prefetch_factor or 2
        self._map = not is_iterable_kind(loader)
        self._batch_rows = loader.batch_size if loader._auto_collation else 1
        self.cursor = Cursor(fingerprint(loader))
        if seeded:
            self.cursor.epoch = seeded["epoch"] + (resume is None)
        self._tickets = 0
        self._closed = False
        self._watched = False  # by a profiler or a trace, during one next()
        self._ledger: Ledger = loader._ledger
        self._traps: Traps = loader._traps
        self._ranks: Ranks | None = loader._watch_ranks(self._rank, self._world_size) if self._map else None
        self._clock = LoopClock(self._ledger.timing, self._ledger.costs, alone=not self._num_workers)
        self._desk = BadSampleDesk(self._options, self._ledger.bad_samples, self._dataset)
        self._limit = _limit(self._options)
        self._splits = self._map and self._collate_fn is default_collate and self._auto_collation and not fetches_many(self._dataset)
        self._fetches_many = self._map and fetches_many(self._dataset)
        self._look_ahead = LOOK_AHEAD if self._options.forgives and self._map else max(1, self._prefetch_factor * self._num_workers)
        self._loads_at_once = self._map and not self._num_workers and not self._options.forgives and self._ranks is None
        self._static = False
        self._whole_only = loader._rows_failed
        self._feed = None if self._options.device is None else DeviceFeed(torch.device(self._options.device))
        self._ahead: deque[Sent] = deque()
        self._ring = self._borrow_ring(loader)
        if self._num_workers:
            self._worker_init_fn = loader.worker_init_fn
            if is_datapipe(self._dataset):
                self._worker_init_fn = sharded_init_fn(self._worker_init_fn, self._world_size, self._rank)
            self._context, self._use_server = loader._start_context()
        self.pool: Pool | LocalPool = self._make_pool()
        self._finalizer = self._finalizing(loader)
        if self._num_workers:
            super()._reset(loader, first_iter=True)  # torch's iterator with workers asks the sampler, and draws, a second time
        self._begin(resume)

    def __repr__(self) -> str:
        delivered = f"{self._num_yielded} batches delivered, {len(self._in_flight)} in flight"
        return f"<LoaderIterator epoch {self.cursor.epoch}: {delivered}, {self.pool!r}>"

    def close(self) -> None:
        """Ends the workers; may be called twice."""
        self._closed = True
        self._ahead.clear()
        if self._feed is not None:
            self._feed.close()
        self._release()

    def _release(self) -> None:
        self._finalizer()
        self.pool.contents.clear()
        self.pool.state.forget_all()
        self._in_flight.clear()

    def _forks(self) -> bool:
        return bool(self._context.get_start_method() == "fork")

    def _finalizing(self, loader: Any) -> Any:
        crew = self.pool.crew if isinstance(self.pool, Pool) else None
        return weakref.finalize(self, _close, crew, weakref.ref(loader), self._ring)

    # --- beginning ---

    def _borrow_ring(self, loader: Any) -> Ring:
        ring: Ring = loader._borrow_ring()
        if ring.keeper is None and (self._pin_memory or (self._feed is not None and self._feed.pins)):
            ring.keeper = page_lock()
        return ring

    def _make_pool(self) -> Pool | LocalPool:
        if self._num_workers:
            return Pool(self._context, self._specs(), self._ring, self._options, self._ledger.costs, self._ledger.story, self._use_server)
        if is_datapipe(self._dataset):
            apply_sharding(self._dataset, self._world_size, self._rank)
        config = FetchConfig(self._collate_fn, self._auto_collation, self._drop_last, self._options.forgives, worker=None)
        return LocalPool(
            self._dataset, not self._map, config, (self._base_seed, self.cursor.epoch), self._ring, self._limit, self._ledger.costs
        )

    def _specs(self) -> list[WorkerSpec]:
        return [
            WorkerSpec(
                worker_id=number,
                num_workers=self._num_workers,
                dataset=self._dataset,
                iterable=not self._map,
                collate_fn=self._collate_fn,
                auto_collation=self._auto_collation,
                drop_last=self._drop_last,
                worker_init_fn=self._worker_init_fn,
                base_seed=self._base_seed,
                epoch=self.cursor.epoch,
                shared_seed=self._shared_seed,
                forgive=self._options.forgives,
                limit_bytes=self._limit[0],
                limit_name=self._limit[1],
            )
            for number in range(self._num_workers)
        ]

    def _begin(self, resume: dict[str, Any] | None) -> None:
        """The plan of an epoch, and the first batches on their way."""
        self._planned: deque[PlannedBatch | BaseException] = deque()
        self._in_flight: dict[int, InFlight] = {}
        self._finished = False
        self.cursor.finished = False
        self.cursor.shown = None
        self._ahead.clear()
        self.cursor.base_seed, self.cursor.shared_seed = self._base_seed, self._shared_seed
        self.cursor.sampler_epoch = getattr(getattr(self._index_sampler, "sampler", self._index_sampler), "epoch", None)
        self._clock.new_epoch()
        pool = self.pool
        if isinstance(pool, Pool) and not pool.started:
            self._traps.before_start(self._dataset, self._num_workers, forks=not self._use_server and self._forks())
            pool.start(whole_batch_calls=not self._map or fetches_many(self._dataset))
            if self._worker_init_fn is not None and self._map:
                self._static = bool(pool.wait_ready())
        if self._map:
            if not resume:
                self._traps.advance_epoch(getattr(self._index_sampler, "sampler", self._index_sampler))
            self._begin_map(resume)
        else:
            self._begin_streams(resume)
        if self._num_workers:
            self._plan_ahead()
            self._submit()
        self._clock.made()

    def _begin_map(self, resume: dict[str, Any] | None) -> None:
        self._plan = MapPlan(self._index_sampler, self._auto_collation, self._generators, self._quarantine())
        self.cursor.plan = self._plan
        self.cursor.delivered = MapDelivered()
        self._moved_up_before = 0
        if resume:
            self.cursor.delivered = MapDelivered.from_dict(resume["delivered"])
            self._plan.resume(self.cursor.delivered.position, resume["randomness"], resume["beginning"], self.cursor.delivered.spares)
            self._moved_up_before = self.cursor.delivered.moved_up
        elif not self._num_workers:
            self._plan.adopt(self._sampler_iter)
        if self._ranks is not None:
            batches, done = length_of(self._index_sampler), self.cursor.delivered
            self._ranks.begin(None if batches is None else batches - done.position.batches - len(done.beyond))
            self._to_repeat: list[Any] = []

    def _quarantine(self) -> Quarantine | None:
        if not self._options.quarantined:
            return None
        # under DDP a listed sample is replaced, so that every rank keeps its number of batches
        samples = length_of(self._dataset) if self._world_size > 1 else None
        return Quarantine(self._options.quarantined, samples)

    def _begin_streams(self, resume: dict[str, Any] | None) -> None:
        if resume:
            position = StreamPosition.from_dict(resume["streams"])
        else:
            position = StreamPosition(tuple(StreamProgress() for _ in range(max(1, self._num_workers))), had_workers=self._num_workers > 0)
        self.cursor.streams = position
        self._stream_plan = StreamPlan(position, self._batch_rows)
        starts = [
            StreamStart(
                stream=number,
                streams=len(position.streams) if position.had_workers else 0,
                skip_samples=progress.samples,
                batch_rows=self._batch_rows,
                state=progress.state,
                replay=self._options.lost_stream is StreamChoice.REPLAY,
                worker=number % max(1, self._num_workers),
            )
            for number, progress in enumerate(position.streams)
            if not progress.ended
        ]
        self.pool.open_streams(starts)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """The next pass with the same workers."""
        resume, seeded = loader._take_resume_state()
        source = _SeedSource(loader.generator)
        super()._reset(loader, first_iter)
        if seeded:
            source.put_back()
            self._base_seed, self._shared_seed = seeded["base_seed"], seeded["shared_seed"]
        self.cursor.epoch = (seeded["epoch"] if seeded else self.cursor.epoch) + (resume is None)
        pool = self.pool
        if pool.closed or not isinstance(pool, Pool):
            self._finalizer.detach()
            self._ring = self._borrow_ring(loader)
            self.pool = self._make_pool()
            self._finalizer = self._finalizing(loader)
        else:
            pool.begin_epoch(self._specs())
        self._begin(resume)

    # --- giving out ---

    def _plan_ahead(self) -> None:
        while self._map and not self._finished and len(self._planned) + len(self._in_flight) < self._look_ahead:
            self._draw_one()

    def _draw_one(self) -> None:
        try:
            planned = self._plan.draw()
        except BaseException as error:
            if not isinstance(error, Exception):
                raise
            self._planned.append(error)  # the user's sampler failed: raised when its turn comes, after what it gave before
            self._finished = True
            return
        if planned is None:
            self._finished = True
            for _ in range(self._moved_up_before):
                self._take_last(None)
            self._moved_up_before = 0
        elif planned.number not in self.cursor.delivered.beyond:
            self._planned.append(planned)
            if self._ranks is not None and len(self._to_repeat) < _KEPT_TO_REPEAT:
                self._to_repeat.append(copy.copy(planned.indices))
        else:
            self.cursor.delivered = self.cursor.delivered.add(planned)  # delivered early, before the resume

    def _submit(self) -> None:
        tasks = self._tasks_for(self._batch_rows or 1)
        room = self._room(tasks)
        if not self._map:
            self._submit_streams(room)
            return
        while self._planned and len(self._in_flight) < room:
            planned = self._planned[0]
            if isinstance(planned, BaseException):
                return
            self._planned.popleft()
            ticket = self._next_ticket()
            self._in_flight[ticket] = InFlight(ticket, planned, None)
            indices = planned.indices
            if isinstance(indices, array):
                indices = indices[:]
            elif self._auto_collation and not self._fetches_many and isinstance(indices, (list, tuple)):
                indices = list(indices)  # but __getitems__ gets what the batch sampler gave, be it a list or a tuple
            worker = planned.number % self._num_workers if self._static else None
            rows = planned.rows
            if rows != self._batch_rows:
                tasks = self._tasks_for(rows)
            divisible = self._auto_collation and isinstance(indices, (list, array))
            content = Content(indices, planned.position, divisible, rows=divisible and self._may_split)
            self.pool.submit(ticket, content, rows, tasks, worker)

    def _submit_streams(self, room: int) -> None:
        while len(self._in_flight) < max(room, self._prefetch_factor * self._num_workers):
            drawn = self._stream_plan.draw()
            if drawn is None:
                return
            _, stream = drawn
            ticket = self._next_ticket()
            self._in_flight[ticket] = InFlight(ticket, None, stream)
            worker = stream % max(1, self._num_workers)
            self.pool.submit(ticket, Content(b"", 0, divisible=False), self._batch_rows, 1, worker, stream=stream)

    def _tasks_for(self, rows: int) -> int:
        return tasks_per_batch(rows, self._num_workers, self.pool.costs.sample_ns, self._may_split)

    @property
    def _may_split(self) -> bool:
        return self._splits and not self._static and not self._whole_only

    def _room(self, tasks: int) -> int:
        """How many batches may be in flight now, each given out in so many tasks."""
        if not self._num_workers:
            return 1
        asked = self._prefetch_factor * self._num_workers if self._prefetch_asked else None
        wanted = batches_in_flight(self._num_workers, tasks, asked)
        timing = self._ledger.timing
        if self._options.memory_budget_bytes is not None and not timing.batches:
            return 1  # how large a batch is, the first one tells
        batch_bytes = timing.delivered_bytes // timing.batches if timing.batches else None
        return min(within_budget(wanted, batch_bytes, self._options.memory_budget_bytes), self._look_ahead)

    def _next_ticket(self) -> int:
        self._tickets += 1
        return self._tickets - 1

    # --- delivering ---

    def __next__(self) -> Any:
        return self._next_on_host() if self._feed is None else self._next_on_device(self._feed)

    def _next_on_device(self, feed: DeviceFeed) -> Any:
        """The copy of the batch after this one is under way before this one is handed out, where that one is loaded."""
        sent = self._ahead.popleft() if self._ahead else self._send(feed)
        while len(self._ahead) < AHEAD and self._next_is_ready():
            self._ahead.append(self._send(feed))
        self.cursor.shown = sent.position
        if isinstance(sent.batch, _Raised):
            raise sent.batch.error
        return feed.hand_out(sent)

    def _send(self, feed: DeviceFeed) -> Sent:
        try:
            batch = self._next_on_host()
        except Exception as error:
            if isinstance(error, StopIteration):
                raise
            return Sent(_Raised(error), None, (self.cursor.delivered, self.cursor.streams))
        return feed.send(batch, (self.cursor.delivered, self.cursor.streams))

    def _next_is_ready(self) -> bool:
        if not isinstance(self.pool, Pool) or not self._in_flight or self.pool.closed:
            return False
        self.pool.catch_up()
        batch = self._pick()
        return batch is not None and batch.phase in (Phase.READY, Phase.FAILED)

    def _next_on_host(self) -> Any:
        if spans.active is None and not is_profiling():
            if not self._map:
                return super().__next__()
            data = self._next_data()
            self._num_yielded += 1
            return data
        self._watched = True
        try:
            with Stage("next batch"):
                return super().__next__()
        finally:
            self._watched = False

    @staticmethod
    def _in_stage(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, shown as a stage."""

        def staged(*args: Any) -> Any:
            with Stage(name):
                return call(*args)

        return staged

    def _next_data(self) -> Any:
        if self._closed:
            raise LoaderClosed("this iterator was closed; make a new one with iter(loader)")
        self._clock.enter()
        try:
            if self._ranks is not None and self._ranks.step():
                self._end_early()
            if self._loads_at_once:
                return self._load_at_once()
            while True:
                flight, batch = self._next_resolved()
                if flight.moved_up and batch.phase is not Phase.FAILED and not self._shorten(flight, batch):
                    continue
                if batch.phase is not Phase.HOLED or self._repair(flight, batch):
                    break
            data, size = (self._in_stage("hand over", self._deliver) if self._watched else self._deliver)(flight, batch)
            samples = batch.rows - batch.short_by - len(batch.bad_rows) if self._map else batch.rows_loaded
            self._count(samples, size)
            return self._pinned(data)
        except Exception as error:
            if self._options.story_file is not None and not isinstance(error, StopIteration):
                write_story(self._options.story_file, error, self._ledger.story)
            raise
        finally:
            self._clock.leave()

    def _load_at_once(self) -> Any:
        """Without workers, and with no sample forgiven, a batch is loaded when it is asked for and handed over."""
        self._plan_ahead()
        if not self._planned or isinstance(self._planned[0], BaseException):
            self._end_or_raise()
        planned = self._planned.popleft()
        assert isinstance(planned, PlannedBatch) and isinstance(self.pool, LocalPool)
        failed: FetchError | None = None
        try:
            load = self._in_stage("load", self.pool.load) if self._watched else self.pool.load
            data, size = load(planned.number, planned.indices, planned.position, planned.rows)
        except FetchError as error:
            failed = error
        self.cursor.delivered = self.cursor.delivered.add(planned)
        if failed is not None:
            raise self._to_raise(planned, failed.failure.row or 0, failed)
        self._count(planned.rows, size)
        if not self._auto_collation:
            self._traps.handed_out(data)
        return self._pinned(data)

    def _pinned(self, data: Any) -> Any:
        """Over locked slots it is pinned already, and torch's pin_memory hands it back as it is."""
        lock = self._ring.keeper
        if isinstance(lock, PageLock) and lock.refused is not None:
            self._traps.say("page-lock", f"batches are copied to pinned memory one by one: {lock.refused}")
        unlocked = not isinstance(lock, PageLock) or lock.refused is not None
        needs = self._pin_memory or (self._feed is not None and self._feed.pins and unlocked)
        return pin_batch(data, self._pin_memory_device) if needs else data

    def _count(self, samples: int, size_bytes: int) -> None:
        ledger = self._ledger
        ledger.timing.batches += 1
        ledger.timing.samples += samples
        ledger.timing.delivered_bytes += size_bytes
        if ledger.timing.batches % _LOOK_AT_MEMORY_EVERY == 1:
            self._look_at_memory()

    def _look_at_memory(self) -> None:
        self._ledger.most_in_flight_bytes = max(self._ledger.most_in_flight_bytes, self._ring.used_bytes())
        if isinstance(self.pool, Pool) and self.pool.look_at_memory():
            self._traps.busy_threads([worker.busy_threads for worker in self._ledger.costs.memory.workers.values()])

    def _next_resolved(self) -> tuple[InFlight, Batch]:
        """The next batch in order (or any, where order does not matter) that is no longer loading; StopIteration at the end."""
        while True:
            if not self._num_workers:
                self._plan_ahead()
                self._submit()
            if not self._in_flight and not (self._ranks is not None and self._repeat_some(self._ranks)):
                self._end_or_raise()
            wait = self._in_stage("wait for workers", self.pool.wait_resolved) if self._watched else self.pool.wait_resolved
            batch = wait(self._pick, self._waiting_for, self._timeout or None)
            flight = self._in_flight[batch.number]
            if batch.phase is not Phase.EMPTY:
                return flight, batch
            assert flight.stream is not None
            self._stream_plan.end(flight.stream)
            assert self.cursor.streams is not None
            self.cursor.streams = self.cursor.streams.ended(flight.stream)
            self._let_go(flight, batch)
            self._submit()

    def _pick(self) -> Batch | None:
        batches = self.pool.state.batches
        if self._in_order:
            head = batches[next(iter(self._in_flight))]
            return head if head.phase is not Phase.LOADING else None
        return next((batches[ticket] for ticket in self._in_flight if batches[ticket].phase is not Phase.LOADING), None)

    def _waiting_for(self) -> str:
        return f"batch {next(iter(self._in_flight))}"

    def _end_early(self) -> None:
        """As if the plan ended here."""
        self._planned.clear()
        self._in_flight.clear()  # what the workers do of it is dropped when the next epoch begins, or they end now
        self._finished = True

    def _repeat_some(self, ranks: Ranks) -> bool:
        """At the end of a rank that has fewer batches than others: whether batches follow that make up for them."""
        missing = ranks.take_missing() if self._to_repeat else 0
        for number in range(missing):
            self._planned.append(self._plan.repeat(copy.copy(self._to_repeat[number % len(self._to_repeat)])))
        self._submit()
        return bool(self._in_flight)

    def _end_or_raise(self) -> None:
        self._clock.ending()
        if self._planned and isinstance(self._planned[0], BaseException):
            error = self._planned.popleft()
            assert isinstance(error, BaseException)
            raise error
        if not self._persistent_workers:
            self._release()
        self.cursor.finished = True
        raise StopIteration

    def _deliver(self, flight: InFlight, batch: Batch) -> tuple[Any, int]:
        try:
            if batch.phase is Phase.FAILED:
                self.pool.ring.give_back(batch.slot)
                row = min(batch.errors)
                raise self._to_raise(flight.planned, row, batch.errors[row])
            if self._splits and batch.parcel_bytes is not None:
                self._remember_no_rows()
            if isinstance(self.pool, LocalPool) and batch.parcel_bytes is not None:
                self.pool.ring.give_back(batch.slot)
                collated = self.pool.collated.pop(batch.number)
                if not self._auto_collation:
                    self._traps.handed_out(collated)
                return collated, 0
            if flight.stream is not None and self._num_workers > 1:
                size = batch.parcel_bytes or self.pool.layouts[batch.layout or 0].offsets(batch.rows)[-1]
                self._traps.first_of_stream(flight.stream, memoryview(self.pool.ring.arena.map(batch.slot, size))[:size])
            return build(batch, self.pool.layouts, self.pool.ring)
        finally:
            self._note_delivered(flight, batch)
            self._let_go(flight, batch, slot=False)
            if self._num_workers:
                self._plan_ahead()
                self._submit()

    def _to_raise(self, planned: PlannedBatch | None, row: int, error: Any) -> BaseException:
        """The exception that a batch ends with; noted, and with the sample's file where the data set tells."""
        if planned is None:
            return exception_of(error)
        indices = planned.indices if isinstance(planned.indices, (list, tuple, array)) else [planned.indices]
        index = indices[row] if 0 <= row < len(indices) and repr(indices[row]) == failure_of(error).index else None
        seed = sample_seed(self._base_seed, self.cursor.epoch, planned.position + row)
        self._desk.note_raised(failure_of(error), index, epoch=self._ledger.timing.epochs, batch=planned.number, seed=seed)
        return exception_of(error, path_of(self._dataset, index))

    def _remember_no_rows(self) -> None:
        self._whole_only = True
        loader = self._loader_ref()
        if loader is not None:
            loader._rows_failed = True

    def _note_delivered(self, flight: InFlight, batch: Batch) -> None:
        if flight.planned is not None:
            self.cursor.delivered = self.cursor.delivered.add(flight.planned)
        elif flight.stream is not None:
            rows, state, ended = self.pool.streams[flight.stream].finished_batches.pop(batch.number, (0, None, False))
            assert self.cursor.streams is not None
            self.cursor.streams = self.cursor.streams.delivered(flight.stream, rows, state, ended)

    def _let_go(self, flight: InFlight, batch: Batch, slot: bool = True) -> None:
        self.pool.state.take(batch.number)
        self.pool.contents.pop(batch.number, None)
        del self._in_flight[flight.ticket]
        if slot:
            self.pool.ring.give_back(batch.slot)

    # --- bad samples ---

    def _repair(self, flight: InFlight, batch: Batch) -> bool:
        """Whether the batch can be delivered as it is now; otherwise some of it is being loaded again."""
        content = self.pool.contents[batch.number]
        assert flight.planned is not None
        fills: dict[int, Any] = {}
        for row in sorted(batch.bad_rows):
            failure = failure_of(batch.bad_rows[row])
            index = content.indices[row] if self._auto_collation else content.indices
            choice = self._desk.decide(
                failure,
                index,
                epoch=self._ledger.timing.epochs,
                batch=flight.planned.number,
                seed=sample_seed(self._base_seed, self.cursor.epoch, content.position + row),
                samples=length_of(self._dataset),
            )
            if choice is OnBadSample.RAISE:
                batch.errors[row] = batch.bad_rows[row]
                batch.phase = Phase.FAILED
                return True
            other = self._other_sample(flight, choice, content.position + row, row)
            if other is not None:
                fills[row] = other
        return self._fill(batch, content, fills)

    def _fill(self, batch: Batch, content: Content, fills: dict[int, Any]) -> bool:
        if not self._auto_collation:
            if not fills:
                return self._skip_empty(batch)
            self.pool.reload(batch.number, fills[0], 1)
            return False
        if batch.must_reload or batch.layout is None:
            kept = [fills.get(row, index) for row, index in enumerate(content.indices) if row in fills or row not in batch.bad_rows]
            if not kept:
                batch.phase, batch.rows_loaded = Phase.READY, 0
                return self._skip_empty(batch)
            self.pool.reload(batch.number, kept, len(kept))
            return False
        for row, index in fills.items():
            self.pool.fill_row(batch.number, row, index)
        if fills:
            return False
        if len(batch.bad_rows) == batch.rows:
            return self._skip_empty(batch)
        return True

    def _skip_empty(self, batch: Batch) -> bool:
        """Every sample of it was bad: there is nothing to deliver."""
        flight = self._in_flight[batch.number]
        self._note_delivered(flight, batch)
        self._let_go(flight, batch)
        if self._num_workers:
            self._plan_ahead()
            self._submit()
        return False

    def _other_sample(self, flight: InFlight, choice: OnBadSample, position: int, row: int) -> Any:
        """The index that takes the place of a bad one; None leaves the batch short."""
        if choice is OnBadSample.SKIP and self._world_size == 1:
            return self._next_spare(flight) if self._options.keep_batches_full and self._plan.composes else None
        if choice is OnBadSample.SKIP and not self._options.keep_batches_full:
            return None
        # under DDP nothing moves up, so that every rank keeps its number of batches
        samples, attempt = length_of(self._dataset), flight.attempts.get(row, 0)
        flight.attempts[row] = attempt + 1
        if samples is None or attempt >= _REPLACEMENTS:
            return None
        return replacement(self._base_seed, position, attempt, samples)

    def _next_spare(self, flight: InFlight) -> Any:
        """The sample that moves up: the next of the order, or, with the end of the order in sight, the last of the last batch."""
        spare = None if self._finished else self._plan.draw_spare()
        if spare is not None:
            self.cursor.delivered = self.cursor.delivered.with_spare(spare[1])
            return spare[0]
        self._finished = True
        index = self._take_last(flight)
        if index is not None:
            self.cursor.delivered = self.cursor.delivered.with_moved_up(1)
        return index

    def _take_last(self, but: InFlight | None) -> Any:
        while self._planned and isinstance(self._planned[-1], PlannedBatch):
            indices = self._planned[-1].indices
            if indices:
                return indices.pop()
            self._planned.pop()
        for flight in reversed(self._in_flight.values()):
            if flight is but or flight.planned is None:
                return None
            indices = flight.planned.indices
            if flight.moved_up < len(indices):
                flight.moved_up += 1
                return indices[-flight.moved_up]
        return None

    def _shorten(self, flight: InFlight, batch: Batch) -> bool:
        """A last batch whose samples moved up: whether what is left of it can be delivered now."""
        left = batch.rows - flight.moved_up
        if left <= 0 or self._drop_last:
            return self._skip_empty(batch)
        content = self.pool.contents[batch.number]
        for row in range(left, batch.rows):
            batch.bad_rows.pop(row, None)
        if batch.parcel_bytes is not None or batch.layout is None or batch.must_reload:
            flight.moved_up = 0
            self.pool.reload(batch.number, content.indices[:left], left)
            return False
        batch.short_by, flight.moved_up = flight.moved_up, 0
        if batch.phase is Phase.HOLED and not batch.bad_rows:
            batch.phase = Phase.READY
        return batch.phase is not Phase.HOLED

    def waiting_now(self) -> str | None:
        """What everybody is doing, where the loop waits at this moment; may be asked from a signal handler."""
        since_ns = self._ledger.timing.waiting_since_ns
        if since_ns is None or self._closed or not self._in_flight or not isinstance(self.pool, Pool):
            return None
        return self.pool.describe_wait(self._waiting_for(), (time.perf_counter_ns() - since_ns) / 1e9)

    def state_dict(self) -> dict[str, Any]:
        return self.cursor.state(self._generators)


def _close(crew: Crew | None, loader_ref: Any, ring: Ring) -> None:
    if crew is not None:
        crew.close()
    loader = loader_ref()
    if loader is not None:
        loader._fork_is_unsafe |= crew is not None and crew.use_server
        loader._return_ring(ring)
    else:
        ring.close()


@dataclass
class _SeedSource:
    """The generator that torch's iterator draws its base seed from, to be put back after a resume."""

    generator: Any

    def __post_init__(self) -> None:
        self._source = torch.default_generator if self.generator is None else self.generator
        self._state = self._source.get_state()

    def put_back(self) -> None:
        self._source.set_state(self._state)


def _limit(options: Options) -> tuple[int | None, str]:
    if options.memory_budget_bytes is not None:
        return options.memory_budget_bytes, "memory_budget"
    return available_memory_bytes(), "the memory that is available"
