"""How much memory each worker has of its own, looked at from time to time: what grows by copy-on-write, or leaks.

1. A look is at one worker, in turns: it costs a read of /proc/PID/smaps_rollup, which takes longer the larger the process (some 10 ms for
   each GB), and the loop waits for it. Looks are so far apart that they take less than a five-hundredth of the time, and that each
   worker's turn comes every EVERY_S; those who were not looked at yet come sooner. The very first is FIRST_S after the first batch.
2. What counts is memory that is not the slots': anonymous pages, those shared with other processes by their share (PSS).
3. Growth is told per worker from its first look to its last; a worker that was replaced begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antifreeze.supervisor.observe import Memory, busy_threads, memory_of

FIRST_S = 0.25
FIRST_ROUND_S = 1.0
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
        self._turns: dict[int, int] = {}  # by pid: in which order they were looked at last
        self._looks = 0

    def __repr__(self) -> str:
        return f"<MemoryWatch {len(self.workers)} workers>"

    def due(self, now_s: float) -> bool:
        if self._next_s is None:
            self._next_s = now_s + FIRST_S
        return now_s >= self._next_s

    def look(self, workers: Sequence[tuple[int, int]], samples_of: Callable[[int], int]) -> None:
        """At the one of these (number, pid) whose turn it is."""
        began_s = time.thread_time()
        number, pid = min(workers, key=lambda worker: self._turns.get(worker[1], -1))
        self._turns = {pid: self._turns[pid] for _, pid in workers if pid in self._turns}
        self._turns[pid] = self._looks
        self._looks += 1
        memory = memory_of(pid)
        if memory is not None:
            self._note(number, pid, memory, samples_of(number))
        round_s = FIRST_ROUND_S if len(self._turns) < len(workers) else EVERY_S
        self._next_s = time.monotonic() + max(round_s / len(workers), (time.thread_time() - began_s) * _SHARE_OF_TIME)

    def _note(self, number: int, pid: int, memory: Memory, samples: int) -> None:
        seen = self.workers.get(number)
        if seen is None or seen.pid != pid:
            seen = self.workers[number] = Grown(pid, memory.own_bytes, samples)
        seen.bytes, seen.samples, seen.pss_bytes = memory.own_bytes, samples, memory.pss_bytes
        seen.busy_threads = busy_threads(pid)
        if self.most_grown is None or seen.grown_bytes >= self.most_grown.grown_bytes:
            self.most_grown = seen

    def last_bytes(self, number: int, pid: int) -> int | None:
        """What a worker had at the latest look; it may be dead by now."""
        seen = self.workers.get(number)
        return seen.bytes if seen is not None and seen.pid == pid else None
