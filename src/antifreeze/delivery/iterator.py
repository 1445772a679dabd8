"""The iterator behind `for batch in loader`: draws the plan, keeps batches in flight, delivers them in order.

    plan ──draw──▶ planned ahead (indices only) ──submit──▶ in flight (slots) ──arrivals.py──▶ handing_over.py ──▶ the user

1. The sampler is advanced exactly as far as torch advances it: prefetch_factor × num_workers batches at the start, then one for
   each batch delivered. (With on_bad_sample other than "raise": LOOK_AHEAD batches, so that what moves up does not depend on workers.)
2. Not more than that are in flight: a few where batches are large, otherwise two for each worker.
3. A batch is delivered once, or its error is raised once; then the next one follows.
4. `state_dict` speaks of what was delivered, not of what is in flight.
"""

from __future__ import annotations

import time
import weakref
from contextlib import nullcontext
from typing import Any, NoReturn

import torch

from antifreeze import spans
from antifreeze.delivery.arrivals import Arrivals
from antifreeze.delivery.asking import Asked
from antifreeze.delivery.at_once import AtOnce
from antifreeze.delivery.bad_samples import BadSampleDesk
from antifreeze.delivery.batches import size_of
from antifreeze.delivery.beginning import begin_among_ranks, begin_map, begin_streams, hosts
from antifreeze.delivery.claims import FixedClaim
from antifreeze.delivery.custody import Custody
from antifreeze.delivery.device import DeviceFeed
from antifreeze.delivery.device_queue import DeviceQueue
from antifreeze.delivery.flights import Flights
from antifreeze.delivery.handing_over import HandOver
from antifreeze.delivery.job import Seeding, job_of
from antifreeze.delivery.ledger import Ledger, LoopClock
from antifreeze.delivery.local_pool import LocalPool
from antifreeze.delivery.next_epoch import NextEpoch, why_cold
from antifreeze.delivery.position import Cursor, fingerprint
from antifreeze.delivery.ranks import Ranks
from antifreeze.delivery.repair import Repair
from antifreeze.delivery.seed_source import SeedSource
from antifreeze.delivery.stages import Stage, in_stage
from antifreeze.delivery.steering import NotHere, Steering
from antifreeze.delivery.story_file import write_story
from antifreeze.delivery.stream_ranks import StreamRanks
from antifreeze.delivery.traps import Traps
from antifreeze.errors import DescriptorsClosed, LoaderClosed, empty_own_frames
from antifreeze.options import Options
from antifreeze.plan.map_plan import MapPlan, PlannedBatch
from antifreeze.plan.randomness import own_generators
from antifreeze.signals import came_from_signal
from antifreeze.supervisor import telling
from antifreeze.supervisor.pool import Pool
from antifreeze.supervisor.tasks import Phase
from antifreeze.torch_private import BaseIterator, is_iterable_kind, is_profiling, seed_datapipe
from antifreeze.worker.seeding import task_key


class LoaderIterator(BaseIterator):  # type: ignore[misc]
    """One pass (with persistent workers: pass after pass) over a loader."""

    _next_epoch: NextEpoch | None = None
    _closed = False
    _num_yielded: int
    _goes_on_after: int | None = None  # batches, where it was broken off
    """Where a signal's handler broke next() off: the number of batches that the loop has got, and the state behind them."""
    _watched = False  # by a profiler or a trace, during one next()

    def __init__(self, loader: Any) -> None:
        self._loader_ref = weakref.ref(loader)
        self._options: Options = loader._own_options
        resume, seeded = loader._resume_states()
        state = torch.default_generator.get_state()
        source = SeedSource(loader.generator)
        self._map = not is_iterable_kind(loader)
        self._asked = Asked(loader, resume) if self._map else None
        with self._asking():
            super().__init__(loader)
        self._check_as_torch(loader)
        if seeded:
            source.put_back()  # the interrupted run drew these seeds; they are in the state
            self._base_seed, self._shared_seed = seeded["base_seed"], seeded["shared_seed"]
            self._dataset: Any = seed_datapipe(loader.dataset, self._shared_seed)
        self._generators = own_generators(loader.generator, loader._index_sampler)
        self._batch_rows = loader.batch_size if loader._auto_collation else 1
        self.cursor = Cursor(fingerprint(loader))
        if seeded:
            self.cursor.epoch = seeded["epoch"] + (resume is None)
        self._ledger: Ledger = loader._ledger
        self._traps: Traps = loader._traps
        self._ranks: Ranks | None = loader._watch_ranks(self._rank, self._world_size) if self._map else None
        self._stream_ranks: StreamRanks | None = None if self._map else loader._watch_stream_ranks(self._rank, self._world_size)
        self._clock = LoopClock(self._ledger.timing, self._ledger.costs, alone=not self._num_workers)
        self._desk = BadSampleDesk(self._options, self._ledger.bad_samples, self._ledger.raised, self._dataset)
        self._loads_at_once = self._map and not self._num_workers and not self._options.forgives and self._ranks is None
        self._queue = None if self._options.device is None else DeviceQueue(DeviceFeed(torch.device(self._options.device)), self.cursor)
        auto = loader._autopilot(self._ranks is not None)
        self._job = job_of(loader, self, places=self._num_workers if auto is None else auto.tuner.limits.most)
        self._custody = Custody(loader, self._job, auto, self._pin_memory or self._feeds_from_pinned)
        goes_on = self._take_parked(loader)
        self._next_epoch = None if why_cold(loader) else self._next_epoch or NextEpoch(loader, self._job.quarantine(), self._ledger.warmth)
        if not goes_on:
            self._custody.borrow(loader, self._seeding, hosts(resume, self._num_workers))
        self._shape = self._job.shape(loader)
        workers = self._num_workers
        if auto is not None:
            auto.batch_tasks = self._batch_rows or 1 if self._shape.splits else auto.batch_tasks
            workers = max(1, auto.setting.workers)
        given = (self.cursor, self._ledger, self._options, self._ranks, loader._rows_failed, workers)
        self._flights = Flights(self._shape, self.pool, *given)
        self._steering = None if auto is None else Steering(auto, self._flights, self._job, self._ledger, self._traps)
        self._claim = FixedClaim(workers, self._clock, self._ledger.costs) if auto is None and workers else None
        self._repair = self._make_repair()
        self._hand_over = self._make_hand_over()
        self._arrivals, self._at_once = self._make_arrivals(), self._make_at_once()
        self._begin_first(loader, source if seeded else None, resume, state, goes_on)

    def _check_as_torch(self, loader: Any) -> None:
        if not self._num_workers and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if self._num_workers and loader.prefetch_factor is not None and loader.prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        if self._num_workers and loader.prefetch_factor is not None:
            range(loader.prefetch_factor * self._num_workers)  # what is no whole number is refused here, in torch's words

    def _begin_first(self, loader: Any, put_back: SeedSource | None, resume: Any, state: torch.Tensor, goes_on: bool) -> None:
        try:
            self._custody.begin()
            loader._parking.forget_given()
            if self._num_workers:
                self._ask_again(loader, put_back)
            self._begin(resume, state, goes_on)
        except BaseException:
            self._custody.end_unheard()  # nobody gets this iterator, and its traceback may keep it: workers and memory go now
            raise

    def _ask_again(self, loader: Any, put_back: SeedSource | None) -> None:
        """torch's iterator with workers asks the sampler, and draws, a second time; what its workers have is the first shared seed."""
        shared_seed = self._shared_seed
        with self._asking():
            super()._reset(loader, first_iter=True)
        self._shared_seed = shared_seed
        if put_back is not None:
            put_back.put_back()

    def __repr__(self) -> str:
        delivered = f"{self._num_yielded} batches delivered, {len(self._flights.in_flight)} in flight"
        return f"<LoaderIterator epoch {self.cursor.epoch}: {delivered}, {self.pool!r}>"

    def close(self) -> None:
        """Ends the workers; may be called twice."""
        self._closed, self._goes_on_after = True, None
        if self._queue is not None:
            self._queue.close()
        self._release()

    def _release(self) -> None:
        if self._custody.end():
            if self._next_epoch is not None:
                self._next_epoch.forget()
            self._flights.forget()

    @property
    def pool(self) -> Pool | LocalPool:
        return self._custody.pool

    def _take_parked(self, loader: Any) -> bool:
        """Workers that are left from the last epoch, with what they have loaded of this one."""
        is_there, self._next_epoch = self._custody.find_parked(loader)
        if self._next_epoch is not None:
            self._next_epoch.generator = loader.generator  # which may be another one by now
        return is_there

    # --- beginning ---

    @property
    def _seeding(self) -> Seeding:
        return Seeding(self._base_seed, self.cursor.epoch, self._shared_seed)

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

    def _make_hand_over(self) -> HandOver:
        return HandOver(
            self._ledger,
            self._traps,
            self._desk,
            self.cursor,
            self._dataset,
            collates=self._auto_collation,
            pins=self._pin_memory,
            pin_device=self._pin_memory_device,
            feeds_from_pinned=self._feeds_from_pinned,
        )

    def _make_at_once(self) -> AtOnce:
        budget_bytes, may_have_workers = self._options.memory_budget_bytes, self._num_workers > 0
        return AtOnce(self._flights, self._hand_over, self.cursor, budget_bytes, may_have_workers)

    def _make_arrivals(self) -> Arrivals:
        return Arrivals(
            self._flights,
            self._repair,
            self._hand_over,
            self._traps,
            self._ranks,
            self._shape,
            self._loader_ref,
            workers=self._num_workers,
            timeout_s=self._timeout or None,
            budget_bytes=self._options.memory_budget_bytes,
        )

    @property
    def _feeds_from_pinned(self) -> bool:
        return self._queue is not None and self._queue.feed.pins

    def _begin(self, resume: dict[str, Any] | None, state: torch.Tensor, goes_on: bool) -> None:
        """The plan of an epoch, and the first batches on their way. Where the pool `goes_on` after another epoch, some may be there
        already; `state`: of the process's generator when all this began."""
        pool, flights = self.pool, self._flights
        if goes_on and isinstance(pool, Pool):
            pool.catch_up()
        elif self._next_epoch is not None:
            self._next_epoch.forget()  # what there was of it went with its workers
        flights.begin(task_key(self._base_seed, self.cursor.epoch))
        self.cursor.finished = self.cursor.told = False
        self.cursor.shown = None
        if self._queue is not None:
            self._queue.new_epoch()
        self.cursor.base_seed, self.cursor.shared_seed = self._base_seed, self._shared_seed
        self._clock.new_epoch()
        if self._steering is not None:
            self._steering.new_epoch()
        if self._map:
            self._begin_map(resume)
        if goes_on and isinstance(pool, Pool):
            flights.next_epoch = self._next_epoch
            ahead = flights.take_over(state, usable=not resume and not flights.inline)
            pool.begin_epoch(self._job.spec(self._seeding), ahead)
        if self._steering is not None:
            self._steering.recruit()
        if isinstance(pool, Pool) and not flights.inline and not pool.started:
            self._start(pool)
        flights.next_epoch = self._next_epoch if self._persistent_workers or self._ledger.timing.epochs > 1 else None
        if not self._map:
            if self._stream_ranks is not None:
                self._stream_ranks.begin()
            begin_streams(flights, resume, self._num_workers, self._batch_rows, self._options.lost_stream)
        if self._num_workers:
            self._ask_for_first(flights)
        if flights.next_epoch is not None and not goes_on:
            flights.next_epoch.look_early()
        self._clock.made()

    def _ask_for_first(self, flights: Flights) -> None:
        """As torch's iterator with workers does by now; also where the loop will load it itself, or when the sampler draws its seed would
        depend on what was decided."""
        if flights.inline:
            flights.plan_next(as_list=False)
        else:
            flights.go_on()
        if not flights.in_flight and flights.planned and isinstance(flights.planned[0], BaseException):
            self._end_or_raise()  # the sampler's very first word

    def _begin_map(self, resume: dict[str, Any] | None) -> None:
        asked = self._asked
        assert asked is not None
        self.cursor.sampler_epoch = asked.epoch
        drawn = None if self._next_epoch is None else self._next_epoch.drawn
        plan = MapPlan(self._index_sampler, self._auto_collation, self._generators, self._job.quarantine(), drawn)
        begin_map(self._flights, plan, resume)
        plan.asked = asked.randomness
        if not resume or asked.randomness is not None:
            plan.adopt(self._sampler_iter)
        if self._ranks is not None:
            begin_among_ranks(self._ranks, self._flights, self._index_sampler)

    def _asking(self) -> Any:
        """Around torch's call of iter(sampler)."""
        return nullcontext() if self._asked is None else self._asked.asking()

    def _start(self, pool: Pool) -> None:
        self._job.look_for_traps(self._traps, self._num_workers)
        pool.start()
        if self._job.worker_init_fn is not None and self._map:
            self._flights.static = bool(pool.wait_ready())
            if self._flights.static and self._steering is not None:
                self._steering.auto.left("worker_init_fn seeds random generators, so that every batch has its worker")
                self._steering = None

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """The next pass with the same workers; not where the last one was broken off by a signal's handler."""
        self._begin_again(loader, *loader._resume_states())
        self._goes_on()

    def _goes_on(self) -> None:
        """A pass has begun, or goes on, and nothing is left of what was broken off."""
        self._closed, self._goes_on_after = False, None
        self.cursor.called = self.cursor.broken_off = None

    def _begin_again(self, loader: Any, resume: dict[str, Any] | None, seeded: dict[str, Any] | None) -> None:
        """May be begun again, wherever it was broken off."""
        if self._closed or self.cursor.called is not None:
            self._closed = True
            self._release()
        self._closed = True  # until it is through
        state = torch.default_generator.get_state()
        source = SeedSource(loader.generator)
        self._asked = Asked(loader, resume) if self._map else None
        with self._asking():
            super()._reset(loader)
        if seeded:
            source.put_back()
            self._base_seed, self._shared_seed = seeded["base_seed"], seeded["shared_seed"]
        self.cursor.epoch = (seeded["epoch"] if seeded else self.cursor.epoch) + (resume is None)
        hosting = hosts(resume, self._num_workers)
        if hosting or self._custody.hosting:
            self._release()  # what these workers have of the data set is of other streams
        goes_on = self._custody.goes_on
        if not goes_on:
            self._custody.borrow(loader, self._seeding, hosting)
            self._flights.pool = self.pool
            self._custody.begin()
        self._begin(resume, state, goes_on)

    # --- delivering ---

    def __next__(self) -> Any:
        cursor, got = self.cursor, None
        try:
            if self._closed or cursor.called is not None:
                self._pick_up()
            got = self._num_yielded, cursor.delivered, cursor.streams
            return self._next_on_host() if self._queue is None else self._queue.next(self._next_on_host, self._next_is_ready)
        except BaseException as error:
            if got is not None:
                cursor.called = got  # until all is said and done about it: another one may fall into any line here
            self._leave_by(error)
            empty_own_frames(error)
            cursor.told = cursor.told or isinstance(error, StopIteration)
            raise

    def _leave_by(self, error: BaseException) -> None:
        """What next() raises, and what that means for the next one."""
        if isinstance(error, KeyboardInterrupt):
            error.__suppress_context__ = True  # whatever it fell into is ours: the user's traceback is the one to show
        of_signal = came_from_signal(error)  # which may be a TimeoutError
        asks = isinstance(error, (OSError, ValueError, DescriptorsClosed)) and not of_signal
        lost = self._closed_by_others() if asks else []
        if lost or of_signal:
            self._break_off()
        if not self._closed:
            self.cursor.called = None
        if lost:
            raise DescriptorsClosed(telling.closed_by_others(lost)) from error

    def _closed_by_others(self) -> list[str]:
        if isinstance(self.pool, Pool):
            return self.pool.crew.closed_by_others()
        ring = self._custody.ring
        return [] if ring.closed or ring.arena.is_whole() else ["shared memory"]

    def _next_is_ready(self) -> bool:
        if not isinstance(self.pool, Pool) or not self._flights.in_flight or self.pool.closed:
            return False
        if self._flights.is_made_next():
            return True
        self.pool.catch_up()
        batch = self._flights.pick()
        return batch is not None and batch.phase in (Phase.READY, Phase.FAILED)

    def _next_on_host(self) -> Any:
        if spans.active is None and not is_profiling():
            if not self._map:
                return super().__next__()
            data = self._next_of_own()
            self._num_yielded += 1
            return data
        self._watched = True
        try:
            with Stage("next batch"):
                return super().__next__()
        finally:
            self._watched = False

    def _next_data(self) -> Any:
        if self._stream_ranks is None:
            return self._next_of_own()
        return self._stream_ranks.next(self._next_of_own, self._flights.ready, self._flights.end_early)

    def _next_of_own(self) -> Any:
        if self._custody.is_parked:
            raise StopIteration
        self._clock.enter()
        try:
            if self._ranks is not None and self._ranks.step():
                self._flights.end_early()
            if self.cursor.finished:
                self._end_or_raise()
            if self._loads_at_once:
                return self._load_at_once(self.pool)
            steering = self._steering
            if steering is not None:
                if self._clock.entered_at >= steering.auto.due_ns:
                    steering.steer(self._clock.entered_at)
                if self._flights.inline and not self._flights.in_flight:
                    try:
                        if self._num_yielded < steering.plain_until:
                            return self._load_at_once(steering.local)
                        return steering.load_inline(self._load_at_once, self._num_yielded)
                    except NotHere as problem:
                        steering.leave_to_workers(problem)
                elif steering.helps:
                    steering.lend_a_hand(self._watched)
                made = self._flights.take_made()
                if made is not None:
                    return self._hand_over_made(*made)
            arrived = self._arrivals.next(self._watched)
            if arrived is None:
                self._end_or_raise()
            batch, deliver = arrived[1], self._arrivals.deliver
            data, size = (in_stage("hand over", deliver) if self._watched else deliver)(*arrived)
            samples = batch.rows - batch.short_by - len(batch.bad_rows) if self._map else batch.rows_loaded
            return self._hand_over.give(data, samples, size, self.pool)
        except Exception as error:
            if self._options.story_file is not None and not isinstance(error, StopIteration):
                write_story(self._options.story_file, error, self._ledger.story)
            raise
        finally:
            self._clock.leave()

    def _break_off(self) -> None:
        """A signal's handler (Ctrl-C, an alarm) raised within next(), who knows where: nothing that is in flight can be trusted, and
        the loop has got what it had when it called, be it that this batch was just about to be handed over. May be begun again,
        wherever it was broken off itself."""
        called = self.cursor.called
        if called is None or self.cursor.finished:  # nothing was begun; or all is done, and said again when asked again
            return
        self._closed = True
        here = self.pool if isinstance(self.pool, LocalPool) else self._steering
        if here is not None:
            here.settle()
        yielded, self.cursor.delivered, self.cursor.streams = called
        self.cursor.broken_off = self.cursor.state(self._generators)
        self._goes_on_after = yielded
        self.cursor.called = None

    def _pick_up(self) -> None:
        """After next() was broken off: as after a resume, with fresh workers, behind what the loop has got."""
        self._break_off()  # where its end was not seen to
        if not self._closed:
            self.cursor.called = None
            return
        loader = self._loader_ref()
        yielded, state = self._goes_on_after, self.cursor.broken_off
        if yielded is None or state is None:
            raise LoaderClosed("this iterator was closed; make a new one with iter(loader)")
        if loader is None or self._queue is not None or self._world_size > 1:
            raise LoaderClosed(
                "the last next() of this iterator was broken off by an exception of a signal's handler (Ctrl-C, an alarm), so that nobody "
                "can tell what is still to come; make a new one with iter(loader)"
            )
        epochs = self._ledger.timing.epochs
        loader._go_back_to(state)  # not by way of load_state_dict: that is of the next iter(loader), and the user's
        try:
            self._begin_again(loader, state, state)
        finally:
            self._num_yielded, self._ledger.timing.epochs = yielded, epochs
        self._goes_on()

    def _hand_over_made(self, planned: PlannedBatch, data: Any, size: int) -> Any:
        self.cursor.delivered = self.cursor.delivered.add(planned)
        self._ledger.made_by_loop += 1
        if not self._flights.inline:
            self._flights.go_on()
        return self._hand_over.give_made(data, planned.rows, size or size_of(data), self.pool)

    def _load_at_once(self, pool: Any) -> Any:
        planned = self._at_once.take(pool)
        if planned is None:
            self._end_or_raise()
        return self._at_once.load(planned, pool, self.pool, self._watched)

    def _end_or_raise(self) -> NoReturn:
        self._clock.ending()
        if self._flights.planned and isinstance(self._flights.planned[0], BaseException):
            error = self._flights.planned.popleft()
            assert isinstance(error, BaseException)
            raise error
        if isinstance(self.pool, Pool) and self._map:
            self.pool.hear_inits(self._num_yielded)
        if not self.cursor.finished:
            self.cursor.sampler_epoch = self.cursor.sampler_epoch if self._asked is None else self._asked.epoch_now()
            if not self._num_yielded and self._desk.has_bad_of(self._ledger.timing.epochs):
                self._traps.nothing_came(self._desk.records[-1])
            self.cursor.finished = True  # from here on whatever is broken off is done when next() is called again
        if not self._persistent_workers and not self._custody.is_parked:
            parked = self._steering is not None and self._custody.park(self._next_epoch)
            if not parked:
                self._release()
        if not self._map:
            self._repair.check_at_the_end()
        raise StopIteration

    def waiting_now(self) -> str | None:
        """What everybody is doing, where the loop waits at this moment; may be asked from a signal handler."""
        since_ns = self._ledger.timing.waiting_since_ns
        if since_ns is None or self._closed or not self._flights.in_flight or not isinstance(self.pool, Pool):
            return None
        return self.pool.describe_wait(self._flights.waiting_for(), (time.perf_counter_ns() - since_ns) / 1e9)

    def state_dict(self) -> dict[str, Any]:
        return self.cursor.state(self._generators)
