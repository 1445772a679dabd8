"""What goes wrong between a worker and the loop: a batch that was lost, no room to put it, a pin-memory thread that hangs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from antifreeze.doctor.facts.model import Process, ShmSpace
from antifreeze.doctor.findings.case import Case, Doing, LoaderCase, Loop
from antifreeze.doctor.findings.frames import Frames, above, is_users, place, short, trace
from antifreeze.doctor.findings.model import Confidence, Finding, finding
from antifreeze.doctor.findings.rules_deaths import missing_workers
from antifreeze.doctor.findings.stalls import loop_line
from antifreeze.doctor.findings.waits import wait_of
from antifreeze.doctor.findings.words import bytes_text, listed, percent, plural, seconds_text

SIGBUS = 7
BUSY, NOTICED_S = 0.7, 6.0
FULL_SHARE, FULL_BYTES, SMALL_BYTES = 0.02, 4_000_000, 100_000_000
LOST_ERROR = re.compile(r"^.*Error.*(?:[Pp]ickl|Too many open files|No space left|shared memory|ancdata).*$", re.MULTILINE)


def everybody_waits(loader: LoaderCase) -> bool:
    """The loop for a batch, and every worker for work: nothing is under way any more."""
    idle = bool(loader.workers) and all(worker.doing is Doing.IDLE for worker in loader.workers)
    return idle and loader.loop is Loop.WAITING and not loader.moved


def last_error(loader: LoaderCase) -> str | None:
    """The last line about something that could not be sent, where standard error is a file."""
    tails = [*(worker.process.stderr_tail for worker in loader.workers), loader.process.stderr_tail]
    found = [match for tail in tails for match in LOST_ERROR.findall(tail)]
    return found[-1].strip()[:200] if found else None


def _error_line(loader: LoaderCase | None) -> str | None:
    error = last_error(loader) if loader else None
    return f"on standard error: {error}" if error else None


def result_lost(case: Case) -> Iterator[Finding]:
    for loader in case.loaders:
        if not everybody_waits(loader) or loader.dead or missing_workers(loader) or not _pin_thread_fetches(loader):
            continue
        loser = next((worker.name for worker in loader.workers if worker.number == loader.awaited), "a worker")
        error = _error_line(loader)
        yield finding(
            "result-lost",
            f"{loader.name} waits for a batch that {loser} finished but could not send: it was lost on the way",
            evidence=[
                error or "the reason was printed on the workers' standard error: look there for a traceback",
                f"{len(loader.workers)} of {len(loader.workers)} workers are idle while the loop waits: nothing is under way any more",
                "torch pickles a batch in a thread of its own, where an error ends the batch and nothing else (pytorch#142884)",
                loop_line(loader),
            ],
            advice=[
                "make the batch picklable: no locks, file handles, generators, lambdas or readers in what data set and collate_fn return",
                "check it: pickle.dumps(collate_fn([dataset[0]]))",
                "antifreeze.DataLoader raises BatchNotPicklable and names the part",
            ],
            confidence=Confidence.CERTAIN if error else Confidence.LIKELY,
            where=loader.place,
            pid=loader.process.pid,
            worker=loader.awaited,
            stalled_s=loader.waited_s,
        )


def is_full(shm: ShmSpace, *, lost: bool, error: str | None, bus_error: bool) -> bool:
    """For a large batch it is full long before its last byte; then an error, or a worker that died of it, tells."""
    if shm.free <= min(FULL_SHARE * shm.total, FULL_BYTES):
        return True
    said_so = error is not None and ("No space left" in error or "allocate shared memory" in error)
    small = shm.total <= SMALL_BYTES and shm.free <= 0.5 * shm.total
    return (lost and (said_so or (small and error is None))) or (bus_error and shm.free <= 0.5 * shm.total)


def shared_memory_full(case: Case) -> Iterator[Finding]:
    for loader in case.loaders:
        shm, error = loader.process.shm, last_error(loader)
        lost = everybody_waits(loader)
        bus_error = any((process.exit_status or 0) & 0x7F == SIGBUS for process in loader.dead)
        if shm is None or not shm.total or not is_full(shm, lost=lost, error=error, bus_error=bus_error):
            continue
        pieces = sum(each.kind == "shared memory" for each in loader.process.descriptors)
        what = ", a batch could not be sent" if lost else ""
        yield finding(
            "shared-memory-full",
            f"/dev/shm is full ({bytes_text(shm.free)} of {bytes_text(shm.total)} free){what}, and {loader.name} {loader.loop.value}",
            evidence=[
                _error_line(loader),
                "a worker was killed by SIGBUS, as happens when /dev/shm has no page left" if bus_error else None,
                f"the loop's process holds {plural(pieces, 'piece')} of shared memory",
                loop_line(loader),
            ],
            advice=[
                "give it more: `docker run --shm-size=8g …` or `--ipc=host`; Kubernetes: an emptyDir with medium: Memory at /dev/shm",
                "do not keep batches in a list; lower prefetch_factor, num_workers or the batch size",
                "antifreeze.DataLoader does not use /dev/shm",
            ],
            confidence=Confidence.CERTAIN if error or lost else Confidence.LIKELY,
            where=loader.place,
            pid=loader.process.pid,
            stalled_s=loader.waited_s,
        )


def descriptors_exhausted(case: Case) -> Iterator[Finding]:
    for process in case.exam.processes:
        limit = process.descriptor_limit
        if not limit or process.descriptor_count < min(limit - 3, round(0.98 * limit)):
            continue
        worker = case.worker(process.pid)
        loader = case.loader_of(worker) if worker else next((each for each in case.loaders if each.process.pid == process.pid), None)
        yield finding(
            "descriptors-exhausted",
            f"{case.name_of(process.pid)} has {process.descriptor_count} of {limit} files open, and can open no more",
            evidence=[f"they are: {_kinds(process)}", _error_line(loader), loop_line(loader) if loader else None],
            advice=[
                "raise the limit: `ulimit -n 65536` before the start (docker: --ulimit nofile=65536)",
                "torch sends one descriptor per tensor: return one stacked tensor and not a list of many, and do not keep batches",
                "set_sharing_strategy('file_system') uses none, but leaks names in /dev/shm when a process is killed",
            ],
            where=loader.place if loader else None,
            pid=process.pid,
            worker=worker.number if worker else None,
        )


def _kinds(process: Process) -> str:
    counts: dict[str, int] = {}
    for each in process.descriptors:
        counts[each.kind] = counts.get(each.kind, 0) + 1
    return listed(f"{count} {kind}" for kind, count in sorted(counts.items(), key=lambda item: -item[1]))


def pin_thread_stuck(case: Case) -> Iterator[Finding]:
    """The thread between the workers and the loop, which neither fetches nor hands over: it sleeps, or computes on and on."""
    for loader in case.loaders:
        thread = loader.pin_thread
        if thread is None or thread.first is None or thread.last is None or loader.loop is not Loop.WAITING:
            continue
        inner, before = (above(sample.frames, "do_one_step", "pin_memory.py") for sample in (thread.last, thread.first))
        computes = not loader.moved and thread.cpu_share(loader.process.window_s) + thread.delayed_share(loader.process.window_s) >= BUSY
        if _fetches(inner) or _fetches(before) or not (thread.rested(case.window_s) or computes):
            continue
        where, wait = place(inner), wait_of(loader.process, thread)
        stalled_s = thread.last.asleep_s if not computes else loader.waited_s
        waits = f"it waits for {wait.kind.value}{f' in {wait.call}()' if wait.call else ''}, for {seconds_text(stalled_s)} now"
        yield finding(
            "pin-thread-stuck",
            f"the pin-memory thread of {loader.name} does not come back from pinning a batch{f', at {short(where)}' if where else ''}",
            evidence=[
                f"stack: {trace(inner)}",
                f"it used its core {percent(thread.cpu_share(loader.process.window_s))} of the time" if computes else waits,
                loop_line(loader),
            ],
            advice=[
                "pin_memory=False tells whether pinning is to blame",
                "a batch type's own pin_memory() must not wait for anything, and must end",
            ],
            confidence=Confidence.LIKELY if computes else Confidence.CERTAIN,
            where=where,
            pid=loader.process.pid,
            stalled_s=stalled_s,
        )


def _pin_thread_fetches(loader: LoaderCase) -> bool:
    last = loader.pin_thread.last if loader.pin_thread else None
    return last is None or not last.frames or _fetches(above(last.frames, "do_one_step", "pin_memory.py"))


def _fetches(inner: Frames) -> bool:
    return not inner or (any(frame.name == "get" for frame in inner) and not any(is_users(frame) for frame in inner))


def pin_thread_dead(case: Case) -> Iterator[Finding]:
    """The loop reads from the thread's queue, and there is no such thread."""
    for loader in case.loaders:
        waits_for_thread = any(frame.name == "get" and frame.file.endswith("/queue.py") for frame in loader.frames)
        if loader.loop is not Loop.WAITING or loader.moved or not waits_for_thread or loader.pin_thread is not None:
            continue
        error = pin_error(loader.process.stderr_tail)
        limit_s = loader.wait.limit_s
        yield finding(
            "pin-thread-dead",
            f"{loader.name} waits for its pin-memory thread, which {f'died: {error}' if error else 'is not there any more'}"
            f"{f', at {short(loader.place)}' if loader.place else ''}",
            evidence=[
                f"threads: {listed(thread.python_name or thread.name for thread in loader.process.threads)}",
                f"torch notices only when timeout= is over, in {seconds_text(limit_s)}" if limit_s and limit_s > NOTICED_S else None,
                loop_line(loader),
            ],
            advice=[
                "repair what the thread died of: what a batch is unpickled from, or a batch type's pin_memory()"
                if error
                else "look for a traceback of that thread (_pin_memory_loop) on standard error",
                "pin_memory=False tells whether pinning is to blame; without timeout= torch raises within 5 s",
            ],
            confidence=Confidence.CERTAIN if error else Confidence.LIKELY,
            where=loader.place,
            pid=loader.process.pid,
            stalled_s=loader.waited_s,
        )


def pin_error(stderr_tail: str) -> str | None:
    """Of the thread's traceback, where standard error is a file: the line that ends it."""
    _, found, rest = stderr_tail.rpartition("_pin_memory_loop")
    lines = rest.splitlines()[1:]
    return next((line.strip()[:200] for line in lines if found and line and not line.startswith((" ", "Traceback"))), None)
