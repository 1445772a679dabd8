"""The iterator behind `for batch in loader`: draws the plan, keeps batches in flight, delivers them in order.

    plan ──draw──▶ planned ahead (indices only) ──submit──▶ in flight (slots) ──▶ repaired if rows are bad ──▶ the user

1. The sampler is advanced exactly as far as torch advances it: prefetch_factor × num_workers batches at the start, then one for
   each batch delivered. (With on_bad_sample other than "raise": LOOK_AHEAD batches, so that what moves up does not depend on workers.)
2. Fewer batches than that are in flight: a few, however many workers there are.
3. A batch is delivered once, or its error is raised once; then the next one follows.
4. `state_dict` speaks of what was delivered, not of what is in flight.
5. With num_workers="auto" (autopilot.py) batches are loaded here while workers come up, and wherever that is faster; the bytes are the
   same. A batch that cannot be loaded here is left to a worker, whose error is the one that counts.
"""

from __future__ import annotations

import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from antifreeze import spans
from antifreeze.delivery.autopilot import Autopilot
from antifreeze.delivery.bad_samples import BadSampleDesk, exception_of, failure_of
from antifreeze.delivery.batches import build
from antifreeze.delivery.device import AHEAD, DeviceFeed, Sent
from antifreeze.delivery.flights import Flights, InFlight, Shape
from antifreeze.delivery.ledger import Ledger, LoopClock
from antifreeze.delivery.local_pool import LocalPool
from antifreeze.delivery.pinning import PageLock, page_lock
from antifreeze.delivery.position import Cursor, MapDelivered, fingerprint, length_of
from antifreeze.delivery.ranks import Ranks
from antifreeze.delivery.repair import Repair
from antifreeze.delivery.stages import Stage
from antifreeze.delivery.story_file import write_story
from antifreeze.delivery.traps import Traps
from antifreeze.errors import LoaderClosed, WorkerStartFailed
from antifreeze.naming import shown
from antifreeze.options import Options, StreamChoice, WorkerKind
from antifreeze.plan.map_plan import MapPlan, PlannedBatch, Quarantine
from antifreeze.plan.randomness import own_generators
from antifreeze.plan.stream_plan import StreamPlan, StreamPosition, StreamProgress
from antifreeze.slots.ring import Ring
from antifreeze.supervisor.crew import Crew
from antifreeze.supervisor.observe import available_memory_bytes
from antifreeze.supervisor.pool import Pool
from antifreeze.supervisor.sample_path import path_of
from antifreeze.supervisor.state import Batch, Phase
from antifreeze.supervisor.work import StreamStart
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
from antifreeze.tuning.decide import INLINE, Kind, Setting
from antifreeze.worker.awaiting import awaits
from antifreeze.worker.main import WorkerSpec
from antifreeze.worker.seeding import sample_seed
from antifreeze.worker.task import FetchConfig, FetchError
from antifreeze.worker.turns import Usage
from antifreeze.worker.ways import fetches_many

LOOK_AHEAD = 64
_LOOK_AT_MEMORY_EVERY = 8


@dataclass(frozen=True)
class _Raised:
    """In the place of a batch that was drawn ahead: its error, raised when its turn comes."""

    error: Exception


class _NotHere(Exception):
    """A batch that could not be loaded in this process."""


class LoaderIterator(BaseIterator):  # type: ignore[misc]
    """One pass (with persistent workers: pass after pass) over a loader."""

    _auto: Autopilot | None
    _local: LocalPool | None  # with "auto": what loads in this process

    def __init__(self, loader: Any) -> None:
        self._loader_ref = weakref.ref(loader)
        self._options: Options = loader.options
        resume, seeded = loader._take_resume_state()
        source = _SeedSource(loader.generator)
        super().__init__(loader)
        if not self._num_workers and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if self._num_workers and loader.prefetch_factor is not None and loader.prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        if seeded:
            source.put_back()  # the interrupted run drew these seeds; they are in the state
            self._base_seed, self._shared_seed = seeded["base_seed"], seeded["shared_seed"]
        self._generators = own_generators(loader.generator, loader._index_sampler)
        self._map = not is_iterable_kind(loader)
        self._batch_rows = loader.batch_size if loader._auto_collation else 1
        self.cursor = Cursor(fingerprint(loader))
        if seeded:
            self.cursor.epoch = seeded["epoch"] + (resume is None)
        self._closed = False
        self._watched = False  # by a profiler or a trace, during one next()
        self._ledger: Ledger = loader._ledger
        self._traps: Traps = loader._traps
        self._ranks: Ranks | None = loader._watch_ranks(self._rank, self._world_size) if self._map else None
        self._clock = LoopClock(self._ledger.timing, self._ledger.costs, alone=not self._num_workers)
        self._desk = BadSampleDesk(self._options, self._ledger.bad_samples, self._ledger.raised, self._dataset)
        self._limit = _limit(self._options)
        self._loads_at_once = self._map and not self._num_workers and not self._options.forgives and self._ranks is None
        self._feed = None if self._options.device is None else DeviceFeed(torch.device(self._options.device))
        self._ahead: deque[Sent] = deque()
        parked = self._begin_auto(loader)
        self._ring = self._borrow_ring(loader) if parked is None else parked.ring
        if self._num_workers:
            self._worker_init_fn = loader.worker_init_fn
            if is_datapipe(self._dataset):
                self._worker_init_fn = sharded_init_fn(self._worker_init_fn, self._world_size, self._rank)
            self._usage: Usage | None = loader._known_usage() if self._in_threads else None
            start: tuple[Any, bool] = (None, False) if self._in_threads else loader._start_context()
            self._context, self._use_server = start
        self.pool: Pool | LocalPool = self._make_pool() if parked is None else parked
        self._shape = self._shape_of(loader)
        given = (self.cursor, self._ledger, self._options, self._ranks, loader._rows_failed, self._workers_at_first())
        self._flights = Flights(self._shape, self.pool, *given)
        self._repair = self._make_repair()
        self._finalizer = self._finalizing(loader)
        if self._num_workers:
            super()._reset(loader, first_iter=True)  # torch's iterator with workers asks the sampler, and draws, a second time
        if parked is not None:
            parked.begin_epoch(self._specs())
        self._begin(resume)

    def __repr__(self) -> str:
        delivered = f"{self._num_yielded} batches delivered, {len(self._flights.in_flight)} in flight"
        return f"<LoaderIterator epoch {self.cursor.epoch}: {delivered}, {self.pool!r}>"

    def close(self) -> None:
        """Ends the workers; may be called twice."""
        self._closed = True
        self._ahead.clear()
        if self._feed is not None:
            self._feed.close()
        self._release()

    def _release(self) -> None:
        if self._is_parked:
            return  # the workers are the loader's
        finalizer = self._finalizer.detach()
        if finalizer is not None:
            _, close, args, _ = finalizer
            close(*args)
        self.pool.contents.clear()
        self.pool.collated.clear()
        self.pool.state.forget_all()
        self._flights.in_flight.clear()

    def _forks(self) -> bool:
        return not self._in_threads and bool(self._context.get_start_method() == "fork")

    @property
    def _in_threads(self) -> bool:
        return self._options.workers is WorkerKind.THREAD and self._num_workers > 0

    def _finalizing(self, loader: Any) -> Any:
        crew = self.pool.crew if isinstance(self.pool, Pool) else None
        return weakref.finalize(self, _close, crew, weakref.ref(loader), self._ring, unheard=True)

    # --- beginning ---

    def _shape_of(self, loader: Any) -> Shape:
        prefetch_factor = loader.prefetch_factor or 2
        many = self._map and fetches_many(self._dataset)
        return Shape(
            is_map=self._map,
            auto_collation=self._auto_collation,
            fetches_many=many,
            together=self._options.concurrency if self._map and awaits(self._dataset) else 1,
            splits=self._map and self._collate_fn is default_collate and self._auto_collation and not many,
            in_order=loader.in_order,
            batch_rows=self._batch_rows,
            prefetch_factor=prefetch_factor,
            prefetch_asked=loader._prefetch_asked,
            look_ahead=LOOK_AHEAD if self._options.forgives and self._map else None,
        )

    def _make_repair(self) -> Repair:
        return Repair(
            self._flights,
            self._desk,
            self._ledger,
            self._options,
            dataset=self._dataset,
            auto_collation=self._auto_collation,
            drop_last=self._drop_last,
            workers=self._num_workers,
            world_size=self._world_size,
        )

    def _borrow_ring(self, loader: Any) -> Ring:
        ring: Ring = loader._borrow_ring()
        if ring.keeper is None and (self._pin_memory or (self._feed is not None and self._feed.pins)):
            ring.keeper = page_lock()
        return ring

    def _make_pool(self) -> Pool | LocalPool:
        if self._num_workers:
            begin_with = None if self._auto is None else 0 if self._inline else self._auto.setting.workers
            given = (self._options, self._ledger.costs, self._ledger.story, self._use_server, begin_with, self._usage)
            return Pool(self._context, self._specs(), self._ring, *given)
        if is_datapipe(self._dataset):
            apply_sharding(self._dataset, self._world_size, self._rank)
        return self._make_local_pool()

    def _make_local_pool(self) -> LocalPool:
        options = self._options
        given = (self._collate_fn, self._auto_collation, self._drop_last, options.forgives, None)
        config = FetchConfig(*given, options.concurrency, options.sample_timeout_s, self._fills)
        return LocalPool(
            self._dataset, not self._map, config, (self._base_seed, self.cursor.epoch), self._ring, self._limit, self._ledger.costs
        )

    @property
    def _fills(self) -> bool:
        """Whether a stream's next samples move up for one that was left out: not among ranks, where one would have fewer batches then."""
        return self._options.keep_batches_full and self._world_size == 1

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
                fill=self._fills,
                concurrency=self._options.concurrency,
                sample_timeout_s=self._options.sample_timeout_s,
                limit_bytes=self._limit[0],
                limit_name=self._limit[1],
            )
            for number in range(self._num_workers if self._auto is None else self._auto.tuner.limits.most)
        ]

    def _begin(self, resume: dict[str, Any] | None) -> None:
        """The plan of an epoch, and the first batches on their way."""
        self._flights.begin()
        self.cursor.finished = False
        self.cursor.shown = None
        self._ahead.clear()
        self.cursor.base_seed, self.cursor.shared_seed = self._base_seed, self._shared_seed
        self.cursor.sampler_epoch = getattr(getattr(self._index_sampler, "sampler", self._index_sampler), "epoch", None)
        self._clock.new_epoch()
        pool = self.pool
        self._local = None
        if self._auto is not None:
            self._auto.new_epoch()
            self._inline = self._auto.may_inline and (self._auto.setting == INLINE or not isinstance(pool, Pool) or not pool.ready)
        if isinstance(pool, Pool) and self._inline and self._auto is not None:
            self._ask_for(pool, self._auto.setting)
        elif isinstance(pool, Pool) and not pool.started:
            self._traps.before_start(self._dataset, self._num_workers, not self._use_server and self._forks(), self._in_threads)
            pool.start()
            if self._worker_init_fn is not None and self._map:
                self._flights.static = bool(pool.wait_ready())
                if self._flights.static and self._auto is not None:
                    self._auto.left("worker_init_fn seeds random generators, so that every batch has its worker")
                    self._auto = None
        if self._map:
            if not resume:
                self._traps.advance_epoch(getattr(self._index_sampler, "sampler", self._index_sampler))
            self._begin_map(resume)
        else:
            self._begin_streams(resume)
        if self._num_workers and not self._inline:
            self._flights.go_on()
            if not self._flights.in_flight and self._flights.planned and isinstance(self._flights.planned[0], BaseException):
                self._end_or_raise()  # the sampler's very first word: torch's iterator with workers has asked for it by now, too
        self._clock.made()

    def _begin_map(self, resume: dict[str, Any] | None) -> None:
        self._flights.plan = MapPlan(self._index_sampler, self._auto_collation, self._generators, self._quarantine())
        self.cursor.plan = self._flights.plan
        self.cursor.delivered = MapDelivered()
        if resume:
            self.cursor.delivered = MapDelivered.from_dict(resume["delivered"])
            done, drawn = self.cursor.delivered, resume.get("drawn", True)
            self._flights.plan.resume(done.position, resume["randomness"], resume["beginning"], done.spares, drawn)
            self._flights.moved_up_before = self.cursor.delivered.moved_up
        elif not self._num_workers:
            self._flights.plan.adopt(self._sampler_iter)
        if self._ranks is not None:
            batches, done = length_of(self._index_sampler), self.cursor.delivered
            self._ranks.begin(None if batches is None else batches - done.position.batches - len(done.beyond))
            self._flights.to_repeat = []

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
        self._flights.stream_plan = StreamPlan(position, self._batch_rows)
        starts = [
            StreamStart(
                stream=number,
                streams=len(position.streams) if position.had_workers else 0,
                past=progress,
                batch_rows=self._batch_rows,
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
            self.pool = self._flights.pool = self._make_pool()
            self._finalizer = self._finalizing(loader)
        else:
            pool.begin_epoch(self._specs())
        self._begin(resume)

    # --- delivering ---

    def __next__(self) -> Any:
        try:
            return self._next_on_host() if self._feed is None else self._next_on_device(self._feed)
        except KeyboardInterrupt as stop:
            stop.__suppress_context__ = True  # whatever it fell into is ours: the user's traceback is the one to show
            raise

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
        if not isinstance(self.pool, Pool) or not self._flights.in_flight or self.pool.closed:
            return False
        self.pool.catch_up()
        batch = self._flights.pick()
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
        if self._is_parked:
            raise StopIteration
        self._clock.enter()
        try:
            if self._ranks is not None and self._ranks.step():
                self._flights.end_early()
            if self._loads_at_once:
                return self._load_at_once(self.pool)
            if self._auto is not None:
                if self._clock.entered_at >= self._auto.due_ns:
                    self._steer(self._auto)
                if self._inline and not self._flights.in_flight and (loaded := self._load_inline(self._auto)) is not None:
                    return loaded[0]
            while True:
                flight, batch = self._next_resolved()
                if (flight.moved_up or flight.cut) and batch.phase is not Phase.FAILED and not self._repair.shorten(flight, batch):
                    continue
                if batch.phase is not Phase.HOLED or self._repair.repair(flight, batch):
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

    # --- num_workers="auto" ---

    def _begin_auto(self, loader: Any) -> Pool | None:
        """Workers that are left from the last epoch, if any."""
        self._auto = loader._autopilot(self._ranks is not None)
        self._inline = self._auto is not None and self._auto.may_inline  # until workers are there
        self._local = None
        self._is_parked = False
        parked: Pool | None = None if self._auto is None else loader._take_parked()
        return parked

    def _workers_at_first(self) -> int:
        if self._auto is None:
            return int(self._num_workers)
        if self._shape.splits:
            self._auto.batch_tasks = self._batch_rows or 1
        return max(1, self._auto.setting.workers)

    def _steer(self, auto: Autopilot) -> None:
        """Between two batches, now and then: what has been measured, and what follows."""
        pool = self.pool
        assert isinstance(pool, Pool)
        if self._inline:
            pool.look_after()
        if pool.growth_failed is not None:
            auto.cannot(Setting(auto.kind, max(1, pool.size + 1)), pool.growth_failed)
            pool.growth_failed, auto.setting = None, auto.tuner.home
            self._ask_for(pool, auto.setting)
        self._take_up(auto, pool)
        in_force = INLINE if self._inline else Setting(auto.kind, self._flights.workers)
        if in_force != auto.setting:
            self._ask_for(pool, auto.setting)
            auto.look_soon(self._clock.entered_at)  # those that were asked for are on their way
            return
        decision = auto.look(self._clock.entered_at, in_force)
        if decision is not None and decision.setting != in_force:
            self._ask_for(pool, decision.setting)
            self._take_up(auto, pool)

    def _ask_for(self, pool: Pool, setting: Setting) -> None:
        """Workers for `setting`: more come up while what is there goes on."""
        if setting.kind is not Kind.INLINE:
            if not pool.size:
                self._traps.before_start(self._dataset, setting.workers, not self._use_server and self._forks(), self._in_threads)
            if pool.size < setting.workers:
                pool.resize(setting.workers)

    def _take_up(self, auto: Autopilot, pool: Pool) -> None:
        """The setting that was decided on, once its workers are there; those that are too many go."""
        setting, before = auto.setting, (self._inline, self._flights.workers)
        if setting == INLINE:
            self._inline = True
        elif pool.size and pool.ready >= min(setting.workers, pool.size):
            self._flights.workers, self._inline = setting.workers, False
            if pool.size > setting.workers:
                pool.resize(setting.workers)
        if before != (self._inline, self._flights.workers):
            auto.changed(len(self._flights.in_flight))
            if not self._inline:
                self._flights.go_on()
        elif setting == INLINE == auto.tuner.home and pool.size and not pool.state.batches:
            pool.resize(0)

    def _load_inline(self, auto: Autopilot) -> tuple[Any] | None:
        """The next batch, loaded here with one thread, as a worker would; None where a worker has to."""
        if self._local is None:
            self._local = self._make_local_pool()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return (self._load_at_once(self._local, may_fail=False),)
        except _NotHere as problem:
            auto.forbid_inline(f"loading in the loop failed ({problem}), and a worker may be what it takes")
        finally:
            torch.set_num_threads(threads)
        auto.setting, self._inline = auto.tuner.home, False
        pool = self.pool
        assert isinstance(pool, Pool)
        self._ask_for(pool, auto.setting)
        self._flights.workers = auto.setting.workers
        auto.changed(0)
        if not pool.size:
            raise WorkerStartFailed(f"no worker could be started: {pool.growth_failed}")
        self._flights.go_on()
        return None

    def _park(self) -> bool:
        """With "auto", workers stay for the next epoch: whether the loader has taken them."""
        loader = self._loader_ref()
        if self._auto is None or loader is None or not isinstance(self.pool, Pool) or self.pool.closed or self._worker_init_fn is not None:
            return False
        self._is_parked = True
        self._finalizer.detach()
        loader._park(self.pool)
        return True

    def _load_at_once(self, pool: Any, may_fail: bool = True) -> Any:
        """Without workers, and with no sample forgiven, a batch is loaded when it is asked for and handed over."""
        self._flights.plan_ahead()
        if not self._flights.planned or isinstance(self._flights.planned[0], BaseException):
            self._end_or_raise()
        planned = self._flights.planned.popleft()
        assert isinstance(planned, PlannedBatch) and isinstance(pool, LocalPool)
        failed: FetchError | None = None
        try:
            load = self._in_stage("load", pool.load) if self._watched else pool.load
            data, size = load(planned.number, planned.indices, planned.position, planned.rows)
        except FetchError as error:
            failed = error
        if failed is not None and not may_fail:
            self._flights.planned.appendleft(planned)
            raise _NotHere(failed.failure.message)
        self.cursor.delivered = self.cursor.delivered.add(planned)
        if failed is not None:
            raise self._to_raise(planned, failed.failure.row or 0, failed, planned.number)
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
                self._flights.go_on()
            if not self._flights.in_flight and not (self._ranks is not None and self._flights.repeat_some(self._ranks)):
                self._end_or_raise()
            wait = self._in_stage("wait for workers", self.pool.wait_resolved) if self._watched else self.pool.wait_resolved
            batch = wait(self._flights.pick, self._flights.waiting_for, self._timeout or None)
            flight = self._flights.in_flight[batch.number]
            if batch.left_out or batch.stops_with is not None:
                self._repair.account_for_left_out(flight, batch)
            if batch.phase is not Phase.EMPTY:
                return flight, batch
            assert flight.stream is not None
            self._flights.stream_plan.end(flight.stream)
            assert self.cursor.streams is not None
            self.cursor.streams = self.cursor.streams.ended(flight.stream)
            self._flights.let_go(flight, batch)
            self._flights.submit()

    def _end_or_raise(self) -> None:
        self._clock.ending()
        if self._flights.planned and isinstance(self._flights.planned[0], BaseException):
            error = self._flights.planned.popleft()
            assert isinstance(error, BaseException)
            raise error
        if not self._persistent_workers and not self._is_parked and not self._park():
            self._release()
        self.cursor.finished = True
        raise StopIteration

    def _deliver(self, flight: InFlight, batch: Batch) -> tuple[Any, int]:
        try:
            if batch.phase is Phase.FAILED:
                self.pool.ring.give_back(batch.slot)
                row = min(batch.errors)
                raise self._to_raise(flight.planned, row, batch.errors[row], self.pool.contents[batch.number].number)
            if self._shape.splits and batch.parcel_bytes is not None:
                self._remember_no_rows()
            if batch.parcel_bytes is not None and batch.number in self.pool.collated:
                self.pool.ring.give_back(batch.slot)
                collated = self.pool.collated.pop(batch.number)
                if not self._auto_collation:
                    self._traps.handed_out(collated)
                return collated, 0
            if flight.stream is not None and self._num_workers > 1:  # of what is handed over as it is there are no bytes to compare
                size = batch.parcel_bytes or self.pool.layouts[batch.layout or 0].offsets(batch.rows)[-1]
                self._traps.first_of_stream(flight.stream, memoryview(self.pool.ring.arena.map(batch.slot, size))[:size])
            return build(batch, self.pool.layouts, self.pool.ring)
        finally:
            self._flights.note_delivered(flight, batch)
            self._flights.let_go(flight, batch, slot=False)
            if self._num_workers and not self._inline:
                self._flights.go_on()

    def _to_raise(self, planned: PlannedBatch | None, row: int, error: Any, number: int) -> BaseException:
        """The exception that batch `number` ends with; noted, and with the sample's file where the data set tells."""
        epoch = self._ledger.timing.epochs
        if planned is None:
            seed = sample_seed(self._base_seed, self.cursor.epoch, failure_of(error).position or 0)
            self._desk.note_raised(failure_of(error), None, epoch=epoch, batch=number, seed=seed)
            return exception_of(error)
        indices = planned.indices if isinstance(planned.indices, (list, tuple, array)) else [planned.indices]
        failure = failure_of(error)
        index = indices[row] if 0 <= row < len(indices) and shown(indices[row], failure.position) == failure.index else None
        seed = sample_seed(self._base_seed, self.cursor.epoch, planned.position + row)
        self._desk.note_raised(failure, index, epoch=epoch, batch=number, seed=seed)
        return exception_of(error, path_of(self._dataset, index))

    def _remember_no_rows(self) -> None:
        self._flights.whole_only = True
        loader = self._loader_ref()
        if loader is not None:
            loader._rows_failed = True

    def waiting_now(self) -> str | None:
        """What everybody is doing, where the loop waits at this moment; may be asked from a signal handler."""
        since_ns = self._ledger.timing.waiting_since_ns
        if since_ns is None or self._closed or not self._flights.in_flight or not isinstance(self.pool, Pool):
            return None
        return self.pool.describe_wait(self._flights.waiting_for(), (time.perf_counter_ns() - since_ns) / 1e9)

    def state_dict(self) -> dict[str, Any]:
        return self.cursor.state(self._generators)


def _close(crew: Crew | None, loader_ref: Any, ring: Ring, unheard: bool = False) -> None:
    try:
        if crew is not None:
            crew.close(unheard)
    finally:
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
        # what is no generator is refused where torch draws from it
        self._state = self._source.get_state() if isinstance(self._source, torch.Generator) else None

    def put_back(self) -> None:
        if self._state is not None:
            self._source.set_state(self._state)


def _limit(options: Options) -> tuple[int | None, str]:
    if options.memory_budget_bytes is not None:
        return options.memory_budget_bytes, "memory_budget"
    return available_memory_bytes(), "the memory that is available"
