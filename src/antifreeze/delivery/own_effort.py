"""What loading in the loop's own process was made of: computing, standing in the queue for a core, or waiting for something outside.

1. The user's own code runs between two batches, so clocks are read before a batch and after it: 12 µs in all. That is done where
   MEASURED_AFTER_NS of loading went by since it was begun last; the batches between are taken to be like the last one measured.
2. One of those that took long by itself (a file that was opened) is no longer like it: it computed no more than this thread has since the
   last time its clock was read, and had no core for no longer than it had none since.
3. Computing is this thread's CPU time. Other threads may compute for it (a pool of the data set's) or not: their CPU time counts where this
   thread waits, but for as much as they use while the loop's own code runs.
4. Now and then all threads of the process are looked at: where several share an operation, the last one without a core holds up the others.
"""

from __future__ import annotations

import os
import threading
import time
from typing import NamedTuple

from antifreeze.supervisor.work import OwnThreads

MEASURED_AFTER_NS = 5_000_000
LOOKS_COST_A = 1000
"""Looks at all threads are so far apart that they take this part of the time at most."""
_REMEMBERED_NS = 1_000_000_000
_COMPUTES = 0.05
"""A thread that ran, or would have, for this part of the time."""


Spent = tuple[int, int]
"""Nanoseconds of the time that a batch took: computing, and without a core. (No named one: it is made for every batch.)"""


class _Stood(NamedTuple):
    """What the kernel says of one thread: how long it ran, and how long it could have and had no core."""

    ran_ns: int
    queued_ns: int


class _Clocks(NamedTuple):
    thread: int
    at_ns: int
    cpu_ns: int
    process_ns: int
    queued_ns: int


class Reading(NamedTuple):
    """Before a batch that is measured; `threads` where all of them are looked at."""

    clocks: _Clocks
    threads: dict[str, _Stood] | None
    took_ns: int


class OwnEffort:
    def __init__(self, threads: OwnThreads) -> None:
        self.threads = threads
        self.loaded_ns = MEASURED_AFTER_NS  # since the last batch that was measured began
        self._until_look_ns = 0
        self._cpu_share, self._queued_share = 1.0, 0.0  # of the last batch that was measured
        self._last: _Clocks | None = None
        self._between_ns, self._others_between_ns = 0, 0  # two batches that were measured: wall, and what other threads computed

    def __repr__(self) -> str:
        return f"<OwnEffort: computing {self._cpu_share:.0%}, without a core {self._queued_share:.0%}>"

    def begin(self) -> Reading | None:
        """None where this batch is not measured. (Whoever has no time to ask looks at `loaded_ns`.)"""
        if self.loaded_ns < MEASURED_AFTER_NS:
            return None
        threads, took_ns = None, 0
        if self._until_look_ns <= 0:
            began_ns = time.perf_counter_ns()
            threads = _threads()
            took_ns = time.perf_counter_ns() - began_ns
        clocks = _clocks()
        self._note_between(clocks)
        return Reading(clocks, threads, took_ns)

    def end(self, before: Reading | None, took_ns: int) -> Spent:
        """Of the batch that has just been loaded and took so long."""
        if before is None:
            self.loaded_ns += took_ns
            if took_ns >= MEASURED_AFTER_NS:
                return self._at_most(took_ns)
            return int(self._cpu_share * took_ns), int(self._queued_share * took_ns)
        self._until_look_ns -= self.loaded_ns
        now = self._last = _clocks()
        wall_ns = max(1, now.at_ns - before.clocks.at_ns)
        queued_ns = max(0, now.queued_ns - before.clocks.queued_ns)
        cpu_ns = max(0, now.cpu_ns - before.clocks.cpu_ns)
        waited_ns = max(0, wall_ns - cpu_ns - queued_ns)
        cpu_ns += min(waited_ns, self._others_for_it(_others(before.clocks, now), wall_ns))
        self._cpu_share = min(1.0, cpu_ns / wall_ns)
        self._queued_share = min(1.0 - self._cpu_share, queued_ns / wall_ns)
        self.loaded_ns = took_ns
        if before.threads is not None:
            self._look(before.threads, wall_ns, before.took_ns)
        return self._like_the_last(took_ns)

    def _like_the_last(self, took_ns: int) -> Spent:
        return int(self._cpu_share * took_ns), int(self._queued_share * took_ns)

    def _at_most(self, took_ns: int) -> Spent:
        """Of a long one that was not measured."""
        last, now = self._last, _clocks()
        self._last = now
        if last is None or last.thread != now.thread:
            return self._like_the_last(took_ns)
        cpu_ns = min(took_ns, max(0, now.cpu_ns - last.cpu_ns))
        return cpu_ns, min(took_ns - cpu_ns, max(0, now.queued_ns - last.queued_ns))

    # --- other threads ---

    def _note_between(self, now: _Clocks) -> None:
        if self._last is None or self._last.thread != now.thread:
            return
        if self._between_ns > _REMEMBERED_NS:
            self._between_ns, self._others_between_ns = self._between_ns // 2, self._others_between_ns // 2
        self._between_ns += max(0, now.at_ns - self._last.at_ns)
        self._others_between_ns += _others(self._last, now)

    def _others_for_it(self, others_ns: int, wall_ns: int) -> int:
        """What other threads computed for this batch, as far as can be told."""
        anyway = self._others_between_ns / self._between_ns if self._between_ns else 0.0
        return max(0, others_ns - int(anyway * wall_ns))

    def _look(self, before: dict[str, _Stood], wall_ns: int, took_ns: int) -> None:
        began_ns, own = time.perf_counter_ns(), str(threading.get_native_id())
        needed, queued_ns = 1, 0
        for name, now in _threads().items():
            then = before.get(name)
            if then is None or name == own:
                continue
            ran_ns, without_ns = now.ran_ns - then.ran_ns, now.queued_ns - then.queued_ns
            if ran_ns + without_ns > _COMPUTES * wall_ns:
                needed, queued_ns = needed + 1, max(queued_ns, without_ns)
        self.threads.add(needed, wall_ns, queued_ns)
        self._until_look_ns = LOOKS_COST_A * (took_ns + time.perf_counter_ns() - began_ns)


def _clocks() -> _Clocks:
    queued_ns = _stood("/proc/thread-self/schedstat").queued_ns
    return _Clocks(threading.get_ident(), time.perf_counter_ns(), time.thread_time_ns(), time.process_time_ns(), queued_ns)


def _others(before: _Clocks, now: _Clocks) -> int:
    """CPU time of all threads but this one."""
    return max(0, now.process_ns - before.process_ns - (now.cpu_ns - before.cpu_ns))


def _threads() -> dict[str, _Stood]:
    try:
        names = os.listdir("/proc/self/task")
    except OSError:
        return {}
    return {name: _stood(f"/proc/self/task/{name}/schedstat") for name in names} if len(names) > 1 else {}


def _stood(file: str) -> _Stood:
    """Zeros where the kernel does not say. Opened each time: a descriptor that is kept would be of another thread, or process, some day."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            words = os.read(descriptor, 100).split()
        finally:
            os.close(descriptor)
        return _Stood(int(words[0]), int(words[1]))
    except (OSError, ValueError, IndexError):
        return _Stood(0, 0)
