"""num_workers="auto" at work: measures a window of batches, lets the tuner decide, and remembers what was decided and why.

    iterator ── every batch: is a window over? ──▶ Measured ──▶ tuner ──▶ Decision ──▶ iterator: resize the pool, load inline or not

1. One per loader; it outlives iterators and epochs, so what was learnt is not learnt again.
2. A window is time of the loop, not of the clock: what lies between two epochs, and single pauses of the user's, are no part of it.
   What was measured of one before a pause counts, so that a loop with many of them has windows too.
3. A window in which a worker was replaced, or nothing came for long, says nothing about its setting and is passed over. A trial of which
   TROUBLED windows were passed over, one after the other, ends without a word on it: else it might never end.
4. After a change the first batches are left out: they were loaded before it.
5. Loaders of one process that are iterated at the same time, which is within one window and epoch, share its cores (claims.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from operator import sub

from antifreeze.delivery.claims import register, shared_cores
from antifreeze.delivery.kept_memory import KeptMemory
from antifreeze.delivery.ledger import Decided, Ledger
from antifreeze.delivery.thread_use import ThreadUse
from antifreeze.options import Options
from antifreeze.supervisor.cgroup import available_memory_bytes
from antifreeze.tuning.decide import Decision, Tuner
from antifreeze.tuning.setting import INLINE, WAITS_OUTSIDE, Kind, Limits, Setting
from antifreeze.tuning.sharing import Claim
from antifreeze.tuning.window import Measured, loop_helps_beside

WINDOW_NS = 400_000_000
FIRST_WINDOW_NS = 200_000_000
SHORT_WINDOW_NS, SHORT_WINDOW_BATCHES = 80_000_000, 24
"""After so much of a trial it is seen whether it goes badly: then it ends."""
LEAST_BATCHES = 6
LEAST_INLINE = 2
SETTLE_NS = 100_000_000
LONG_BATCH_NS = 200_000_000
FEW_BATCHES_TIMES = 4
"""A window of fewer batches than it should have is over after so many times its length."""
WAVES, WAVES_TO_GO_BADLY = 5, 2
"""Workers that begin together end together, and batches come in waves as long as a task takes: a window has so many of them, or its rate is
where in a wave it began and ended. Of 256 threads with tasks of 160 ms some windows of 0.4 s had three times as much as others."""
LOOK_AGAIN_NS, LOOK_SOON_NS = 20_000_000, 2_000_000
PAUSE_NS, PAUSE_TIMES, AFTER_A_PAUSE = 500_000_000, 10, 8
TROUBLED = 3
KEPT_DECISIONS = 100


@dataclass(frozen=True)
class _Mark:
    """The sums at the beginning of a window."""

    samples: int
    batches: int
    waited_ns: int
    loop_ns: int
    work_ns: int
    cpu_ns: int
    queued_ns: int
    troubles: int

    def __sub__(self, other: _Mark) -> _Mark:
        return _Mark(*map(sub, astuple(self), astuple(other)))


_NOTHING = _Mark(0, 0, 0, 0, 0, 0, 0, 0)
"""Before the very first batch, where that one took so long that it is a window by itself."""


class Autopilot:
    def __init__(
        self, ledger: Ledger, options: Options, cores: Callable[[], int], limits: Limits, first: Setting, why_kind: str = ""
    ) -> None:
        self._ledger = ledger
        self.tuner = Tuner(limits, first)
        self.setting = first
        self.kind = limits.kinds[0]  # of its workers
        self._remember(first, f"nothing is measured yet{why_kind and f'; workers would be {self.kind.plural}: {why_kind}'}")
        ledger.undecided = True
        self.due_ns = 0
        self.active_s = 0.0
        self._options = options
        self._cores = cores
        self.batch_tasks = 1
        self.task_ns = 0  # what a worker needs for one task
        self.threads = ThreadUse()
        self.memory = KeptMemory(allowed=options.memory_budget_bytes is None)
        self.helps_beside = 0  # with up to so many workers the loop makes batches too, while it would wait for theirs
        self._mark: _Mark | None = None
        self._of = first  # the setting of that window
        self._began_ns = 0  # the window, or what comes of it after a pause or in another epoch
        self._last_look = _NOTHING
        self._before_pause = _NOTHING  # what was measured of the window that goes on
        self._settled_ns = 0
        self._settled_at = 1  # the batch after which a window may begin; the very first one is not like the others
        self._troubled = 0  # windows that were passed over, since the last one that was not
        self._computes = True
        self._last_loop_ns = 0
        self._started = 0  # workers, until the last change
        register(self)

    def __repr__(self) -> str:
        return f"<Autopilot: {self._ledger.decided[-1]}>"

    @property
    def may_inline(self) -> bool:
        return self.tuner.limits.inline

    def forbid_inline(self, why: str) -> None:
        limits = self.tuner.limits
        self.tuner.limits = Limits(False, limits.most, limits.kinds)
        if self.tuner.home.kind is Kind.INLINE:
            self.tuner = Tuner(self.tuner.limits, Setting(self.kind, 1))
        self._remember(self.tuner.home, why)

    def cannot(self, setting: Setting, why: str) -> None:
        """What was decided could not be had."""
        self.tuner.cannot(setting)
        self._remember(self.tuner.home, f"{setting} could not be had: {why}")

    def left(self, why: str) -> None:
        """Nothing will change any more."""
        self._ledger.decided.clear()
        self._remember(self.setting, why)
        self._ledger.undecided = False

    # --- windows ---

    def look_soon(self, now_ns: int) -> None:
        self.due_ns = now_ns + LOOK_SOON_NS

    def changed(self, in_flight: int) -> None:
        """Another setting is in force; so many batches were loaded for the one before."""
        self._mark, self._before_pause = None, _NOTHING
        self._settled_at = self._ledger.timing.batches + in_flight + 1
        costs = self._ledger.costs
        new, self._started = costs.started - self._started, costs.started
        self._settled_ns = self._loop_time() + SETTLE_NS + int(new * self._start_s * 1e9)

    def new_epoch(self) -> None:
        """What was begun of a window goes on; but who was iterated between the two epochs was not so at the same time."""
        self._began_ns = time.perf_counter_ns()

    def look(self, now_ns: int, setting: Setting) -> Decision | None:
        """At the beginning of next(), with the `setting` that is in force; a decision where a window is over."""
        self.active_s = now_ns / 1e9
        timing = self._ledger.timing
        self._begin_anew_after_a_pause()
        self.due_ns = now_ns + LOOK_AGAIN_NS
        if self._mark is not None and self._mark.troubles != self._troubles():
            self._mark, self._before_pause, self._troubled = None, _NOTHING, self._troubled + 1
            home = self.tuner.end_trial() if self._troubled >= TROUBLED else None
            if home is not None:
                self._troubled, self.setting = 0, home.setting
                return home
        if self._mark is not None and self._of != setting:
            self.changed(0)  # an epoch began with it
        if self._mark is None and timing.batches >= self._settled_at and self._loop_time() >= self._settled_ns:
            at_once = timing.batches == 1 and timing.waited_ns >= LONG_BATCH_NS
            self._mark = _NOTHING if at_once else self._marked() - self._before_pause
            self._began_ns, self._of = now_ns - (timing.waited_ns if at_once else 0), setting
        self._last_look = self._marked()
        if self._mark is None or not self._is_over(self._mark, setting):
            return None
        seen = self._seen(self._mark, setting)
        self._mark, self._before_pause, self._began_ns, self._troubled = self._marked(), _NOTHING, now_ns, 0
        self._computes = seen.computing >= WAITS_OUTSIDE
        self.helps_beside = loop_helps_beside(seen) if self.kind is Kind.PROCESS else 0
        decision = self.tuner.decide(seen)
        if self.tuner.why:
            self._remember(self.tuner.home, self.tuner.why)  # also where something else is tried already
        self.setting = decision.setting
        self._ledger.undecided &= decision.is_trial or decision.setting != setting
        return decision

    def _is_over(self, mark: _Mark, setting: Setting) -> bool:
        timing = self._ledger.timing
        elapsed_ns = self._loop_time() - mark.waited_ns - mark.loop_ns
        batches = timing.batches - mark.batches
        least_ns = FIRST_WINDOW_NS if len(self._ledger.decided) == 1 and setting == INLINE else WINDOW_NS
        least = LEAST_INLINE if setting == INLINE else LEAST_BATCHES
        wave_ns = 0 if setting == INLINE else self.task_ns
        whole_ns = max(least_ns, min(WAVES * wave_ns, FEW_BATCHES_TIMES * least_ns))
        if elapsed_ns < whole_ns:
            rate = (timing.samples - mark.samples) / max(1, elapsed_ns) * 1e9
            seen_early = elapsed_ns >= max(SHORT_WINDOW_NS, WAVES_TO_GO_BADLY * wave_ns) and batches >= SHORT_WINDOW_BATCHES
            if seen_early and self.tuner.goes_badly(setting, rate):
                return True
            return elapsed_ns >= least_ns and batches >= least and self.tuner.goes_well(setting, rate)
        return batches >= least or mark is _NOTHING or (batches >= 1 and elapsed_ns >= FEW_BATCHES_TIMES * least_ns)

    def _marked(self) -> _Mark:
        timing, costs = self._ledger.timing, self._ledger.costs
        return _Mark(
            timing.samples,
            timing.batches,
            timing.waited_ns,
            timing.loop_ns,
            costs.fetch_ns + costs.collate_ns + costs.write_ns,
            costs.cpu_ns,
            costs.queued_ns,
            self._troubles(),
        )

    def _loop_time(self) -> int:
        return self._ledger.timing.waited_ns + self._ledger.timing.loop_ns

    @property
    def _start_s(self) -> float:
        """What the loop stands still for a worker that is started; and about what a worker needs of the cores to begin."""
        costs = self._ledger.costs
        return costs.starting_s / max(1, costs.started)

    def _troubles(self) -> int:
        return self._ledger.costs.restarts + self._ledger.costs.stalls

    def _begin_anew_after_a_pause(self) -> None:
        """A single long stay in the user's code (a validation, a checkpoint) is not how fast the loop is; and what was loaded meanwhile
        comes faster than it is loaded."""
        timing = self._ledger.timing
        stay_ns, self._last_loop_ns = timing.loop_ns - self._last_loop_ns, timing.loop_ns
        typical_ns = timing.loop_ns / max(1, timing.batches)
        if stay_ns > max(PAUSE_NS, PAUSE_TIMES * typical_ns):
            measured = self._before_pause if self._mark is None else self._last_look - self._mark
            self.changed(AFTER_A_PAUSE)
            self._before_pause = measured

    def _seen(self, mark: _Mark, setting: Setting) -> Measured:
        timing, costs, options = self._ledger.timing, self._ledger.costs, self._options
        waited_s = (timing.waited_ns - mark.waited_ns) / 1e9
        loop_s = (timing.loop_ns - mark.loop_ns) / 1e9
        workers = list(costs.memory.workers.values())
        cores, shared = shared_cores(self, self._cores(), self._began_ns)
        return Measured(
            setting=setting,
            samples=timing.samples - mark.samples,
            batches=timing.batches - mark.batches,
            elapsed_s=waited_s + loop_s,
            waited_s=waited_s,
            work_s=(costs.fetch_ns + costs.collate_ns + costs.write_ns - mark.work_ns) / 1e9,
            cpu_s=(costs.cpu_ns - mark.cpu_ns) / 1e9,
            queued_s=(costs.queued_ns - mark.queued_ns) / 1e9,
            cores=cores,
            shared=shared,
            batch_tasks=self.batch_tasks,
            batch_bytes=timing.delivered_bytes // max(1, timing.batches),
            budget_bytes=options.memory_budget_bytes,
            worker_bytes=max((worker.bytes for worker in workers), default=0),
            start_s=self._start_s,
            available_bytes=available_memory_bytes(),
        )

    def _remember(self, setting: Setting, why: str) -> None:
        decided, name = self._ledger.decided, str(setting)
        if len(decided) < 2 or decided[-1].setting != name:
            decided.append(Decided(self._ledger.timing.batches, name, setting.workers, why))
            del decided[1 : -(KEPT_DECISIONS - 1)]

    def claim(self, now_ns: int) -> Claim:
        """The cores that its workers compute on while it is iterated."""
        return Claim(self.setting.workers, 1.0 if self._computes else 0.0, now_ns / 1e9 - self.active_s)
