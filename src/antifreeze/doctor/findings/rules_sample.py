"""A worker that is at work, and does not come back: it computes, or it sleeps by its own will."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.doctor.findings.case import Case, Worker
from antifreeze.doctor.findings.model import Confidence, Finding
from antifreeze.doctor.findings.stalls import confidence_of, place_text, slept_through, stuck_workers, work_text, worker_finding
from antifreeze.doctor.findings.waits import WaitKind
from antifreeze.doctor.findings.words import seconds_text

BUSY_SHARE = 0.7


def infinite_loop(case: Case) -> Iterator[Finding]:
    """The same sample in both looks, and it used its core all the time, or wakes again and again."""
    for worker in stuck_workers(case):
        share = active_share(worker, case.window_s)
        turning = worker.wait.kind is WaitKind.SLEEP and not slept_through(worker, case.window_s)
        if share < BUSY_SHARE and not turning:
            continue
        confidence = confidence_of(worker.stalled_s, worker.typical_s)
        how = "computed" if share >= BUSY_SHARE else "gone round (it sleeps in between)"
        extra = [] if confidence is not Confidence.POSSIBLE else ["it may only be slow: nothing here tells how long a sample takes"]
        yield worker_finding(
            "infinite-loop",
            f"{worker.name} has {how} {work_text(worker)} for {seconds_text(worker.stalled_s)} without finishing{place_text(worker)}",
            worker,
            case,
            confidence,
            extra=extra,
            advice=[
                "look at the loop in that line: what ends it, and can that fail for this sample?",
                f"try the sample alone: dataset[{worker.sample}]" if worker.sample else "try the data set without workers (num_workers=0)",
                "antifreeze.DataLoader(…, sample_timeout_s=60, on_bad_sample='skip') ends such a sample and goes on",
            ],
        )


def sleeping(case: Case) -> Iterator[Finding]:
    for worker in stuck_workers(case):
        if worker.wait.kind is not WaitKind.SLEEP or not slept_through(worker, case.window_s):
            continue
        rest = f" and will for {seconds_text(worker.wait.limit_s)} more" if worker.wait.limit_s else ""
        yield worker_finding(
            "sleeping-in-sample",
            f"{worker.name} sleeps by itself {work_text(worker)}, for {seconds_text(worker.stalled_s)} now{rest}{place_text(worker)}",
            worker,
            case,
            confidence_of(worker.stalled_s, worker.typical_s),
            extra=["the call is a sleep: the code waits on purpose, for instance before it tries again"],
            advice=["look what it waits for in that line, and give the wait an end (a number of tries, a timeout)"],
        )


def active_share(worker: Worker, window_s: float) -> float:
    """Of the window: it ran, or would have run had a core been free."""
    thread = worker.thread
    return (thread.cpu_used_s + thread.delayed_s) / window_s if thread and window_s else 0.0
