"""Workers that did not get anywhere between the two looks, and how sure one can be that they never will."""

from __future__ import annotations

from collections.abc import Iterable

from antifreeze.doctor.findings.case import Case, Doing, LoaderCase, Loop, Worker
from antifreeze.doctor.findings.frames import short, stage_of, trace
from antifreeze.doctor.findings.model import Confidence, Finding, Severity, finding
from antifreeze.doctor.findings.waits import WaitKind
from antifreeze.doctor.findings.words import percent, plural, seconds_text

AT_WORK = (Doing.LOADING, Doing.SENDING, Doing.STARTING, Doing.CLOSING, Doing.UNKNOWN)
MANY_TIMES, SOME_TIMES = 20.0, 5.0
VERY_LONG_S, QUIET_S, LONG_S, WATCHED_S = 60.0, 30.0, 15.0, 7.0


def stuck_workers(case: Case) -> list[Worker]:
    """The one the loop waits for comes first."""
    stuck = [worker for worker in case.workers if worker.doing in AT_WORK and not worker.moved]
    awaited = {loader.awaited for loader in case.loaders}
    return sorted(stuck, key=lambda worker: (worker.number not in awaited, -(worker.stalled_s or 0.0)))


def blocked_workers(case: Case, *kinds: WaitKind) -> list[Worker]:
    return [worker for worker in stuck_workers(case) if worker.wait.kind in kinds and slept_through(worker, case.window_s)]


def slept_through(worker: Worker, window_s: float) -> bool:
    return worker.thread is not None and worker.thread.rested(window_s)


def confidence_of(stalled_s: float | None, typical_s: float | None, *, quiet: bool = False) -> Confidence:
    """`quiet`: it slept the whole time, in a call that should return soon; slow work would have woken it now and then."""
    if stalled_s is None:
        return Confidence.LIKELY if quiet else Confidence.POSSIBLE
    if typical_s is None:
        ratio = stalled_s / (LONG_S / SOME_TIMES)
        certain = stalled_s >= VERY_LONG_S
    else:
        ratio = stalled_s / max(typical_s, 0.05)
        certain = ratio >= MANY_TIMES
    if certain:
        return Confidence.CERTAIN
    too_quiet = quiet and (typical_s is None or stalled_s >= QUIET_S)
    return Confidence.LIKELY if ratio >= SOME_TIMES or too_quiet else Confidence.POSSIBLE


def severity_of(confidence: Confidence) -> Severity:
    return Severity.NOTE if confidence is Confidence.POSSIBLE else Severity.DISEASE


def work_text(worker: Worker) -> str:
    """ "in sample 403" """
    if worker.doing is Doing.STARTING:
        return "while it starts"
    if worker.doing is Doing.CLOSING:
        return "while it ends"
    if worker.sample is not None:
        several = "s" if worker.sample.startswith("[") else ""
        stage = "in" if stage_of(worker.frames) == "in a sample" else "while collating the batch of"
        return f"{stage} sample{several} {worker.sample}"
    return stage_of(worker.frames)


def place_text(worker: Worker) -> str:
    return f", at {short(worker.place)}" if worker.place else ""


def worker_evidence(worker: Worker, case: Case) -> list[str]:
    """What is worth knowing about any stuck worker: where, in which call, since when, and who waits for it."""
    lines = []
    if worker.frames:
        lines.append(f"stack: {trace(worker.frames)}")
    if worker.wait.call:
        target = f" on {worker.wait.file}" if worker.wait.file else ""
        lines.append(f"system call: {worker.wait.call}(){target}")
    lines.append(time_line(worker, case))
    loader = case.loader_of(worker)
    if loader is not None and not worker.inline:
        lines.append(loop_line(loader))
    return lines


def active_share(worker: Worker) -> float:
    """Of the window: it ran, or would have run had a core been free."""
    thread, window_s = worker.thread, worker.process.window_s
    return thread.cpu_share(window_s) + thread.delayed_share(window_s) if thread else 0.0


def computes(worker: Worker, share: float) -> bool:
    """Threads of one process take turns with the GIL, so none of them can have a core for itself."""
    return active_share(worker) >= share or (worker.threaded and worker.process.cpu_share >= share and active_share(worker) >= 0.1)


def time_line(worker: Worker, case: Case) -> str:
    share = worker.thread.cpu_share(worker.process.window_s) if worker.thread else 0.0
    delayed = active_share(worker) - share
    waited = f" (and waited for a free core {percent(delayed)})" if delayed > 0.1 else ""
    used = f"{percent(share)} CPU in the {seconds_text(case.window_s)} of watching{waited}"
    if worker.stalled_s is None:
        return f"{used}; the same work in both looks"
    typical = f"; its earlier batches took {seconds_text(worker.typical_s)} on average" if worker.typical_s is not None else ""
    return f"for {seconds_text(worker.stalled_s)} now, {used}{typical}"


def loop_line(loader: LoaderCase) -> str:
    others = [worker for worker in loader.workers if worker.doing is Doing.IDLE]
    idle = f"; {len(others)} of {plural(len(loader.workers), 'worker')} idle" if loader.workers else ""
    where = f" at {short(loader.place)}" if loader.place else ""
    awaited = f", next from worker {loader.awaited}" if loader.loop is Loop.WAITING and loader.awaited is not None else ""
    return f"{loader.name} {loader.loop.value}{awaited}{where}{idle}"


def worker_finding(
    code: str, verdict: str, worker: Worker, case: Case, confidence: Confidence, *, extra: Iterable[str | None] = (), advice: Iterable[str]
) -> Finding:
    return finding(
        code,
        verdict,
        evidence=(*extra, *worker_evidence(worker, case)),
        advice=advice,
        severity=severity_of(confidence),
        confidence=confidence,
        where=worker.place,
        pid=worker.process.pid,
        worker=worker.number,
        stalled_s=worker.stalled_s,
    )
