"""PURE: what was measured in one window with one setting, and what follows from it: how many workers there is room for, and how far
ahead they may load."""

from __future__ import annotations

import math
from dataclasses import dataclass

from antifreeze.tuning.setting import WAITS_OUTSIDE, Kind, Setting

LEAST_COMPUTING = 0.005
"""A share that is measured as less is taken as this."""
HAND_OVER_S = 150e-6
"""About what handing a batch from a worker to the loop costs both of them."""
WORTH_HELPING_S = 100e-6
"""Beside a single worker the loop makes batches that take at least this; what it costs is measured, like everything."""
QUICK_BATCH_S = 0.002
"""A batch that loads in less is made by the loop too, while it would wait: what workers have ready meanwhile does not wait for long."""
LOOP_NEEDS_CORE = 0.3
BUSY_ENOUGH = 0.7


@dataclass(frozen=True)
class Measured:
    """One window with one setting; seconds are sums. `elapsed_s` is the loop's time, in next() (`waited_s`) and in its own code;
    `work_s` what loading took, `cpu_s` of it computing, `queued_s` without a core."""

    setting: Setting
    samples: int
    batches: int
    elapsed_s: float
    waited_s: float
    work_s: float
    cpu_s: float
    queued_s: float
    cores: int
    shared: bool = False  # others of this process need cores too, and have theirs
    batch_tasks: int = 1  # among how many workers one batch can be split
    batch_bytes: int = 0
    budget_bytes: int | None = None
    worker_bytes: int = 0  # of one worker, its own
    start_s: float = 0.0  # that the loop stands still for each worker that is started
    available_bytes: int | None = None

    @property
    def rate(self) -> float:
        return self.samples / max(self.elapsed_s, 1e-9)

    @property
    def waits(self) -> float:
        return min(1.0, self.waited_s / max(self.elapsed_s, 1e-9))

    @property
    def computing(self) -> float:
        """The share of its time that a sample needs a core for."""
        return min(1.0, (self.cpu_s + self.queued_s) / self.work_s) if self.work_s > 0 else 1.0

    @property
    def needs_core(self) -> float:
        """The same where cores are free: what it stood in the queue for one, other programs may have caused."""
        return min(1.0, self.cpu_s / (self.work_s - self.queued_s)) if self.work_s > self.queued_s else 1.0

    @property
    def without_core(self) -> float:
        return min(1.0, self.queued_s / self.work_s) if self.work_s > 0 else 0.0

    @property
    def batch_s(self) -> float:
        """What loading one takes."""
        return self.work_s / max(1, self.batches)

    @property
    def is_handed_over_slower(self) -> bool:
        """Than it is loaded."""
        return self.batch_s < HAND_OVER_S

    @property
    def busy_workers(self) -> int:
        """That would load as much if they always had something to do, but for a moment to breathe."""
        return max(1, math.ceil(self.work_s / max(self.elapsed_s, 1e-9) / BUSY_ENOUGH))


def most_workers(seen: Measured, places: int) -> int:
    """That there are cores, memory and places for; at least 1."""
    if seen.computing >= WAITS_OUTSIDE:
        by_cores = seen.cores - (_loop_share(seen) >= LOOP_NEEDS_CORE)
    else:
        by_cores = int(seen.cores / max(seen.needs_core, LEAST_COMPUTING))
    return max(1, min(by_cores, fitting_workers(seen, places)))


def fitting_workers(seen: Measured, places: int) -> int:
    """That there is memory for; at least 1. More of them than parts of batches in flight would have nothing to do."""
    most, depth = places, depth_within(seen)
    if depth is not None:
        most = min(most, depth * max(1, seen.batch_tasks))
    if seen.available_bytes is not None and seen.worker_bytes:
        more = seen.available_bytes // 2 // seen.worker_bytes
        most = min(most, max(seen.setting.workers, 1) + more)
    return max(1, most)


def depth_within(seen: Measured) -> int | None:
    """Batches that memory_budget allows besides the one the loop holds; at least 1."""
    if seen.budget_bytes is None or not seen.batch_bytes:
        return None
    return max(1, seen.budget_bytes // seen.batch_bytes - 1)


def inline_rate(seen: Measured) -> float:
    """Samples a second if the loop loaded them itself, with nothing handed over and no core to wait for."""
    loop_s = seen.elapsed_s - seen.waited_s
    return seen.samples / max(loop_s + seen.work_s - seen.queued_s, 1e-9)


def loop_helps_beside(seen: Measured) -> int:
    """Beside up to so many workers the loop, while it waits for a batch, had better make another one itself: where batches are quick and
    compute, there is a core for it, it has time left from handing over theirs, and no bound is set to how many are in memory."""
    batch_s = (seen.work_s - seen.queued_s) / max(1, seen.batches)
    if batch_s > QUICK_BATCH_S or seen.computing < WAITS_OUTSIDE or seen.budget_bytes is not None:
        return 0
    return min(seen.cores - 1, max(int(batch_s >= WORTH_HELPING_S), int(BUSY_ENOUGH * batch_s / max(HAND_OVER_S, 1e-9))))


def first_guess(seen: Measured, most: int) -> int:
    """Without workers: as many as would load a batch in the time the loop needs for one; of those that wait outside, not all at once."""
    loop_s = seen.elapsed_s - seen.waited_s
    needed = most if loop_s * most <= seen.work_s else math.ceil(seen.work_s / loop_s)
    if seen.computing < WAITS_OUTSIDE:
        needed = min(needed, max(8, 2 * seen.cores))
    return max(1, min(most, needed))


def _loop_share(seen: Measured) -> float:
    """How much of its time the loop would be at its own work, if all cores loaded for it."""
    loop_s = seen.elapsed_s - seen.waited_s
    return loop_s / max(loop_s, seen.work_s / max(1, seen.cores), 1e-9)


def why_as_it_is(seen: Measured) -> str:
    if seen.setting.kind is Kind.INLINE and seen.is_handed_over_slower:
        return f"a batch takes {seen.batch_s * 1e6:.0f} µs to load, and handing one over takes longer"
    return "nothing else promises more"
