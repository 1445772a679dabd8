"""Who is who in an examination: loops, their workers, the threads between them; what each is doing, and whether it got anywhere.

How long a worker has been in its batch is told from threads that run only when something moves:
    the worker's own queue thread last ran when it sent its last batch,
    the parent's queue threads last ran when the loop last asked for more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from antifreeze.doctor.facts.model import Examination, Frame, Process, Thread, ThreadSample
from antifreeze.doctor.findings.frames import (
    FETCH,
    LOADER,
    PIN_LOOP,
    QUEUES,
    WORKER_LOOP,
    Frames,
    above,
    find,
    has,
    is_users,
    place,
    sample_of,
)
from antifreeze.doctor.findings.waits import Wait, WaitKind, wait_of

TORCH_WORKER, ANTIFREEZE_WORKER = "pt_data_worker", "af_worker"
JOURNAL = "/memfd:antifreeze-journal"


class Doing(Enum):
    """What a worker is at."""

    IDLE = "waits for work"
    LOADING = "loads"
    SENDING = "sends a batch"
    STARTING = "starts"
    CLOSING = "ends"
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


def build_case(exam: Examination) -> Case:
    orphans = tuple(process for process in (*exam.processes, *exam.orphans) if is_worker(process) and is_orphan(process, exam))
    loaders = tuple(_loader_case(process, exam) for process in exam.processes if process not in orphans and _is_loader(process, exam))
    forked = frozenset(process.pid for process in exam.processes if _is_forked(process, exam))
    return Case(exam, loaders, orphans, forked)


def is_worker(process: Process) -> bool:
    if process.name in (TORCH_WORKER, ANTIFREEZE_WORKER):
        return True
    return any(has(sample.frames, *WORKER_LOOP) for thread in process.threads for sample in (thread.first, thread.last) if sample)


def is_orphan(process: Process, exam: Examination) -> bool:
    parent = exam.process(process.parent)
    return process.state != "Z" and (parent is None or not parent.is_python)


def _is_forked(process: Process, exam: Examination) -> bool:
    """A forked child shows its parent's command line; spawned and served ones show multiprocessing's own."""
    parent = exam.process(process.parent)
    return parent is not None and bool(process.command) and process.command == parent.command


def _children(process: Process, exam: Examination) -> list[Process]:
    """Also through a fork server, whose children are its client's workers."""
    direct = [each for each in exam.processes if each.parent == process.pid]
    servers = [each for each in direct if any("multiprocessing.forkserver" in word for word in each.command)]
    return direct + [each for each in exam.processes if each.parent in {server.pid for server in servers} and each not in direct]


def _is_loader(process: Process, exam: Examination) -> bool:
    if is_worker(process) or any("multiprocessing.forkserver" in word for word in process.command):
        return False
    if any(is_worker(child) for child in _children(process, exam)):
        return True
    stacks = [sample.frames for thread in process.threads for sample in (thread.first, thread.last) if sample]
    return any(frame.file.endswith(LOADER) for frames in stacks for frame in frames)


def _loader_case(process: Process, exam: Examination) -> LoaderCase:
    thread = _loop_thread(process)
    before, now = (loop_of(thread.first), loop_of(thread.last)) if thread else (Loop.UNKNOWN, Loop.UNKNOWN)
    frames = thread.last.frames if thread and thread.last else ()
    children = _children(process, exam)
    workers = [_worker(child, process, exam) for child in children if is_worker(child) and child.state != "Z"]
    if now is Loop.LOADING and thread is not None:
        workers.append(_inline_worker(process, thread, exam))
    feeders = _queue_threads(process)
    return LoaderCase(
        process=process,
        thread=thread,
        loop=now,
        frames=frames,
        wait=wait_of(process, thread),
        workers=tuple(workers),
        expected_workers=_expected_workers(children),
        awaited=_awaited(frames),
        pin_thread=next((each for each in process.threads if _is_pin_thread(each)), None),
        moved=before is not now or any(worker.moved for worker in workers) or any(_ran(feeder) for feeder in feeders),
        waited_s=min((feeder.last.asleep_s for feeder in feeders if feeder.last and feeder.last.asleep_s is not None), default=None),
        dead=tuple(child for child in children if child.state == "Z" and (is_worker(child) or child.name.startswith("python"))),
    )


def _loop_thread(process: Process) -> Thread | None:
    """The thread that iterates: mostly the main one."""
    for thread in process.threads:
        if thread.last and any(frame.file.endswith(LOADER) for frame in thread.last.frames):
            return thread
    return process.main


def loop_of(sample: ThreadSample | None) -> Loop:
    if sample is None or not sample.frames:
        return Loop.UNKNOWN
    names = {frame.name for frame in sample.frames if frame.file.endswith(LOADER)}
    owners = {frame.function.split(".")[0] for frame in sample.frames if frame.file.endswith(LOADER)}
    if "_shutdown_workers" in names or "__del__" in names:
        return Loop.CLOSING
    if names & {"_try_get_data", "_get_data"}:
        return Loop.WAITING
    if has(sample.frames, *FETCH):
        return Loop.LOADING
    if ("_MultiProcessingDataLoaderIter" in owners and "__init__" in names) or "_get_iterator" in names:
        return Loop.STARTING
    return Loop.COMPUTING


def _awaited(frames: Frames) -> int | None:
    frame = find(frames, "_next_data", LOADER)
    return _number(frame.value("worker_id")) if frame else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def _expected_workers(children: list[Process]) -> int | None:
    """Each worker knows how many there are."""
    counts = [
        _number(frame.value("num_workers"))
        for child in children
        if child.main and child.main.last
        for frame in child.main.last.frames
        if frame.name == WORKER_LOOP[0]
    ]
    return max((count for count in counts if count is not None), default=None)


def _queue_threads(process: Process) -> list[Thread]:
    return [thread for thread in process.threads if thread.python_name.startswith("QueueFeederThread") or _feeds(thread)]


def _feeds(thread: Thread) -> bool:
    return thread.last is not None and has(thread.last.frames, "_feed", QUEUES)


def _is_pin_thread(thread: Thread) -> bool:
    return thread.name == "pt_data_pin" or (thread.last is not None and has(thread.last.frames, *PIN_LOOP))


def _ran(thread: Thread) -> bool:
    return thread.first is not None and thread.last is not None and thread.last.switches != thread.first.switches


def doing_of(sample: ThreadSample | None, wait: Wait) -> Doing:
    if sample is None:
        return Doing.STARTING
    if not sample.frames:
        polls = wait.call in ("poll", "ppoll", "select") or sample.wchan.startswith("poll_schedule")
        return Doing.IDLE if polls else Doing.UNKNOWN
    if has(sample.frames, *WORKER_LOOP):
        inner = above(sample.frames, *WORKER_LOOP)
        if has(inner, *FETCH):
            return Doing.LOADING
        if not inner or has(inner, "get", QUEUES):
            return Doing.IDLE
        return Doing.SENDING if has(inner, "put", QUEUES) else Doing.STARTING
    return Doing.CLOSING if any(frame.name == "_exit_function" for frame in sample.frames) else Doing.STARTING


def _worker(process: Process, parent: Process, exam: Examination) -> Worker:
    thread = process.main
    wait = wait_of(process, thread)
    first, last = (thread.first, thread.last) if thread else (None, None)
    loop = find(last.frames, *WORKER_LOOP) if last else None
    number = _number(loop.value("worker_id")) if loop else None
    frames = above(last.frames, *WORKER_LOOP) if last else ()
    batch, count = (_number(loop.value("idx")), _number(loop.value("num_workers"))) if loop else (None, None)
    busy_s = _busy_s(process, parent, number, count)
    if process.journal is not None:
        number, sample, busy_s = process.journal.worker, process.journal.sample, process.journal.since_s
    else:
        sample = sample_of(frames)
    return Worker(
        process=process,
        thread=thread,
        number=number,
        doing=doing_of(last, wait),
        frames=frames,
        wait=wait,
        moved=_moved(process, first, last),
        batch=batch,
        sample=sample,
        busy_s=busy_s,
        typical_s=_typical_s(process.age_s, busy_s, batch, count),
    )


def _moved(process: Process, first: ThreadSample | None, last: ThreadSample | None) -> bool:
    """Whether the worker got anywhere between the looks: another batch, another sample, something sent."""
    if first is None or last is None:
        return True
    if any(_ran(thread) for thread in _queue_threads(process)):
        return True
    return _work_at_hand(first.frames) != _work_at_hand(last.frames)


def _work_at_hand(frames: Frames) -> tuple[str | None, ...]:
    loop = find(frames, *WORKER_LOOP)
    inner = above(frames, *WORKER_LOOP) if loop else frames
    return (loop.value("idx") if loop else None, sample_of(inner), "loads" if has(inner, *FETCH) else "does not")


def _busy_s(process: Process, parent: Process, number: int | None, count: int | None) -> float | None:
    """It cannot be longer than since its last batch left, nor than since its parent last gave it work."""
    own = [thread.last.asleep_s for thread in _queue_threads(process) if thread.last]
    since_sent = min((asleep_s for asleep_s in own if asleep_s is not None), default=None) if own else process.age_s
    given = [thread.last.asleep_s for thread in sorted(_queue_threads(parent), key=lambda each: each.tid) if thread.last]
    if number is not None and count == len(given) and number < len(given):
        given = [given[number]]
    since_given = min((asleep_s for asleep_s in given if asleep_s is not None), default=None)
    known = [seconds for seconds in (since_sent, since_given) if seconds is not None]
    return min(known) if known else None


def _typical_s(age_s: float, busy_s: float | None, batch: int | None, count: int | None) -> float | None:
    if busy_s is None or batch is None or not count or batch < count:
        return None
    return max(0.0, age_s - busy_s) / (batch // count)


def _inline_worker(process: Process, thread: Thread, exam: Examination) -> Worker:
    first, last = thread.first, thread.last
    frames = above(last.frames, "_next_data", LOADER) if last else ()
    same = (
        first is not None
        and last is not None
        and _work_at_hand(first.frames) == _work_at_hand(last.frames)
        and sample_of(frames) is not None
    )
    return Worker(
        process=process,
        thread=thread,
        number=None,
        doing=Doing.LOADING,
        frames=frames,
        wait=wait_of(process, thread),
        moved=not same,
        sample=sample_of(frames),
        busy_s=None if not same else process.window_s,
        inline=True,
    )


def users_threads(process: Process) -> list[Thread]:
    """Threads that run the user's own code, or a library's on his behalf: not those of multiprocessing and torch."""
    return [
        thread
        for thread in process.threads
        if thread.tid != process.pid and thread.last and not _feeds(thread) and any(is_users(frame) for frame in thread.last.frames)
    ]
