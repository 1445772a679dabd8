"""Who is who in an examination: loops, their workers, the threads between them; what each is doing, and whether it got anywhere.

How long a worker of torch has been in its batch is told from threads that run only when something moves:
    the worker's own queue thread last ran when it sent its last batch,
    the parent's queue threads last ran when the loop last asked for more.
antifreeze's workers say it themselves, in the journal.
"""

from __future__ import annotations

import re

from antifreeze.doctor.facts.model import Examination, JournalEntry, Process, Thread, ThreadSample
from antifreeze.doctor.facts.names import NURSERY, WORKER_NAMES
from antifreeze.doctor.findings.case import Case, Doing, LoaderCase, Loop, Worker
from antifreeze.doctor.findings.frames import (
    FETCH,
    LOADER,
    OUR_INLINE,
    OUR_POOL,
    OUR_PROCESSES,
    OUR_THREAD,
    OUR_WORKER,
    PIN_LOOP,
    QUEUES,
    WORKER_LOOP,
    Frames,
    above,
    find,
    has,
    is_users,
    sample_of,
)
from antifreeze.doctor.findings.waits import wait_of

FORK_SERVER = "multiprocessing.forkserver"
STAGES = {
    "STARTING": Doing.STARTING,
    "IDLE": Doing.IDLE,
    "FETCH": Doing.LOADING,
    "COLLATE": Doing.LOADING,
    "WRITE": Doing.LOADING,
    "SEND": Doing.SENDING,
    "ENDED": Doing.CLOSING,
    "INITIALISING": Doing.STARTING,
    "TURN": Doing.TURN,
    "AWAIT": Doing.LOADING,
}


def build_case(exam: Examination) -> Case:
    orphans = tuple(process for process in (*exam.processes, *exam.orphans) if is_worker(process) and is_orphan(process, exam))
    loaders = tuple(_loader_case(process, exam) for process in exam.processes if process not in orphans and _is_loader(process, exam))
    forked = frozenset(process.pid for process in exam.processes if _is_forked(process, exam))
    return Case(exam, loaders, orphans, forked)


def is_worker(process: Process) -> bool:
    if process.name in WORKER_NAMES:
        return True
    if process.name == NURSERY:
        return False
    return any(has(frames, *WORKER_LOOP) or has(frames, *OUR_WORKER) or _started_by_loader(frames) for frames in _stacks(process))


def _started_by_loader(frames: Frames) -> bool:
    """A forked process still shows who forked it, also when its own loop has ended."""
    return has(frames, "_bootstrap", "multiprocessing/process.py") and has(frames, "__init__", LOADER)


def _stacks(process: Process) -> list[Frames]:
    return [sample.frames for thread in process.threads for sample in (thread.first, thread.last) if sample]


def is_orphan(process: Process, exam: Examination) -> bool:
    parent = exam.process(process.parent)
    return process.state != "Z" and (parent is None or not parent.is_python)


def _is_forked(process: Process, exam: Examination) -> bool:
    """A forked child shows its parent's command line; spawned and served ones show multiprocessing's own."""
    parent = exam.process(process.parent)
    return parent is not None and bool(process.command) and process.command == parent.command


def _children(process: Process, exam: Examination) -> list[Process]:
    """Also through a fork server or a nursery, whose children are its client's workers."""
    direct = [each for each in exam.processes if each.parent == process.pid]
    servers = [each for each in direct if _forks_for_its_parent(each)]
    return direct + [each for each in exam.processes if each.parent in {server.pid for server in servers} and each not in direct]


def _forks_for_its_parent(process: Process) -> bool:
    return process.name == NURSERY or any(FORK_SERVER in word for word in process.command)


def _is_loader(process: Process, exam: Examination) -> bool:
    if is_worker(process) or _forks_for_its_parent(process):
        return False
    if any(is_worker(child) for child in _children(process, exam)) or _thread_workers(process):
        return True
    return any(_iterates(frames) for frames in _stacks(process))


def _iterates(frames: Frames) -> bool:
    return any(frame.file.endswith((LOADER, OUR_POOL, OUR_INLINE)) for frame in frames)


def _loader_case(process: Process, exam: Examination) -> LoaderCase:
    thread = _loop_thread(process)
    before, now = (loop_of(thread.first), loop_of(thread.last)) if thread else (Loop.UNKNOWN, Loop.UNKNOWN)
    frames = thread.last.frames if thread and thread.last else ()
    children = _children(process, exam)
    workers = [_worker(child, process) for child in children if is_worker(child) and child.state != "Z"]
    workers += _thread_workers(process)
    if now is Loop.LOADING and thread is not None:
        workers.append(_inline_worker(process, thread))
    feeders = _queue_threads(process)
    seen = (before, *(loop_by_frames(glance) for glance in process.glances), now)
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
        moved=len(set(seen)) > 1 or any(worker.moved for worker in workers) or any(_ran(feeder) for feeder in feeders),
        seen=seen,
        waited_s=min((feeder.last.asleep_s for feeder in feeders if feeder.last and feeder.last.asleep_s is not None), default=None),
        dead=_dead(process, children),
    )


def _dead(process: Process, children: list[Process]) -> tuple[Process, ...]:
    """Zombies; before torch 2.6 a worker had no name of its own, but its parent's."""
    named = any(child.name in WORKER_NAMES for child in children)
    names = WORKER_NAMES if named else (*WORKER_NAMES, process.name, "python")
    return tuple(child for child in children if child.state == "Z" and child.name in names)


def _loop_thread(process: Process) -> Thread | None:
    """The thread that iterates: mostly the main one."""
    for thread in process.threads:
        if thread.last and _iterates(thread.last.frames):
            return thread
    return process.main


def loop_of(sample: ThreadSample | None) -> Loop:
    if sample is None:
        return Loop.UNKNOWN
    if not sample.frames:
        return Loop.WAITING if _polls(sample) else Loop.UNKNOWN
    return loop_by_frames(sample.frames)


def loop_by_frames(frames: Frames) -> Loop:
    ours = _our_loop(frames)
    if ours is not None:
        return ours
    names = {frame.name for frame in frames if frame.file.endswith(LOADER)}
    owners = {frame.function.split(".")[0] for frame in frames if frame.file.endswith(LOADER)}
    if "_shutdown_workers" in names or "__del__" in names:
        return Loop.CLOSING
    if names & {"_try_get_data", "_get_data"}:
        return Loop.WAITING
    if has(frames, *FETCH):
        return Loop.LOADING
    if ("_MultiProcessingDataLoaderIter" in owners and "__init__" in names) or "_get_iterator" in names:
        return Loop.STARTING
    return Loop.COMPUTING


def _our_loop(frames: Frames) -> Loop | None:
    """antifreeze's own pool, or its loading without workers."""
    if any(frame.file.endswith(OUR_INLINE) for frame in frames):
        return Loop.LOADING
    pool = {frame.name for frame in frames if frame.file.endswith(OUR_POOL)}
    if "close" in pool or has(frames, "end_all", OUR_PROCESSES):
        return Loop.CLOSING
    if pool & {"_wait", "wait_resolved", "catch_up"}:
        return Loop.WAITING
    return Loop.STARTING if pool & {"start", "resize"} else None


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


def _polls(sample: ThreadSample) -> bool:
    """All there is without stacks: torch's loop and its idle workers poll a pipe, again and again for five seconds."""
    return (sample.call is not None and sample.call.name in ("poll", "ppoll")) or sample.wchan.startswith("poll_schedule")


def _queue_threads(process: Process) -> list[Thread]:
    """Those that send and receive. Without stacks: in a worker all but the main one, in a parent nobody knows."""
    if not any(frames for frames in _stacks(process)):
        return [thread for thread in process.threads if thread.tid != process.pid] if is_worker(process) else []
    return [thread for thread in process.threads if thread.python_name.startswith("QueueFeederThread") or _feeds(thread)]


def _feeds(thread: Thread) -> bool:
    return thread.last is not None and has(thread.last.frames, "_feed", QUEUES)


def _is_pin_thread(thread: Thread) -> bool:
    return thread.name == "pt_data_pin" or (thread.last is not None and has(thread.last.frames, *PIN_LOOP))


def _ran(thread: Thread) -> bool:
    return thread.first is not None and thread.last is not None and thread.last.switches != thread.first.switches


def doing_of(sample: ThreadSample | None) -> Doing:
    if sample is None:
        return Doing.STARTING
    if not sample.frames:
        return Doing.IDLE if _polls(sample) else Doing.UNKNOWN
    if has(sample.frames, *WORKER_LOOP):
        inner = above(sample.frames, *WORKER_LOOP)
        if has(inner, *FETCH):
            return Doing.LOADING
        if not inner or has(inner, "get", QUEUES):
            return Doing.IDLE
        return Doing.SENDING if has(inner, "put", QUEUES) else Doing.STARTING
    return Doing.CLOSING if any(frame.name == "_exit_function" for frame in sample.frames) else Doing.STARTING


def _worker(process: Process, parent: Process) -> Worker:
    thread = process.main
    if process.last is not None and process.last.journal is not None:
        return _our_worker(process, thread, process.first.journal if process.first else None, process.last.journal)
    first, last = (thread.first, thread.last) if thread else (None, None)
    loop = find(last.frames, *WORKER_LOOP) if last else None
    number = _number(loop.value("worker_id")) if loop else None
    frames = above(last.frames, *WORKER_LOOP) if last else ()
    batch, count = (_number(loop.value("idx")), _number(loop.value("num_workers"))) if loop else (None, None)
    busy_s = _busy_s(process, parent, number, count)
    return Worker(
        process=process,
        thread=thread,
        number=number,
        doing=doing_of(last),
        frames=frames,
        wait=wait_of(process, thread),
        moved=_moved(process, first, last),
        batch=batch,
        sample=sample_of(frames),
        busy_s=busy_s,
        typical_s=_typical_s(process.age_s, busy_s, batch, count),
    )


def _thread_workers(process: Process) -> list[Worker]:
    """Workers that are threads of the loop's own process: each has a row of the journal."""
    return [
        _our_worker(process, thread, thread.first.journal if thread.first else None, thread.last.journal, threaded=True)
        for thread in process.threads
        if thread.last is not None and thread.last.journal is not None
    ]


def _our_worker(
    process: Process, thread: Thread | None, before: JournalEntry | None, now: JournalEntry, *, threaded: bool = False
) -> Worker:
    """The journal is written by the worker itself, so it needs no stack to be understood."""
    doing = STAGES.get(now.stage, Doing.UNKNOWN)
    last = thread.last if thread else None
    frames = above(last.frames, *(OUR_THREAD if threaded else OUR_WORKER)) if last else ()
    at_work = doing is Doing.LOADING
    age_s = last.age_s if threaded and last and last.age_s is not None else process.age_s
    return Worker(
        process=process,
        thread=thread,
        number=now.worker,
        doing=doing,
        frames=frames,
        wait=wait_of(process, thread),
        moved=before is None
        or (before.stage, before.batch, before.sample, before.samples) != (now.stage, now.batch, now.sample, now.samples),
        batch=now.batch,
        sample=now.sample if at_work else None,
        busy_s=now.since_s if at_work else None,
        typical_s=max(0.0, age_s - (now.since_s or 0.0)) / now.samples if now.samples else None,
        threaded=threaded,
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


def _inline_worker(process: Process, thread: Thread) -> Worker:
    first, last = thread.first, thread.last
    frames = _loading_part(last.frames) if last else ()
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


def _loading_part(frames: Frames) -> Frames:
    """What the loader called, torch's or ours; not what called the loader."""
    for position, frame in enumerate(frames):
        if (frame.name == "_next_data" and frame.file.endswith(LOADER)) or frame.file.endswith(OUR_INLINE):
            return frames[:position]
    return frames


def users_threads(process: Process) -> list[Thread]:
    """Threads that run the user's own code, or a library's on his behalf: not those of multiprocessing and torch."""
    return [
        thread
        for thread in process.threads
        if thread.tid != process.pid and thread.last and not _feeds(thread) and any(is_users(frame) for frame in thread.last.frames)
    ]
