"""What a worker's time was made of: computing, standing in the queue for a core, or waiting for something outside.

1. One clock is read per task; the queue for a core (the kernel's run delay) at most every LOOK_EVERY_NS.
2. The CPU time is the whole process's, so that a data set's own threads count as computing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from antifreeze.linux import resource

LOOK_EVERY_NS = 20_000_000


class Effort:
    def __init__(self, note_peak: Callable[[int], None] = lambda kibibytes: None) -> None:
        """`note_peak` is told the largest memory so far whenever somebody looks."""
        self.note_peak = note_peak
        self._cpu_ns = time.process_time_ns()
        self._queued_ns = 0
        self._looked_at = 0
        try:
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = -1  # a kernel without it: nothing is said about cores
        self.queued_ns()

    def cpu_ns(self) -> int:
        """Since the last call."""
        before, self._cpu_ns = self._cpu_ns, time.process_time_ns()
        return self._cpu_ns - before

    def queued_ns(self) -> int:
        """How long this thread could have run and had no core, since the last call that looked; most calls do not look."""
        now = time.monotonic_ns()
        if self._schedstat < 0 or now - self._looked_at < LOOK_EVERY_NS:
            return 0
        self._looked_at = now
        self.note_peak(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        try:
            before, self._queued_ns = self._queued_ns, int(os.pread(self._schedstat, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            self._schedstat = -1  # a data set that closes descriptors it does not own, or another file under this number
            return 0
        return self._queued_ns - before


class ThreadEffort(Effort):
    """Of one thread among others. Of what it waits for nothing is said: it may be a core or the GIL, and descriptors are scarce."""

    def __init__(self) -> None:
        self._cpu_ns = time.thread_time_ns()

    def cpu_ns(self) -> int:
        before, self._cpu_ns = self._cpu_ns, time.thread_time_ns()
        return self._cpu_ns - before

    def queued_ns(self) -> int:
        return 0
