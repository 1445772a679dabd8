"""num_workers="auto" in one iterator: what the autopilot decides is taken up between two batches, by workers or in the loop's own process.

1. Batches are loaded here while workers come up, wherever that is faster, and while the loop would wait for quick ones; the bytes are
   the same.
2. A batch that cannot be loaded here is left to a worker, whose error is the one that counts. What a signal's handler raises while it is
   loaded (an alarm) is no error of the batch's, and the user's at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from antifreeze.delivery.autopilot import Autopilot
from antifreeze.delivery.flights import Flights
from antifreeze.delivery.job import Job, Seeding
from antifreeze.delivery.ledger import Ledger
from antifreeze.delivery.local_pool import LocalPool
from antifreeze.delivery.stages import in_stage
from antifreeze.delivery.traps import Traps
from antifreeze.errors import WorkerStartFailed
from antifreeze.plan.map_plan import PlannedBatch
from antifreeze.signals import came_from_signal
from antifreeze.supervisor.pool import Pool
from antifreeze.tuning.setting import INLINE, Kind, Setting
from antifreeze.worker.task import FetchError

GATHERED_PLAINLY = 64
"""Batches of rows that are gathered, after which it is asked whether they still are."""
GROWS_FOR_S, RESTS = 0.1, 1.0
"""The loop stands still while workers are forked, which takes 5 to 50 ms each: of very many, so long at a time; then it goes on for so many
times as long as that took."""


class NotHere(Exception):
    """A batch that could not be loaded in this process, and why."""


class Steering:
    def __init__(self, auto: Autopilot, flights: Flights, job: Job, ledger: Ledger, traps: Traps) -> None:
        self.auto = auto
        self._flights = flights
        self._job = job
        self._ledger = ledger
        self._traps = traps
        self.local: LocalPool | None = None  # what loads in this process
        self.plain_until = 0  # up to that batch of the pass, it makes the next one with nothing to be seen to
        self._unwatched_until = 0  # the same for those whose threads would be seen to, by the loader's batches so far
        self._rests_until_ns = 0  # from starting more of very many workers
        flights.inline = auto.may_inline  # until workers are there

    def __repr__(self) -> str:
        return f"<Steering: {'inline' if self._flights.inline else f'{self._flights.workers} workers'} now, {self.auto!r}>"

    @property
    def _pool(self) -> Pool:
        pool = self._flights.pool
        assert isinstance(pool, Pool)
        return pool

    @property
    def helps(self) -> bool:
        """Whether the loop makes batches too, while it waits for those of workers."""
        flights = self._flights
        return not flights.inline and flights.workers <= self.auto.helps_beside and self.auto.may_inline

    def new_epoch(self) -> None:
        self.local, before = None, self._flights.inline
        self._see_to_the_next()
        self.auto.new_epoch()
        self._flights.inline = self.auto.may_inline and (self.auto.setting == INLINE or not self._pool.ready)
        if before != self._flights.inline:
            self._other_batches()

    def _other_batches(self) -> None:
        """Are made here from now on, or none: what was counted of those before is no measure for them."""
        self._see_to_the_next()
        self.auto.threads.look_away()
        self.auto.memory.look_away()

    def _see_to_the_next(self) -> None:
        self.auto.threads.give_back_unwatched(max(0, self._unwatched_until - self._ledger.timing.batches))
        self.plain_until = self._unwatched_until = 0

    def recruit(self) -> None:
        """What loads here for now may be loaded by workers soon."""
        if self._flights.inline:
            self._ask_for(self._pool, self.auto.setting)

    def steer(self, now_ns: int) -> None:
        """Between two batches, now and then: what has been measured, and what follows."""
        auto, pool = self.auto, self._pool
        if self._flights.inline:
            pool.look_after()
        self._look_at_own_batches()
        if pool.growth_failed is not None:
            auto.cannot(Setting(auto.kind, max(1, pool.size + 1)), pool.growth_failed)
            pool.growth_failed, auto.setting = None, auto.tuner.home
            self._ask_for(pool, auto.setting)
        self._take_up(pool)
        in_force = INLINE if self._flights.inline else Setting(auto.kind, self._flights.workers)
        if in_force != auto.setting or (pool.to_come and not self._flights.inline):
            self._ask_for(pool, auto.setting)
            auto.look_soon(now_ns)  # those that were asked for are on their way
            return
        auto.task_ns = self._flights.task_ns()
        decision = auto.look(now_ns, in_force)
        if decision is not None and decision.setting != in_force:
            self._ask_for(pool, decision.setting)
            self._take_up(pool)

    def _look_at_own_batches(self) -> None:
        """What those that are made here take, and what could be done about it."""
        timing, costs, inline = self._ledger.timing, self._ledger.costs, self._flights.inline
        if inline and self.auto.threads.look(timing.batches, costs.fetch_ns + costs.collate_ns + costs.write_ns):
            self._see_to_the_next()
        if self.auto.memory.look(timing.batches if inline else self._ledger.made_by_loop):
            self._ledger.keeps_memory = self.auto.memory.kept_because
            self.auto.changed(0)  # what was measured before says nothing about now

    def _ask_for(self, pool: Pool, setting: Setting) -> None:
        """Workers for `setting`: more come up while what is there goes on; of very many, some at a time."""
        if setting.kind is Kind.INLINE:
            return
        if not pool.size:
            self._job.look_for_traps(self._traps, setting.workers)
        began_ns = time.perf_counter_ns()
        if not pool.to_come or pool.asked_for != setting.workers:
            pool.ask_for(setting.workers)
        elif began_ns < self._rests_until_ns:
            return
        if pool.to_come:
            pool.grow_on(GROWS_FOR_S)
            ended_ns = time.perf_counter_ns()
            self._rests_until_ns = ended_ns + int(RESTS * (ended_ns - began_ns))

    def _take_up(self, pool: Pool) -> None:
        """The setting that was decided on, once its workers are there, or the first of them where the loop loads alone; those that are too
        many go."""
        auto, flights = self.auto, self._flights
        setting, before = auto.setting, (flights.inline, flights.workers)
        if setting == INLINE:
            flights.inline = True
        elif pool.size and (flights.inline or not pool.to_come) and pool.ready >= min(setting.workers, pool.size):
            flights.workers, flights.inline = setting.workers, False
            if pool.size > setting.workers:
                pool.resize(setting.workers)
        if before != (flights.inline, flights.workers):
            self._other_batches()
            auto.changed(len(flights.in_flight))
            if not flights.inline:
                flights.go_on()
        elif setting == INLINE == auto.tuner.home and pool.size and not pool.state.batches:
            pool.resize(0)

    def lend_a_hand(self, watched: bool) -> None:
        """While what comes next is still with the workers, the loop makes batches that nobody has begun."""
        flights, pool = self._flights, self._pool
        while flights.in_flight and not flights.is_made_next() and flights.pick() is None:
            pool.catch_up()
            planned = flights.take_one_to_make() if flights.pick() is None else None
            if planned is None:
                return
            try:
                flights.made(planned, *self._load_seen_to(self.local or self._here(), partial(self._make, planned, watched)))
            except NotHere as problem:
                self.leave_to_workers(problem)
                return

    def _make(self, planned: PlannedBatch, watched: bool, pool: LocalPool) -> tuple[Any, int]:
        try:
            load = in_stage("load", pool.load) if watched else pool.load
            return load(planned.number, planned.indices, planned.position, planned.rows)
        except BaseException as error:
            self._flights.not_made(planned)
            if not isinstance(error, FetchError):
                raise
            if came_from_signal(error):
                raise (error.__cause__ or error) from None
            raise NotHere(error.failure.message) from None

    def load_inline(self, load: Callable[[LocalPool], Any], number: int) -> Any:
        """The next batch, which is this one of its pass, as `load` makes it here, with no workers at work. The sampler is asked before: it
        runs here with any number of workers, so it has all threads, and what it computes is nothing of the batch's."""
        local = self.local or self._here()
        self._flights.plan_next(as_list=not local.gathers)
        data = self._load_seen_to(local, load)
        if local.gathers:
            self.plain_until = number + GATHERED_PLAINLY
        elif not self._job.as_found.is_noting:
            unwatched = self.auto.threads.take_unwatched()
            self.plain_until, self._unwatched_until = number + 1 + unwatched, self._ledger.timing.batches + unwatched
        return data

    def _load_seen_to(self, local: LocalPool, load: Callable[[LocalPool], Any]) -> Any:
        """With the bits that a worker would give it (thread_use.py), and what it opens noted. Where rows are gathered no code of the user's
        runs."""
        if local.gathers:
            return load(local)
        found, here = self._job.as_found, partial(load, local)
        noting = partial(found.noting, self._job.dataset, here) if found.is_noting else here
        return self.auto.threads.load(noting, alone=self._flights.inline)

    def settle(self) -> None:
        if self.local is not None:
            self.local.settle()

    def _here(self) -> LocalPool:
        cursor = self._flights.cursor
        seeding = Seeding(cursor.base_seed, cursor.epoch, cursor.shared_seed)
        self.local = self._job.local_pool(seeding, self._pool.ring, self._ledger)
        self._job.as_found.begin_pass()
        self.auto.threads.begin_pass()
        return self.local

    def leave_to_workers(self, problem: NotHere) -> None:
        auto, flights, pool = self.auto, self._flights, self._pool
        auto.forbid_inline(f"loading in the loop failed ({problem}), and a worker may be what it takes")
        auto.setting, flights.inline = auto.tuner.home, False
        self._other_batches()
        self._ask_for(pool, auto.setting)
        flights.workers = auto.setting.workers
        auto.changed(0)
        if not pool.size:
            raise WorkerStartFailed(f"no worker could be started: {pool.growth_failed}")
        flights.go_on()
