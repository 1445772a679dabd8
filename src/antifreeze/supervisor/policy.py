"""Numbers that decide: how a batch is split, how many are in flight, how often a worker may be replaced. Pure."""

from __future__ import annotations

from collections import deque
from math import inf, sqrt

TASK_NS = 3_000_000
"""A task shorter than this is not worth splitting further: handing one over costs some ten microseconds on each side."""

LARGE_BATCH_BYTES = 16 << 20
MANY_WORKERS = 8
SPLIT_BATCHES = 6
"""With batches split among workers, about this many in flight keep all of them busy: where batches are large, more tasks of each are
better than more batches."""

THREAD_TASK_NS = 100_000_000
"""Handing a task to a thread costs all threads: there is one GIL. So where samples take long (they wait), a thread gets many at once."""

LONG_SAMPLE_NS, TOGETHER_IN_THREADS = 250_000_000, 16

AHEAD_BYTES = 64 << 20
"""What batches in flight may take for the sake of longer tasks: each one costs the loop some forty microseconds (decision 0026)."""

MANY_TO_HEAR, RESULT_NS, LAST_RESULT_NS = 16, 3_000_000, 1_000_000
"""Of more workers than that the loop would hear nothing but results, and each costs a worker that shares its core with many: a task
takes so long for each of them, and there are some hundred a second in all. Where the epoch ends tasks are shorter, so that workers do
not wait long for the last of them."""


def few_or_small(batch_bytes: int, budget_bytes: int | None = None) -> int:
    """How many batches may be in flight so that tasks need not be cut shorter: few of them, or as many as are small."""
    batches = max(SPLIT_BATCHES, AHEAD_BYTES // batch_bytes) if batch_bytes else SPLIT_BATCHES
    return within_budget(batches, batch_bytes, budget_bytes)


def tasks_per_batch_in_threads(rows: int, workers: int, sample_ns: int | None, splittable: bool, batches: int) -> int:
    """The same where workers are threads: few tasks of so many `batches` in flight."""
    if not splittable or workers <= 1:
        return 1
    if sample_ns is None:
        return min(rows, workers)
    by_time = rows * sample_ns // THREAD_TASK_NS
    if sample_ns < LONG_SAMPLE_NS:  # what threads wait for each other is in it: many tasks would make it longer still
        by_time = min(by_time, -(-rows // TOGETHER_IN_THREADS))
    return int(max(1, min(rows, workers, max(by_time, -(-2 * workers // batches)))))


def slept_through(tasks: int, workers: int) -> int:
    """Results of threads that need not wake the loop, with so many tasks given out: while each thread has another one waiting for it, a
    few results more or less are no matter, and each wake-up costs all threads."""
    return max(0, (tasks - workers) // 8 - 1)


def tasks_per_batch(
    rows: int, workers: int, sample_ns: int | None, splittable: bool, batches: int = SPLIT_BATCHES, ending: bool = False
) -> int:
    """In how many tasks a batch is given out, of which so many `batches` may be in flight; nothing is known of the samples' cost before the
    first one is done."""
    if not splittable or workers <= 1:
        return 1
    task_ns = TASK_NS if workers <= MANY_TO_HEAR else (LAST_RESULT_NS if ending else RESULT_NS) * workers
    by_time = workers if sample_ns is None else rows * sample_ns // task_ns
    return int(max(1, min(rows, workers, max(by_time, -(-2 * workers // batches)))))


def batches_in_flight(workers: int, tasks: int, asked: int | None, batch_bytes: int | None = None) -> int:
    """How many batches are loaded ahead of the loop: enough that every worker has one task and another waiting; and one more
    against uneven samples, unless that would cost much memory. (Among many workers one is always late, and torch would have
    twice as many batches in flight as there are workers.) Each of many workers has two waiting where batches are small: with one, a
    late worker holds up the batch that is next, and meanwhile the others run out of tasks."""
    if asked is not None:
        return asked
    of_each = 3 if workers > MANY_TO_HEAR else 2
    ample = -(-of_each * workers // tasks) + 1
    if batch_bytes is not None and ample * batch_bytes <= AHEAD_BYTES:
        return ample
    if tasks == 1:
        return workers + max(2, workers // 2)
    more = workers >= MANY_WORKERS or (batch_bytes is not None and batch_bytes < LARGE_BATCH_BYTES)
    return max(2, -(-2 * workers // tasks)) + more


def window_batches(rows: int, workers: int, together: int) -> int:
    """Batches in flight where each worker waits for `together` samples at a time, of whichever batches; and half as many behind them."""
    filled = -(-workers * together // rows)
    return filled + max(2, filled // 2)


def within_budget(batches: int, batch_bytes: int | None, budget_bytes: int | None, seen: int | None = None) -> int:
    """At least one batch: whether one fits at all was decided before it was written. `batch_bytes`: of the largest; where it is that of as
    many as were `seen`, those in flight may be larger by as much as these can have grown, one part in `seen` from each to the next (sorted
    by length). Before the first one nothing is known."""
    if budget_bytes is None:
        return batches
    if seen == 0:
        return 1
    if not batch_bytes:
        return batches
    fit = budget_bytes // batch_bytes - 1
    if seen:  # the most that (fit + 1) * (1 + fit / (2 * seen)) * batch_bytes is within the budget with
        grown, more = 1 + 0.5 / seen, max(0.0, budget_bytes / batch_bytes - 1)
        fit = min(fit, round(seen * (sqrt(grown * grown + 2 * more / seen) - grown)))
    return max(1, min(batches, fit))


class RestartBudget:
    """At most `allowed` replacements in any `window_s` seconds."""

    def __init__(self, allowed: int, window_s: float = 60.0) -> None:
        self.allowed = allowed
        self.window_s = window_s
        self._at: deque[float] = deque()

    def spend(self, now_s: float) -> bool:
        """Whether one more replacement is within the budget; counts it if so."""
        while self._at and self._at[0] <= now_s - self.window_s:
            self._at.popleft()
        if len(self._at) >= self.allowed:
            return False
        self._at.append(now_s)
        return True


def stall_intervals_s(first_s: float, reports: int) -> float:
    """When the next stall report is due, counted from the start of the wait: at 1×, 3×, 7×, 15× … of the first."""
    return float(first_s * (2 ** (reports + 1) - 1))


LATE_SAMPLE, LATE_TASK = 10, 4
LATE_AT_LEAST_S = 0.2


def is_late(in_sample_s: float, in_task_s: float, samples: int, typical_s: float | None, deadline_s: float = inf) -> bool:
    """Whether a sample, or all `samples` of its task together, takes so much longer than usual (`typical_s` a sample) that a worker
    with nothing to do may as well try too, while there is time before the sample's deadline; never before something is known."""
    if typical_s is None:
        return False
    limit_s = max(LATE_AT_LEAST_S, min(LATE_SAMPLE * typical_s, deadline_s / 2))
    return in_sample_s > limit_s or in_task_s > max(LATE_AT_LEAST_S, LATE_TASK * typical_s * samples)
