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

import math
import os
import time
from collections.abc import Callable, Collection
from typing import Any

from antifreeze.errors import LoaderClosed, LoaderTimeout
from antifreeze.events import Happening, Story
from antifreeze.linux import give_free_memory_back
from antifreeze.options import Options
from antifreeze.slots.ring import Ring
from antifreeze.supervisor import telling
from antifreeze.supervisor.acting import Hands
from antifreeze.supervisor.blame import Blame
from antifreeze.supervisor.crew import Crew
from antifreeze.supervisor.deadlines import Deadlines
from antifreeze.supervisor.hearing import Ears
from antifreeze.supervisor.policy import stall_intervals_s
from antifreeze.supervisor.replacing import Replacing
from antifreeze.supervisor.starting import Starter
from antifreeze.supervisor.state import PoolState
from antifreeze.supervisor.tasks import Batch
from antifreeze.supervisor.voice import Voice
from antifreeze.supervisor.watch import Watch
from antifreeze.supervisor.work import Content, Costs, Jobs, StreamStart
from antifreeze.supervisor.workshop import Workshop
from antifreeze.worker.main import WorkerSpec
from antifreeze.worker.turns import Turns, Usage

TICK_S = 0.25
HEDGE_TICK_S = 0.05
INITS_S = 0.5
"""An epoch that has ended waits so long at most for workers that were not needed to say whether worker_init_fn went well."""
LOOK_EVERY_S, LOOK_AT_ONE_S = 0.05, 0.001
"""Every worker's journal is looked at so often at most, however many messages wake the loop; of hundreds of them, more rarely."""

_CLOSED_MEANWHILE = "this iterator was closed while next() waited: by another thread, by a signal's handler, or by the interpreter's exit"


class Pool:
    def __init__(
        self,
        context: Any,
        spec: WorkerSpec,
        places: int,
        ring: Ring,
        options: Options,
        costs: Costs,
        story: Story,
        use_server: bool = False,
        begin_with: int | None = None,
        usage: Usage | None = None,
    ) -> None:
        """`spec`: of the first worker. `places`: for as many as there can ever be, of which `begin_with` are started (default: all).
        `usage`: workers are threads, and this is what is known of the random generators they use."""
        self.ring = ring
        self.options = options
        self.costs = costs
        self.story = story
        self.state = PoolState(places if begin_with is None else begin_with, options.forgives)
        self.crew = Crew(places, ring, use_server, threads=usage is not None)
        self._turns = None if usage is None else Turns(usage)
        if self._turns is None:
            costs.tally.follow(self.crew.journal)
        self._watch = Watch(self.crew.journal, places)
        self._voice = Voice(story)
        self._tick_s = HEDGE_TICK_S if options.hedge else TICK_S
        self._looked_s = 0.0
        self._resolved = 0  # batches of this epoch
        self.asked_for, self.to_come = len(self.state.staying()), 0  # workers, and those of them that are not started yet
        jobs = Jobs()
        self.contents, self.streams, self.layouts, self.collated = jobs.contents, jobs.streams, jobs.layouts, jobs.collated
        shop = Workshop(self.state, jobs, self.crew, ring, options, costs, self._watch, self._voice)
        self._hands = Hands(shop)
        self._starter = Starter(shop, self._hands, context, spec, self._turns)
        self._blame = Blame(shop, self._starter)
        self._replacing = Replacing(shop, self._hands, self._starter, self._blame)
        self._ears = Ears(shop, self._hands, self._starter, self._replacing)
        self._deadlines = Deadlines(shop, self._hands, self._starter, self._blame, self._replacing, self._ears)

    def __repr__(self) -> str:
        live = sum(worker is not None for worker in self.crew.workers)
        return f"<Pool {self.size} workers: {live} live, {self.costs.restarts} restarts, {self.state!r}>"

    # --- life ---

    def start(self) -> None:
        if self._starter.forks:
            give_free_memory_back()
        self._replacing.start_all(self.state.staying())

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

    @property
    def growth_failed(self) -> str | None:
        """Why the last worker that was asked for could not be had."""
        return self._replacing.growth_failed

    @growth_failed.setter
    def growth_failed(self, why: str | None) -> None:
        self._replacing.growth_failed = why

    def resize(self, count: int) -> None:
        """Between tasks: `count` workers from now on, as far as there is room for them. Whoever is bound to its worker cannot be resized,
        and none can stay only where nothing is being loaded."""
        self._check_usable()
        if count < 1 and any(not batch.discarded for batch in self.state.batches.values()):
            raise ValueError(f"{len(self.state.batches)} batches are being loaded: a pool without workers would never end them")
        for number in reversed(self.state.staying()[max(0, count) :]):
            self._replacing.retire(number)
        self.ask_for(count)
        self.grow_on(math.inf)

    def ask_for(self, count: int) -> None:
        """At least so many: those that are not there are to come (grow_on), and none beyond them."""
        self._check_usable()
        self.asked_for, self.to_come = count, max(0, count - self.size)
        if self.to_come:
            self.growth_failed = None

    def grow_on(self, within_s: float) -> None:
        """More of those that are still to come; one at least, however little time there is."""
        began_s, took_s = time.monotonic(), 0.0
        while self.to_come and took_s <= within_s:
            self.to_come -= 1
            if self._replacing.add_worker():
                self.costs.started += 1
            else:
                self.to_come = 0
            took_s = time.monotonic() - began_s
        self.costs.starting_s += took_s

    def look_after(self) -> None:
        """While the loop does not wait for the pool: what has happened, and who has been at it for too long."""
        self.catch_up()
        self._deadlines.check()

    def look_at_memory(self) -> bool:
        """From time to time; whether it was time."""
        if self._turns is not None or not self.costs.memory.due(time.monotonic()):
            return False  # threads have no memory of their own
        workers = [(number, worker.pid) for number, worker in enumerate(self.crew.workers) if worker is not None and worker.ready]
        if not workers:
            return False  # one that imports torch right now does not grow by its samples
        self._replacing.oom.look()
        self.costs.memory.look(workers, lambda number: self.crew.journal.row(number).read().samples)
        return True

    def close(self) -> None:
        """May be called twice."""
        self.crew.close()

    @property
    def closed(self) -> bool:
        return self.crew.closed

    def _check_usable(self) -> None:
        if self.crew.owner_pid != os.getpid():
            raise LoaderClosed(
                f"this iterator belongs to process {self.crew.owner_pid}; make a new one with iter(loader) in process {os.getpid()}"
            )
        if self.closed:
            raise LoaderClosed("this iterator was closed; make a new one with iter(loader)")

    # --- giving out ---

    def submit(self, number: int, content: Content, rows: int, tasks: int, worker: int | None, stream: int | None = None) -> None:
        self.contents[number] = content
        self._hands.perform(self.state.submit(number, self.ring.take(), rows, tasks, stream=stream, worker=worker))

    def fill_row(self, number: int, row: int, index: Any) -> None:
        self.contents[number].indices[row] = index
        self._hands.perform(self.state.fill_row(number, row))

    def reload(self, number: int, indices: Any, rows: int, offsets: list[int] | None = None) -> None:
        self.contents[number].indices, self.contents[number].offsets = indices, offsets
        self._hands.perform(self.state.reload(number, rows))

    def begin_epoch(self, spec: WorkerSpec, ahead: Collection[int] = ()) -> None:
        """Persistent workers go on; what is left of the last epoch is dropped, but not the batches `ahead`: they are of this one."""
        self._starter.renew(spec)
        self._resolved = 0
        self._ears.drain(0)
        self._hands.take_back_all()
        self._hands.perform(self.state.discard_all(but=ahead))
        for number in self.contents.keys() - self.state.batches.keys():
            del self.contents[number]
        self.streams.clear()
        for number in range(len(self.crew.workers)):
            self._hands.begin_epoch(number, spec)

    def open_streams(self, starts: list[StreamStart]) -> None:
        for start in starts:
            self.streams[start.stream] = start
            self._hands.open_stream(start)

    # --- waiting ---

    def wait_ready(self) -> int:
        """Until a worker has run worker_init_fn: the mask of generators that are the user's."""
        self._wait(lambda: self._ears.user_seeded, "the first worker to be ready", None)
        assert self._ears.user_seeded is not None
        return self._ears.user_seeded

    def _raise_init_failure(self, before: int) -> None:
        """worker_init_fn raised in a worker, which others do the work of: told when it would have been its turn, as with torch."""
        told = self._replacing.init_failures
        for failure in [failure for failure in told if failure.worker is None or failure.worker <= before]:
            told.remove(failure)
            raise failure.to_exception()

    def hear_inits(self, workers: int) -> None:
        """At the end of an epoch: what worker_init_fn did in the first `workers` workers, where they tell soon."""
        if self.closed or self._starter.spec.worker_init_fn is None:
            return
        if self._turns is not None:
            self._turns.open()
        try:
            self._wait_for_inits(workers, time.monotonic() + INITS_S)
        finally:
            if self._turns is not None:
                self._turns.close()
        self._ears.drain(0)
        self._raise_init_failure(before=workers)

    def _wait_for_inits(self, workers: int, deadline_s: float) -> None:
        while any(not worker.ready for worker in self.crew.workers[:workers] if worker is not None) or self._awaits_birth(workers):
            if time.monotonic() >= deadline_s:
                return
            self._ears.drain(0.05)

    def _awaits_birth(self, workers: int) -> bool:
        nursery = self.crew.nursery
        return nursery is not None and any(number < workers for number in nursery.missing)

    def catch_up(self) -> None:
        """Handles what has arrived, without waiting."""
        self._check_usable()
        self._ears.drain(0)

    def wait_resolved(self, pick: Callable[[], Batch | None], waiting_for: Callable[[], str], timeout_s: float | None) -> Batch:
        """Until `pick` finds a batch that is no longer loading."""
        if self._replacing.init_failures:
            self._raise_init_failure(before=self._resolved)
        found: Batch = self._wait(pick, waiting_for, timeout_s)
        self._resolved += 1
        return found

    def _wait(self, found: Callable[[], Any], waiting_for: Callable[[], str] | str, timeout_s: float | None) -> Any:
        self._check_usable()
        if (result := found()) is not None:
            return result
        self._ears.drain(0)
        if (result := found()) is not None:
            return result
        began_s = time.monotonic()
        if self._turns is not None:
            self._turns.open()
        try:
            return self._wait_long(found, waiting_for, timeout_s, began_s)
        except BaseException as error:
            self.costs.stalls += 1  # whoever waited got nothing
            if self.closed and isinstance(error, (OSError, ValueError)):  # of a descriptor that is no more
                raise LoaderClosed(_CLOSED_MEANWHILE) from None
            raise
        finally:
            self.costs.blocked_s += time.monotonic() - began_s
            if self._turns is not None:
                self._turns.close()
                self.costs.taking_turns = self._turns.usage.names()

    def _wait_long(self, found: Callable[[], Any], waiting_for: Callable[[], str] | str, timeout_s: float | None, began_s: float) -> Any:
        reports = 0
        while True:
            self._hands.perform(self.state.recalls())
            self._ears.drain(self._tick_s if timeout_s is None else min(self._tick_s, timeout_s))
            if self.closed:
                raise LoaderClosed(_CLOSED_MEANWHILE)
            if (result := found()) is not None and (self._turns is None or self._turns.try_close(self._tick_s)):
                return result
            waited_s = time.monotonic() - began_s
            reason = waiting_for if isinstance(waiting_for, str) else waiting_for()
            first_s = self.options.stall_report_s
            if first_s is not None and waited_s >= stall_intervals_s(first_s, reports):
                reports += 1
                self._report_stall(reason, waited_s)
            if time.monotonic() - self._looked_s >= max(LOOK_EVERY_S, LOOK_AT_ONE_S * len(self.crew.workers)):
                self._looked_s = time.monotonic()
                self._deadlines.check()
                self.look_at_memory()
                if self.options.hedge:
                    self._deadlines.hedge_late()
            if timeout_s is not None and waited_s >= timeout_s:
                raise LoaderTimeout(f"DataLoader timed out after {timeout_s:g} seconds\n{self.describe_wait(reason, waited_s)}")

    def _report_stall(self, reason: str, waited_s: float) -> None:
        text = self.describe_wait(reason, waited_s)
        self.costs.stalls += 1
        self._voice.say(Happening.STALL, text)

    def describe_wait(self, reason: str, waited_s: float) -> str:
        """What everybody is doing, for a stall report or a timeout."""
        now_s = time.monotonic()
        seen = [
            (worker, self._blame.named(look.entry), now_s - look.since_s, self._blame.path_of(look.entry))
            for number, worker in enumerate(self.crew.workers)
            if worker is not None
            for look in [self._watch.look(number, now_s)]
        ]
        return telling.waiting(reason, waited_s, seen, self.options.sample_timeout_s)
