"""A worker that waits for a lock: whose, since when, and whether anybody is left to open it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from antifreeze.doctor.facts.model import Frame, Process, Thread
from antifreeze.doctor.findings.case import Case, Doing, Worker, users_threads
from antifreeze.doctor.findings.frames import above, is_users, short
from antifreeze.doctor.findings.model import Confidence, Finding, Severity
from antifreeze.doctor.findings.sources import lock_taken_at, locks_held_at, same_lock
from antifreeze.doctor.findings.stalls import blocked_workers, confidence_of, place_text, work_text, worker_finding
from antifreeze.doctor.findings.waits import WaitKind, wait_of
from antifreeze.doctor.findings.words import command_text, listed, seconds_text

SPAWN = "multiprocessing_context='forkserver' (or 'spawn') starts workers that inherit nothing"
OURS = "antifreeze.DataLoader starts its workers where no thread can hold a lock, and replaces one that hangs"


@dataclass(frozen=True)
class Holding:
    """A stack that stands inside a `with` of the lock."""

    process: Process
    thread: Thread
    lock: str
    with_line: int
    frame: Frame

    @property
    def text(self) -> str:
        return f"`with {self.lock}:` of line {self.with_line} in {self.frame.file.rsplit('/', 1)[-1]}, now at line {self.frame.line}"


def lock_of(worker: Worker, case: Case) -> str | None:
    """The expression of the lock, from the user's own line."""
    place = worker.place
    return lock_taken_at(case.exam.source(place.file), place.line) if place else None


def holdings(lock: str | None, threads: list[tuple[Process, Thread]], case: Case) -> list[Holding]:
    found = []
    for process, thread in threads if lock else ():
        for frame in thread.last.frames if thread.last else ():
            held = [
                each
                for each in locks_held_at(case.exam.source(frame.file), frame.line)
                if is_users(frame) and same_lock(each[0], lock or "")
            ]
            found.extend(Holding(process, thread, expression, line, frame) for expression, line in held)
    return found


def lock_taken_twice(case: Case) -> Iterator[Finding]:
    for worker in blocked_workers(case, WaitKind.LOCK, WaitKind.SHARED_LOCK):
        own = _outer_holding(worker, case)
        if own is None:
            continue
        yield worker_finding(
            "lock-taken-twice",
            f"{worker.name} waits for a lock that it holds itself{place_text(worker)}: it took it at line {own.with_line}",
            worker,
            case,
            Confidence.CERTAIN,
            extra=[f"the same stack stands inside {own.text}"],
            advice=["use threading.RLock (multiprocessing.RLock), or do not take the lock again in the inner function"],
        )


def _outer_holding(worker: Worker, case: Case) -> Holding | None:
    if worker.thread is None:
        return None
    inside = [each for each in holdings(lock_of(worker, case), [(worker.process, worker.thread)], case) if each.frame in worker.frames]
    return next((each for each in inside if each.frame != worker.place), None)


def lock_inherited_by_fork(case: Case) -> Iterator[Finding]:
    """Nobody else in the worker can open it: a private lock, and no other thread that runs anything of the user's."""
    for worker in blocked_workers(case, WaitKind.LOCK):
        if worker.process.pid not in case.started_by_fork or users_threads(worker.process) or _outer_holding(worker, case):
            continue
        if worker.doing is Doing.CLOSING or _waits_inside_threading(worker):
            continue
        lock, loader = lock_of(worker, case), case.loader_of(worker)
        parents_threads = [(loader.process, thread) for thread in loader.process.threads] if loader else []
        holders = holdings(lock, parents_threads, case)
        libraries = worker.last.libraries if worker.last else ()
        what = f"`{lock}`" if lock else f"a lock in {libraries[0]}" if libraries else "a lock in native code"
        extra = [f"the lock belongs to process {worker.process.pid} alone, and no other thread there could open it"]
        extra += [f"its parent holds it in thread {each.thread.python_name!r}: inside {each.text}" for each in holders]
        extra += [f"native libraries on its stack: {listed(libraries)}"] if libraries else []
        extra += [_threads_line(loader.process)] if loader and not holders else []
        yield worker_finding(
            "lock-inherited-by-fork",
            f"{worker.name} waits for {what}, which was locked when the worker was forked; nobody is left to open it{place_text(worker)}",
            worker,
            case,
            Confidence.CERTAIN if lock or holders else Confidence.LIKELY,
            extra=extra,
            advice=[SPAWN, "create the lock, and start threads, in the worker (worker_init_fn) and not before", OURS],
        )


def _waits_inside_threading(worker: Worker) -> bool:
    """Event.wait() and Queue.get() wait for news, not for a lock that somebody forgot to open."""
    return (
        bool(worker.frames) and worker.frames[0].name in ("wait", "get", "join", "_wait_for_tstate_lock") and not is_users(worker.frames[0])
    )


def _threads_line(process: Process) -> str:
    others = [thread.python_name or thread.name for thread in process.threads if thread.tid != process.pid]
    return f"its parent {process.pid} runs {len(others)} threads beside the main one: {listed(others)}"


def lock_in_process(case: Case) -> Iterator[Finding]:
    """A private lock, and other threads of the same worker that may hold it; or a wait for news that nobody sends."""
    for worker in blocked_workers(case, WaitKind.LOCK):
        threads = users_threads(worker.process)
        waits_for_news = _waits_inside_threading(worker) and worker.doing is not Doing.CLOSING
        if (not threads and not waits_for_news) or _outer_holding(worker, case):
            continue
        lock = lock_of(worker, case)
        holders = holdings(lock, [(worker.process, thread) for thread in threads], case)
        standing = [f"thread {thread.python_name!r} is at {short(thread.last.frames[0])}" for thread in threads if thread.last]
        what = f"`{lock}`" if lock else "a lock or an event"
        whom = (
            f", which its thread {holders[0].thread.python_name!r} holds"
            if holders
            else ""
            if threads
            else ", and no other thread is there to set it"
        )
        yield worker_finding(
            "lock-in-process",
            f"{worker.name} waits for {what} of its own process{whom}{place_text(worker)}",
            worker,
            case,
            confidence_of(worker.stalled_s, worker.typical_s, quiet=True),
            extra=[f"held inside {each.text}" for each in holders] + standing,
            advice=["see why that thread does not go on; give the wait a timeout", SPAWN],
        )


def lock_of_another_worker(case: Case) -> Iterator[Finding]:
    """A semaphore that several processes share: multiprocessing.Lock, RLock, Semaphore, Condition."""
    for worker in blocked_workers(case, WaitKind.SHARED_LOCK):
        if _outer_holding(worker, case):
            continue
        lock = lock_of(worker, case)
        others = [(each, thread) for each in case.exam.processes if each.pid != worker.process.pid for thread in each.threads]
        holders = holdings(lock, others, case)
        futex = worker.wait.futex
        waiters = [each for each in blocked_workers(case, WaitKind.SHARED_LOCK) if each.wait.futex and futex and _same_futex(each, worker)]
        whom, extra = _whom(holders, case)
        extra.append(
            f"{len(waiters)} wait for it: {listed(each.name for each in waiters)}; it is {futex.mapping or 'a shared futex' if futex else ''}"
        )
        yield worker_finding(
            "lock-of-another-worker",
            f"{worker.name} waits for {f'`{lock}`' if lock else 'a lock between processes'}, which {whom}{place_text(worker)}",
            worker,
            case,
            Confidence.CERTAIN if holders else confidence_of(worker.stalled_s, worker.typical_s, quiet=True),
            extra=extra,
            advice=[
                "see why the holder does not go on: that is the real stop",
                "reading files from several processes needs no lock; a lock that a killed worker held stays locked for ever",
            ],
        )


def _same_futex(one: Worker, other: Worker) -> bool:
    a, b = one.wait.futex, other.wait.futex
    return a is not None and b is not None and (a.inode, a.address % 4096) == (b.inode, b.address % 4096)


def _whom(holders: list[Holding], case: Case) -> tuple[str, list[str]]:
    if not holders:
        dead = [process for loader in case.loaders for process in loader.dead]
        if dead:
            return f"a dead worker probably took with it (pid {dead[0].pid})", [
                f"{len(dead)} of the workers are dead, and a lock outlives its holder"
            ]
        return "another process holds", ["no stack in the tree stands inside a `with` of this lock"]
    first = holders[0]
    worker = next((each for each in case.workers if each.process.pid == first.process.pid), None)
    who = worker.name if worker else f"process {first.process.pid}"
    wait = wait_of(first.process, first.thread)
    return f"{who} holds", [
        f"{who} is inside {first.text}, and waits for {wait.kind.value}"
        if wait.kind is not WaitKind.NOTHING
        else f"{who} is inside {first.text}"
    ]


def file_lock(case: Case) -> Iterator[Finding]:
    for worker in blocked_workers(case, WaitKind.FILE_LOCK):
        own = next((lock for lock in case.exam.file_locks if lock.waiting and lock.pid == worker.process.pid), None)
        before = [lock for lock in case.exam.file_locks if own and lock.number == own.number and not lock.waiting]
        path = worker.wait.file or "a file"
        whom, extra = _lock_holders([lock.pid for lock in before], case)
        yield worker_finding(
            "file-lock",
            f"{worker.name} waits for the file lock on {path}, which {whom}{place_text(worker)}",
            worker,
            case,
            confidence_of(worker.stalled_s, worker.typical_s, quiet=True),
            extra=extra,
            advice=[
                "end the holder, or wait for it; if it is a leftover of an earlier run, end it by its pid",
                "take the lock with LOCK_NB and a limit of tries, or not at all: reading needs no lock",
            ],
        )


def _lock_holders(pids: list[int], case: Case) -> tuple[str, list[str]]:
    if not pids:
        return "somebody holds whom the kernel does not name (another container, or a network lock)", []
    holder = next((each for each in case.exam.holders if each.pid == pids[0]), None)
    inside = case.exam.process(pids[0])
    worker = next((each for each in case.workers if each.process.pid == pids[0]), None)
    command = command_text(holder.command if holder else inside.command if inside else ())
    who = (
        worker.name
        if worker
        else f"process {pids[0]} ({command})"
        if command
        else f"process {pids[0]} took (it is gone; a child of it may have it)"
    )
    where = [f"the holder is at {short(holder.frames[0])}"] if holder and holder.frames else []
    return f"{who} holds" if command or worker else who, where


def gil_held(case: Case) -> Iterator[Finding]:
    """One thread owned the GIL in both looks and slept: no other Python thread of that process can run."""
    for process in case.exam.processes:
        thread = next((each for each in process.threads if each.first and each.last and each.first.owns_gil and each.last.owns_gil), None)
        if thread is None or thread.last is None or len(process.threads) < 2 or thread.last.state == "R":
            continue
        waiting = [each for each in process.threads if each is not thread and each.last and each.last.frames]
        if not waiting or thread.first is None or thread.first.switches != thread.last.switches:
            continue
        worker = next((each for each in case.workers if each.process.pid == process.pid), None)
        frames = above(thread.last.frames, "_bootstrap", "threading.py")
        place = next((frame for frame in frames if is_users(frame)), frames[0] if frames else None)
        wait = wait_of(process, thread)
        yield Finding(
            code="gil-held",
            verdict=f"thread {thread.python_name!r} of {worker.name if worker else f'process {process.pid}'} sleeps in native code and keeps the GIL: "
            f"no other Python thread there can run{f', at {short(place)}' if place else ''}",
            severity=Severity.DISEASE,
            confidence=Confidence.LIKELY,
            evidence=(
                f"it owns the GIL in both looks and did not run once between them; system call: {wait.call or 'unknown'}()",
                f"{len(waiting)} other Python threads of the process wait, the main one at {_main_place(process)}",
                f"asleep for {seconds_text(thread.last.asleep_s)}",
            ),
            advice=("the native function must release the GIL while it waits (ctypes: CDLL, not PyDLL; C: Py_BEGIN_ALLOW_THREADS)",),
            pid=process.pid,
            worker=worker.number if worker else None,
            file=place.file if place else None,
            line=place.line if place else None,
            stalled_s=thread.last.asleep_s,
        )


def _main_place(process: Process) -> str:
    main = process.main
    return short(main.last.frames[0]) if main and main.last and main.last.frames else "an unknown place"
