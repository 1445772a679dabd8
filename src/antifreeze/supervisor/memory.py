"""How much memory each worker has of its own, looked at from time to time: what grows by copy-on-write, or leaks.

1. A look costs a read of /proc/PID/smaps_rollup per worker, which takes longer the larger the process (some 10 ms for each GB); looks
   are so far apart that they take less than a five-hundredth of the time, and at least EVERY_S. The very first one, when little was
   copied yet, is at one worker only, and FIRST_S after the first batch, which would otherwise wait for it.
2. What counts is memory that is not the slots': anonymous pages, those shared with other processes by their share (PSS).
3. Growth is told per worker from its first look to its last; a worker that was replaced begins anew.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass

from antifreeze.supervisor.observe import busy_threads, memory_of

FIRST_S = 0.25
SECOND_S = 1.0
EVERY_S = 10.0
_SHARE_OF_TIME = 500


@dataclass
class Grown:
    """One worker process: its own memory at the first and at the latest look, and how many samples it had loaded then."""

    pid: int
    first_bytes: int
    first_samples: int
    bytes: int = 0
    samples: int = 0
    pss_bytes: int = 0
    busy_threads: int = 1

    @property
    def grown_bytes(self) -> int:
        return self.bytes - self.first_bytes

    def per_1000_samples(self) -> float | None:
        loaded = self.samples - self.first_samples
        return 1000 * self.grown_bytes / loaded if loaded > 0 else None


class MemoryWatch:
    """Of all workers of a loader; kept in its ledger, so that it outlives them."""

    def __init__(self) -> None:
        self.workers: dict[int, Grown] = {}
        self.most_grown: Grown | None = None
        self.hoards = ""  # what a worker says its data set keeps ever more of
        self._next_s: float | None = None
        self._looks = 0

    def __repr__(self) -> str:
        return f"<MemoryWatch {len(self.workers)} workers>"

    def due(self, now_s: float) -> bool:
        if self._next_s is None:
            self._next_s = now_s + FIRST_S
        return now_s >= self._next_s

    def look(self, workers: Iterable[tuple[int, int, int]]) -> None:
        """(number, pid, samples so far) of each that lives."""
        began_s = time.thread_time()
        for number, pid, samples in itertools.islice(workers, None if self._looks else 1):
            memory = memory_of(pid)
            if memory is None:
                continue
            seen = self.workers.get(number)
            if seen is None or seen.pid != pid:
                seen = self.workers[number] = Grown(pid, memory.own_bytes, samples)
            seen.bytes, seen.samples, seen.pss_bytes = memory.own_bytes, samples, memory.pss_bytes
            seen.busy_threads = busy_threads(pid)
            if self.most_grown is None or seen.grown_bytes >= self.most_grown.grown_bytes:
                self.most_grown = seen
        self._looks += 1
        pause_s = max(SECOND_S if self._looks == 1 else EVERY_S, (time.thread_time() - began_s) * _SHARE_OF_TIME)
        self._next_s = time.monotonic() + pause_s

    def last_bytes(self, number: int, pid: int) -> int | None:
        """What a worker had at the latest look; it may be dead by now."""
        seen = self.workers.get(number)
        return seen.bytes if seen is not None and seen.pid == pid else None
