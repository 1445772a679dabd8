"""A thread that sleeps while it owns Python's global lock: the whole process stands still."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.doctor.facts.model import Process, Thread
from antifreeze.doctor.findings.case import Case
from antifreeze.doctor.findings.frames import above, place, short
from antifreeze.doctor.findings.model import Confidence, Finding, finding
from antifreeze.doctor.findings.waits import wait_of
from antifreeze.doctor.findings.words import seconds_text


def gil_held(case: Case) -> Iterator[Finding]:
    for process in case.exam.processes:
        thread = next((each for each in process.threads if _sleeps_with_gil(each, case.window_s)), None)
        waiting = [each for each in process.threads if each is not thread and each.last and each.last.frames]
        if thread is None or thread.last is None or not waiting:
            continue
        worker = case.worker(process.pid)
        where = place(above(thread.last.frames, "_bootstrap", "threading.py"))
        who, at = case.name_of(process.pid), f", at {short(where)}" if where else ""
        yield finding(
            "gil-held",
            f"thread {thread.python_name!r} of {who} sleeps in native code and keeps the GIL: no other Python thread there can run{at}",
            evidence=[
                "it owns the GIL in both looks, and slept between them",
                f"it is in the system call {wait_of(process, thread).call or 'unknown'}(), for {seconds_text(thread.last.asleep_s)} now",
                f"{len(waiting)} other Python threads wait, the main one at {_main_place(process)}",
            ],
            advice=["the native function must release the GIL while it waits (ctypes: CDLL, not PyDLL; C: Py_BEGIN_ALLOW_THREADS)"],
            confidence=Confidence.LIKELY,
            where=where,
            pid=process.pid,
            worker=worker.number if worker else None,
            stalled_s=thread.last.asleep_s,
        )


def _sleeps_with_gil(thread: Thread, window_s: float) -> bool:
    first, last = thread.first, thread.last
    return bool(first and last and first.owns_gil and last.owns_gil and last.state in ("S", "D") and thread.rested(window_s))


def _main_place(process: Process) -> str:
    main = process.main
    return short(main.last.frames[0]) if main and main.last and main.last.frames else "an unknown place"
