"""The words in which findings are made: loops, their workers, and what each is doing. `cast.py` fills them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from antifreeze.doctor.facts.model import Examination, Frame, Process, Thread, ThreadSample
from antifreeze.doctor.findings.frames import Frames, place
from antifreeze.doctor.findings.waits import Wait, WaitKind


class Doing(Enum):
    """What a worker is at."""

    IDLE = "waits for work"
    LOADING = "loads"
    SENDING = "sends a batch"
    STARTING = "starts"
    CLOSING = "ends"
    TURN = "waits for its turn with the random generators"
    UNKNOWN = "is at something unknown"


class Loop(Enum):
    """What the user's loop is at."""

    WAITING = "waits for data"
    COMPUTING = "is in its own code"
    STARTING = "starts workers"
    CLOSING = "ends workers"
    LOADING = "loads by itself"
    UNKNOWN = "is at something unknown"


@dataclass(frozen=True)
class Worker:
    process: Process
    thread: Thread | None
    number: int | None
    doing: Doing
    frames: Frames
    """What its loading function called, innermost first."""
    wait: Wait
    moved: bool
    batch: int | None = None
    sample: str | None = None
    busy_s: float | None = None
    typical_s: float | None = None
    """What its earlier batches took on average."""
    inline: bool = False
    """num_workers=0: the loop's own process."""
    threaded: bool = False
    """antifreeze's workers="thread": one thread of the loop's own process."""

    @property
    def is_loop(self) -> bool:
        """It has no process of its own."""
        return self.inline or self.threaded

    @property
    def last(self) -> ThreadSample | None:
        return self.thread.last if self.thread else None

    @property
    def place(self) -> Frame | None:
        return place(self.frames)

    @property
    def name(self) -> str:
        if self.inline:
            return f"the loop itself (pid {self.process.pid})"
        if self.threaded and self.thread is not None:
            return f"worker {self.number} (thread {self.thread.tid} of pid {self.process.pid})"
        return f"worker {self.number} (pid {self.process.pid})" if self.number is not None else f"a worker (pid {self.process.pid})"

    @property
    def stalled_s(self) -> float | None:
        """A sleeper's own rest is exact; a worker that runs, or wakes now and then, is measured by its last batch."""
        asleep_s = self.last.asleep_s if self.last else None
        if self.wait.kind is not WaitKind.NOTHING and asleep_s is not None and (self.wait.limit_s is None or self.busy_s is None):
            return asleep_s
        return self.busy_s


@dataclass(frozen=True)
class LoaderCase:
    """One process that loads: its loop, and its workers."""

    process: Process
    thread: Thread | None
    loop: Loop
    frames: Frames
    """Of the loop, innermost first."""
    wait: Wait
    workers: tuple[Worker, ...]
    expected_workers: int | None = None
    awaited: int | None = None
    """The number of the worker whose batch is next."""
    pin_thread: Thread | None = None
    moved: bool = False
    waited_s: float | None = None
    """Since the loop last got a batch, or asked for one."""
    dead: tuple[Process, ...] = ()
    seen: tuple[Loop, ...] = ()
    """What the loop was at, each time it was looked at."""

    @property
    def waiting_share(self) -> float:
        """How often it waited for data, of all the times it was looked at."""
        known = [each for each in self.seen if each is not Loop.UNKNOWN]
        return sum(each in (Loop.WAITING, Loop.LOADING) for each in known) / len(known) if known else 0.0

    @property
    def place(self) -> Frame | None:
        return place(self.frames)

    @property
    def name(self) -> str:
        rank = f"rank {self.process.rank}, " if self.process.rank is not None else ""
        return f"the loop ({rank}pid {self.process.pid})"


@dataclass(frozen=True)
class Case:
    exam: Examination
    loaders: tuple[LoaderCase, ...]
    orphans: tuple[Process, ...] = ()
    started_by_fork: frozenset[int] = field(default_factory=frozenset)

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(worker for loader in self.loaders for worker in loader.workers)

    @property
    def window_s(self) -> float:
        return self.exam.window_s

    def loader_of(self, worker: Worker) -> LoaderCase | None:
        return next((loader for loader in self.loaders if worker in loader.workers), None)

    def worker(self, pid: int) -> Worker | None:
        """The one that is this process; threads are none."""
        return next((worker for worker in self.workers if worker.process.pid == pid and not worker.threaded), None)

    def name_of(self, pid: int) -> str:
        worker = self.worker(pid)
        return worker.name if worker else f"process {pid}"
