"""What is counted while a loader runs: a few additions per batch, for all its iterators and epochs together."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from antifreeze.delivery.bad_samples import BadSampleRecord
from antifreeze.delivery.local_pool import Learnt
from antifreeze.events import Story
from antifreeze.supervisor.work import Costs
from antifreeze.worker.effort import Usage
from antifreeze.worker.held_loop import HeldLoop
from antifreeze.worker.seeding import SampleSeeds


@dataclass
class OwnUse:
    """What the kernel has counted of this whole process between the first batch of each epoch and its end: the user's code, his threads
    and worker threads included. What lies between two epochs does not count, nor what came after the last look (every so many batches,
    and at the end of an epoch) where a loop was left early."""

    batches: int = 0
    faults: int = 0
    switches: int = 0
    _since: tuple[int, Usage] | None = None

    def begin(self, batches: int) -> None:
        self._since = (batches, Usage.now())

    def look(self, batches: int) -> None:
        """`batches`: delivered so far."""
        if self._since is None:
            return
        now, (before, then) = Usage.now(), self._since
        used = now.since(then)
        self.batches += batches - before
        self.faults += used.faults
        self.switches += used.switches
        self._since = (batches, now)

    def rest(self) -> None:
        self._since = None


@dataclass
class Timing:
    """The loop's side of the clock."""

    waited_ns: int = 0
    loop_ns: int = 0
    epochs: int = 0
    batches: int = 0
    samples: int = 0
    delivered_bytes: int = 0
    largest_bytes: int = 0  # of one batch
    first_batch_ns: int | None = None
    longest_wait_ns: int = 0
    waiting_since_ns: int | None = None  # on the clock of perf_counter; None while the user's code runs
    startup_ns: int = 0
    growth_ns: int = 0  # of startup_ns: more workers were begun, in the middle of an epoch
    restarts_ns: int = 0
    stalls_ns: int = 0
    in_stages_elsewhere_ns: int = 0  # of Costs.in_stages_s, what belongs to the three above
    own: OwnUse = field(default_factory=OwnUse)


@dataclass(frozen=True)
class Decided:
    """With num_workers="auto": what came to stay, from this batch on, and why."""

    batch: int
    setting: str
    workers: int
    why: str

    def __str__(self) -> str:
        return f"{self.setting} since batch {self.batch:,}, because {self.why}"


REMEMBERED = 4
"""Epochs: so that of two kinds that take turns each was seen twice, and what happens once is outvoted."""


@dataclass
class Warmth:
    """Batches that were loaded before their epoch began, and what was learnt from it (next_epoch.py)."""

    used: int = 0
    dropped: int = 0
    misses: int = 0  # wrong guesses in a row
    rests_for: int = 0  # epochs, of which nothing is guessed
    words_between: deque[int] = field(default_factory=partial(deque, maxlen=REMEMBERED))  # that the process's generator gave, each time
    impossible: str = ""  # why

    @property
    def why_not(self) -> str:
        """Nothing is guessed now; empty where it is."""
        if self.impossible or not self.rests_for:
            return self.impossible
        return f"the order of the next epoch was otherwise than foreseen, {self.misses} times in a row"


@dataclass
class Ledger:
    timing: Timing = field(default_factory=Timing)
    costs: Costs = field(default_factory=Costs)
    story: Story = field(default_factory=Story)
    bad_samples: list[BadSampleRecord] = field(default_factory=list)
    raised: list[BadSampleRecord] = field(default_factory=list)
    most_in_flight_bytes: int = 0
    made_by_loop: int = 0  # batches, while it waited for those of workers
    keeps_memory: str = ""  # why freed memory of the loop's process is kept (kept_memory.py)
    warmth: Warmth = field(default_factory=Warmth)
    decided: list[Decided] = field(default_factory=list)  # oldest first; empty where the number of workers was given
    undecided: bool = False  # something was worth a trial after each window so far
    local_seeds: SampleSeeds | None = None  # of the last epoch loaded in this process: what the data set draws
    held_loop: HeldLoop | None = None  # of coroutines that were loaded in this process
    learnt: list[Learnt] = field(default_factory=list)  # in epochs that have ended; whoever takes one has it for himself


LONG_WAIT_NS = 50_000_000
"""A shorter wait is not asked whether a worker was replaced, stuck, or begun, in the meantime."""


class LoopClock:
    """One iterator's stopwatch: inside next(), or in the user's code.

    iter() ── began … made ──   next() ── enter … leave ── the user's code ── enter … leave ── …
    └────────── start-up: both, for the first batch of an epoch ──────┘                 and the next() that ends it
    """

    def __init__(self, timing: Timing, costs: Costs, alone: bool = False) -> None:
        """`alone`: without workers the first batch of an epoch is a batch like any other."""
        self._alone = alone
        self._timing = timing
        self._costs = costs
        self._began_at: int | None = time.perf_counter_ns()
        self._made_in = 0
        self.entered_at = 0
        self._left_at: int | None = None
        self._at_edge = True
        self._before = self._so_far()

    def _so_far(self) -> tuple[int, int, float, float]:
        costs = self._costs
        return costs.restarts, costs.stalls, costs.in_stages_s, costs.starting_s

    def new_epoch(self) -> None:
        self._left_at = None
        self._at_edge = True
        self._timing.own.rest()
        self._timing.epochs += 1
        if self._began_at is None:
            self._began_at = time.perf_counter_ns()
            self._before = self._so_far()

    def made(self) -> None:
        """iter() is about to return."""
        if self._began_at is not None:
            self._made_in = time.perf_counter_ns() - self._began_at

    def enter(self) -> None:
        timing = self._timing
        self.entered_at = timing.waiting_since_ns = now = time.perf_counter_ns()
        if self._left_at is not None:
            timing.loop_ns += now - self._left_at

    def ending(self) -> None:
        """This next() finds the end of the epoch."""
        self._timing.own.look(self._timing.batches)
        self._timing.own.rest()
        self._before = self._so_far()
        self._at_edge = True

    def leave(self) -> None:
        now = time.perf_counter_ns()
        timing = self._timing
        waited = now - self.entered_at
        if self._at_edge:
            waited += self._made_in
            self._edge(waited)
        elif waited > LONG_WAIT_NS:
            self._long(waited)
        timing.waited_ns += waited
        timing.waiting_since_ns = None
        timing.longest_wait_ns = max(timing.longest_wait_ns, waited)
        self._left_at = now

    def _edge(self, waited: int) -> None:
        timing, costs = self._timing, self._costs
        if self._began_at is not None:
            timing.own.begin(timing.batches)
            timing.first_batch_ns = waited if timing.first_batch_ns is None else timing.first_batch_ns
        timing.startup_ns += self._made_in if self._alone else waited
        if not self._alone:
            timing.in_stages_elsewhere_ns += int((costs.in_stages_s - self._before[2]) * 1e9)
        self._at_edge, self._made_in, self._began_at = False, 0, None
        self._before = self._so_far()

    def _long(self, waited: int) -> None:
        restarts, stalls, _, starting_s = self._before
        timing, costs = self._timing, self._costs
        if costs.restarts > restarts:
            timing.restarts_ns += waited
        elif costs.stalls > stalls:
            timing.stalls_ns += waited
        else:
            if costs.starting_s > starting_s:
                growth_ns = min(waited, int((costs.starting_s - starting_s) * 1e9))
                timing.startup_ns += growth_ns
                timing.growth_ns += growth_ns
                self._before = self._so_far()
            return
        timing.in_stages_elsewhere_ns += waited
        self._before = self._so_far()
