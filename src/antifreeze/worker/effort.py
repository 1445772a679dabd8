"""What a worker's time was made of: computing, standing in the queue for a core, or waiting for something outside.

1. One clock is read per task; the queue for a core (the kernel's run delay) at most every LOOK_EVERY_NS, and with it, in one call, the
   largest memory, page faults and context switches.
2. The CPU time is the whole process's, so that a data set's own threads count as computing; so are the faults and switches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from antifreeze.linux import resource

LOOK_EVERY_NS = 20_000_000


class Usage(NamedTuple):
    """What the kernel has counted of this process."""

    peak_kib: int  # the largest resident memory so far
    faults: int  # pages that were not there when they were touched, in memory or on disk
    switches: int  # times that a core was given away: to wait, or to somebody else

    @classmethod
    def now(cls) -> Usage:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_maxrss, used.ru_minflt + used.ru_majflt, used.ru_nvcsw + used.ru_nivcsw)

    def since(self, before: Usage) -> Usage:
        return Usage(self.peak_kib, self.faults - before.faults, self.switches - before.switches)


class Effort:
    def __init__(self, note: Callable[[Usage], None] = lambda usage: None) -> None:
        """`note` is told what was used since now, and the largest memory ever, whenever somebody looks."""
        self._note = note
        self._before = Usage.now()
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
        if now - self._looked_at < LOOK_EVERY_NS:
            return 0
        self._looked_at = now
        self._note(self.used())
        if self._schedstat < 0:
            return 0
        try:
            before, self._queued_ns = self._queued_ns, int(os.pread(self._schedstat, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            self._schedstat = -1  # a data set that closes descriptors it does not own, or another file under this number
            return 0
        return self._queued_ns - before

    def used(self) -> Usage:
        """Until now."""
        return Usage.now().since(self._before)


class ThreadEffort(Effort):
    """Of one thread among others. Of what it waits for nothing is said: it may be a core or the GIL, and descriptors are scarce."""

    def __init__(self) -> None:
        self._cpu_ns = time.thread_time_ns()

    def cpu_ns(self) -> int:
        before, self._cpu_ns = self._cpu_ns, time.thread_time_ns()
        return self._cpu_ns - before

    def queued_ns(self) -> int:
        return 0
