"""A worker that is at work, and does not come back: it computes, or it sleeps by its own will."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.doctor.findings.case import Case, Doing, Worker
from antifreeze.doctor.findings.frames import stage_of
from antifreeze.doctor.findings.model import Confidence, Finding
from antifreeze.doctor.findings.stalls import (
    WATCHED_S,
    computes,
    confidence_of,
    place_text,
    slept_through,
    stuck_workers,
    work_text,
    worker_finding,
)
from antifreeze.doctor.findings.waits import WaitKind
from antifreeze.doctor.findings.words import seconds_text

BUSY_SHARE = 0.7
MAY_BE_SLOW = "it may only be slow: nothing here tells how long a sample takes; `--seconds 30` watches longer"


def infinite_loop(case: Case) -> Iterator[Finding]:
    """The same sample in both looks, and it used its core all the time, or wakes again and again."""
    for worker in stuck_workers(case):
        if worker.doing is Doing.STARTING:
            continue  # unpickling a large data set takes its time; starting_workers() says so
        busy = computes(worker, BUSY_SHARE)
        if not busy and not _goes_round(worker, case):
            continue
        confidence = _confidence(worker, case)
        between = "sleeps" if worker.wait.kind is WaitKind.SLEEP else f"waits for {worker.wait.kind.value}"
        how = "computed" if busy else f"gone round (it {between} in between)"
        yield worker_finding(
            "infinite-loop",
            f"{worker.name} has {how} {work_text(worker)} for {_duration(worker)} without finishing{place_text(worker)}",
            worker,
            case,
            confidence,
            extra=[MAY_BE_SLOW if confidence is Confidence.POSSIBLE else None],
            advice=[
                "look at the loop around that line: what ends it, and can that fail for this sample?",
                _alone(worker),
                "antifreeze.DataLoader(…, sample_timeout_s=60, on_bad_sample='skip') ends such a sample and goes on",
            ],
        )


def _goes_round(worker: Worker, case: Case) -> bool:
    """It wakes again and again, out of waits that have a limit: a loop that asks whether something has come."""
    limited = worker.wait.kind is WaitKind.SLEEP or worker.wait.limit_s is not None
    return limited and not slept_through(worker, case.window_s)


def _alone(worker: Worker) -> str:
    if not worker.sample:
        return "try the data set without workers (num_workers=0)"
    if stage_of(worker.frames) == "in a sample":
        if worker.sample.startswith("["):
            return f"try the samples alone: dataset.__getitems__({worker.sample})"
        return f"try the sample alone: dataset[{worker.sample}]"
    return (
        f"try the batch alone: collate_fn([dataset[index] for index in {worker.sample}])"
        if worker.sample.startswith("[")
        else "try its batch"
    )


def _duration(worker: Worker) -> str:
    """In the loop's own process nothing tells when the sample began, so it is at least as long as we watched."""
    return f"at least {seconds_text(worker.stalled_s)}" if worker.inline else seconds_text(worker.stalled_s)


def _confidence(worker: Worker, case: Case) -> Confidence:
    if worker.inline:
        return Confidence.LIKELY if case.window_s >= WATCHED_S else Confidence.POSSIBLE
    return confidence_of(worker.stalled_s, worker.typical_s)


def sleeping(case: Case) -> Iterator[Finding]:
    for worker in stuck_workers(case):
        if worker.wait.kind is not WaitKind.SLEEP or not slept_through(worker, case.window_s):
            continue
        confidence = confidence_of(worker.stalled_s, worker.typical_s)
        rest = f" and will for {seconds_text(worker.wait.limit_s)} more" if worker.wait.limit_s else ""
        yield worker_finding(
            "sleeping-in-sample",
            f"{worker.name} sleeps by itself {work_text(worker)}, for {seconds_text(worker.stalled_s)} now{rest}{place_text(worker)}",
            worker,
            case,
            confidence,
            extra=[
                MAY_BE_SLOW if confidence is Confidence.POSSIBLE else None,
                "the call is a sleep: the code waits on purpose, for instance before it tries again",
            ],
            advice=["look what it waits for in that line, and give the wait an end (a number of tries, a timeout)"],
        )
