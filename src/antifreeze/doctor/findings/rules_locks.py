"""A worker that waits for a lock: whose, since when, and whether anybody is left to open it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from antifreeze.doctor.facts.model import Frame, Process, Thread
from antifreeze.doctor.findings.case import Case, Doing, Worker
from antifreeze.doctor.findings.cast import users_threads
from antifreeze.doctor.findings.frames import is_users, short
from antifreeze.doctor.findings.model import Confidence, Finding
from antifreeze.doctor.findings.sources import lock_taken_at, locks_held_at, same_lock
from antifreeze.doctor.findings.stalls import blocked_workers, confidence_of, place_text, worker_finding
from antifreeze.doctor.findings.waits import WaitKind, wait_of
from antifreeze.doctor.findings.words import command_text, listed

SPAWN = "multiprocessing_context='forkserver' (or 'spawn') starts workers that inherit nothing"
OURS = "antifreeze.DataLoader starts its workers where no thread can hold a lock, and replaces one that hangs"
NEWS = ("wait", "get", "put", "join", "_wait_for_tstate_lock")


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
        return f"`with {self.lock}:` of {self.frame.file.rsplit('/', 1)[-1]}:{self.with_line}, now at line {self.frame.line}"


def lock_of(worker: Worker, case: Case) -> str | None:
    """The expression of the lock, from the user's own line."""
    place = worker.place
    return lock_taken_at(case.exam.source(place.file), place.line) if place else None


def holdings(lock: str | None, threads: list[tuple[Process, Thread]], case: Case) -> list[Holding]:
    found: list[Holding] = []
    if lock is None:
        return found
    for process, thread in threads:
        for frame in thread.last.frames if thread.last else ():
            held = locks_held_at(case.exam.source(frame.file), frame.line)
            found.extend(Holding(process, thread, name, line, frame) for name, line in held if same_lock(name, lock))
    return found


def own_holding(worker: Worker, case: Case) -> Holding | None:
    """An outer function of the same stack that holds the very lock the inner one waits for."""
    if worker.thread is None:
        return None
    found = holdings(lock_of(worker, case), [(worker.process, worker.thread)], case)
    return next((each for each in found if each.frame in worker.frames and each.frame != worker.place), None)


def waits_for_news(worker: Worker) -> bool:
    """Event.wait() and Queue.get() wait for news, not for a lock that somebody forgot to open."""
    return bool(worker.frames) and worker.frames[0].name in NEWS and not is_users(worker.frames[0])


def lock_taken_twice(case: Case) -> Iterator[Finding]:
    for worker in blocked_workers(case, WaitKind.LOCK, WaitKind.SHARED_LOCK):
        own = own_holding(worker, case)
        if own is not None:
            yield worker_finding(
                "lock-taken-twice",
                f"{worker.name} waits for `{own.lock}`, which it holds itself since line {own.with_line}{place_text(worker)}",
                worker,
                case,
                Confidence.CERTAIN,
                extra=[f"the same stack stands inside {own.text}"],
                advice=["use an RLock, or do not take the lock again in the inner function"],
            )


def lock_inherited_by_fork(case: Case) -> Iterator[Finding]:
    """A private lock, in a forked worker that has no other thread of the user's: nobody can open it."""
    for worker in blocked_workers(case, WaitKind.LOCK):
        alone = worker.process.pid in case.started_by_fork and not _beside(worker)
        if not alone or worker.doing is Doing.CLOSING or waits_for_news(worker) or own_holding(worker, case):
            continue
        lock, loader = lock_of(worker, case), case.loader_of(worker)
        libraries = worker.last.libraries if worker.last else ()
        holders = holdings(lock, [(loader.process, thread) for thread in loader.process.threads] if loader else [], case)
        yield worker_finding(
            "lock-inherited-by-fork",
            f"{worker.name} waits for {_lock_name(lock, libraries)}, which was locked when the worker was forked: nobody is left to open it"
            f"{place_text(worker)}",
            worker,
            case,
            Confidence.CERTAIN if lock or holders else Confidence.LIKELY,
            extra=[
                f"the lock belongs to process {worker.process.pid} alone, and no other thread there could open it",
                *(f"thread {each.thread.python_name!r} of its parent is inside {each.text}" for each in holders),
                f"native libraries on its stack: {listed(libraries)}" if libraries else None,
                _threads_line(loader.process) if loader and not holders else None,
            ],
            advice=[SPAWN, "create the lock, and start threads, in the worker (worker_init_fn) and not before", OURS],
        )


def _lock_name(lock: str | None, libraries: tuple[str, ...]) -> str:
    if lock:
        return f"`{lock}`"
    return f"a lock in {libraries[0]}" if libraries else "a lock in native code"


def _threads_line(process: Process) -> str:
    others = [thread.python_name or thread.name for thread in process.threads if thread.tid != process.pid]
    return f"its parent {process.pid} runs {len(others)} threads beside the main one: {listed(others)}"


def lock_in_process(case: Case) -> Iterator[Finding]:
    """A private lock that another thread of the same worker may hold; or a wait for news that nobody sends."""
    for worker in blocked_workers(case, WaitKind.LOCK):
        threads = _beside(worker)
        if not (threads or waits_for_news(worker)) or worker.doing is Doing.CLOSING or own_holding(worker, case):
            continue
        lock = lock_of(worker, case)
        holders = holdings(lock, [(worker.process, thread) for thread in threads], case)
        yield worker_finding(
            "lock-in-process",
            f"{worker.name} waits for {f'`{lock}`' if lock else 'a lock or an event'} of its own process{_own_holder(holders, threads)}"
            f"{place_text(worker)}",
            worker,
            case,
            confidence_of(worker.stalled_s, worker.typical_s, quiet=True),
            extra=[
                *(f"it is held inside {each.text}" for each in holders),
                *(f"thread {thread.python_name!r} is at {short(thread.last.frames[0])}" for thread in threads if thread.last),
            ],
            advice=[
                "see why that thread does not go on; give the wait a timeout"
                if threads
                else "see who was to end the wait: threads of the parent are not in a worker; start them there, give the wait a timeout",
                SPAWN,
            ],
        )


def _beside(worker: Worker) -> list[Thread]:
    """Threads of the same process that could open its lock."""
    main = [worker.process.main] if worker.threaded and worker.process.main else []
    return [thread for thread in (*main, *users_threads(worker.process)) if thread is not worker.thread]


def _own_holder(holders: list[Holding], threads: list[Thread]) -> str:
    if holders:
        return f", which its thread {holders[0].thread.python_name!r} holds"
    return "" if threads else ", and there is no other thread that could end the wait"


def lock_of_another_worker(case: Case) -> Iterator[Finding]:
    """A semaphore that several processes share: multiprocessing.Lock, RLock, Semaphore, Condition."""
    waiting = blocked_workers(case, WaitKind.SHARED_LOCK)
    for worker in waiting:
        if own_holding(worker, case):
            continue
        lock = lock_of(worker, case)
        others = [(each, thread) for each in case.exam.processes if each.pid != worker.process.pid for thread in each.threads]
        holders = holdings(lock, others, case)
        beside = [each.name for each in waiting if _same_lock_word(each, worker)]
        yield worker_finding(
            "lock-of-another-worker",
            f"{worker.name} waits for {f'`{lock}`' if lock else 'a lock between processes'}, which {_holder_text(holders, case)}"
            f"{place_text(worker)}",
            worker,
            case,
            Confidence.CERTAIN if holders else confidence_of(worker.stalled_s, worker.typical_s, quiet=True),
            extra=[_holding_line(holders, case), f"{len(beside)} wait for it: {listed(beside)}" if len(beside) > 1 else None],
            advice=[
                "see why the holder does not go on: that is the real stop",
                "reading files from several processes needs no lock; and a lock that a killed worker held stays locked for ever",
            ],
        )


def _same_lock_word(one: Worker, other: Worker) -> bool:
    a, b = one.wait.futex, other.wait.futex
    return a is not None and b is not None and (a.inode, a.address % 4096) == (b.inode, b.address % 4096)


def _holder_text(holders: list[Holding], case: Case) -> str:
    if holders:
        return f"{case.name_of(holders[0].process.pid)} holds"
    dead = [process for loader in case.loaders for process in loader.dead]
    return f"a dead worker (pid {dead[0].pid}) probably took with it" if dead else "another process holds"


def _holding_line(holders: list[Holding], case: Case) -> str:
    if not holders:
        return "no stack of the tree stands inside a `with` of this lock"
    wait = wait_of(holders[0].process, holders[0].thread)
    state = "it runs" if wait.kind is WaitKind.NOTHING else f"it waits for {wait.kind.value}"
    return f"{case.name_of(holders[0].process.pid)} is inside {holders[0].text}; {state}"


def file_lock(case: Case) -> Iterator[Finding]:
    for worker in blocked_workers(case, WaitKind.FILE_LOCK):
        own = next((lock for lock in case.exam.file_locks if lock.waiting and lock.pid == worker.process.pid), None)
        holders = [lock.pid for lock in case.exam.file_locks if own and lock.number == own.number and not lock.waiting]
        holder = next((each for each in case.exam.holders if each.pid in holders), None)
        yield worker_finding(
            "file-lock",
            f"{worker.name} waits for the file lock on {worker.wait.file or 'a file'}, which {_locker(holders, worker, case)}"
            f"{place_text(worker)}",
            worker,
            case,
            confidence_of(worker.stalled_s, worker.typical_s, quiet=True),
            extra=[f"the holder is at {short(holder.frames[0])}" if holder and holder.frames else None],
            advice=[
                "close the first one before the second is taken, or take the lock once"
                if holders[:1] == [worker.process.pid]
                else "end the holder, or wait for it; if it is a leftover of an earlier run, end it by its pid",
                "take the lock with LOCK_NB and a limit of tries, or not at all: reading needs no lock",
            ],
        )


def _locker(pids: list[int], worker: Worker, case: Case) -> str:
    if pids[:1] == [worker.process.pid]:
        return "it holds itself, through another open() of the same file"
    if not pids or pids[0] <= 0:
        return "somebody holds whom the kernel does not name (another container, or another machine)"
    commands = {**{each.pid: each.command for each in case.exam.processes}, **{each.pid: each.command for each in case.exam.holders}}
    known = commands.get(pids[0])
    if not known:
        return f"process {pids[0]} took; that one is gone, so a child of it must have it"
    return f"{case.name_of(pids[0])} holds" if case.worker(pids[0]) else f"process {pids[0]} ({command_text(known, 60)}) holds"
