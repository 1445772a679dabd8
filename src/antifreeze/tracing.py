"""`antifreeze.trace("out.json")`: the loop and its workers on one time line, for Perfetto (ui.perfetto.dev) or chrome://tracing.

    with antifreeze.trace("out.json") as trace:              trace = antifreeze.trace("out.json").start()
        with torch.profiler.profile() as profiler:           …
            for batch in loader: …                           trace.stop()
        trace.merge(profiler)                                what torch itself recorded, in the same file

1. One trace at a time in a process. Memory is bounded; what did not fit is counted in the file.
2. The file is opened at the start, so that a path that cannot be written is an error before the run, not after it.
3. A trace that nobody stopped is written when the process ends; one that is killed leaves an empty file.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable
from multiprocessing import util
from types import TracebackType
from typing import Any

from antifreeze import spans
from antifreeze.errors import OptionError, TraceError
from antifreeze.spans import THE_LOOP, Recorder, Span


class trace:
    """Records from `start()`, or the beginning of a `with`, to `stop()`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._recorder: Recorder | None = None
        self._file: Any = None
        self._pid = 0
        self._unix_ns = 0
        self._foreign: list[dict[str, Any]] = []
        self._base_ns: int | None = None

    def __repr__(self) -> str:
        state = "not recording" if self._recorder is None else f"{len(self._recorder.spans):,} spans so far"
        return f"<antifreeze.trace to {self.path}: {state}>"

    def start(self, *, make_file_now: bool = True) -> trace:
        """Without `make_file_now` there is no file unless something was recorded."""
        if spans.active is not None:
            raise TraceError(f"a trace is being recorded already; stop that one before {self.path} begins")
        self._file = self._open() if make_file_now else None
        self._pid = os.getpid()
        self._unix_ns = time.time_ns() - time.perf_counter_ns()
        self._foreign, self._base_ns = [], None
        spans.active = self._recorder = Recorder()
        self._at_end = util.Finalize(None, self.stop, exitpriority=0)
        return self

    def stop(self) -> None:
        """Writes the file; may be called twice. A forked child writes nothing."""
        recorder, self._recorder = self._recorder, None
        if recorder is None or self._pid != os.getpid():
            return
        if spans.active is recorder:
            spans.active = None
        self._at_end.cancel()
        if self._file is None and not recorder.spans:
            return
        with self._file or self._open() as file:
            json.dump(self._document(recorder), file)

    def _open(self) -> Any:
        try:
            return open(self.path, "w", encoding="utf-8")
        except OSError as error:
            raise OptionError(f"the trace cannot be written to {self.path!r}: {error.strerror}") from None

    def merge(self, profile: Any) -> None:
        """Takes what torch recorded into this file: a torch.profiler.profile that has ended, or the path of a trace it exported. (torch
        gives a profile away once: who wants a file of its own exports it first, and merges that.)"""
        if self._recorder is None:
            raise TraceError(f"the trace to {self.path} has ended; merge before it does")
        document = _exported(profile)
        events = document.get("traceEvents") if isinstance(document, dict) else None
        if not isinstance(events, list):
            raise OptionError(f"{profile!r} is no trace of torch's profiler: it has no list of traceEvents")
        base_ns = int(document.get("baseTimeNanoseconds", 0))
        if self._base_ns is not None and base_ns != self._base_ns:
            events = [{**event, "ts": event["ts"] + (base_ns - self._base_ns) / 1e3} if "ts" in event else event for event in events]
        self._base_ns = base_ns if self._base_ns is None else self._base_ns
        self._foreign += events

    def __enter__(self) -> trace:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.stop()

    def _document(self, recorder: Recorder) -> dict[str, Any]:
        base_ns = self._base_ns
        if base_ns is None:
            base_ns = self._unix_ns + min((span.began_ns for span in recorder.spans), default=0)
        threads = {number for number, is_thread in recorder.threads.items() if is_thread}
        ours = [*_names(recorder.spans, threads), *(_event(span, self._unix_ns - base_ns, threads) for span in recorder.spans)]
        return {
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": base_ns,
            "antifreeze": {"spans": len(recorder.spans), "left_out": recorder.left_out},
            "traceEvents": [*self._foreign, *ours],
        }


def _exported(profile: Any) -> Any:
    if not hasattr(profile, "export_chrome_trace"):
        try:
            with open(profile, encoding="utf-8") as file:
                return json.load(file)
        except (OSError, TypeError, ValueError) as error:
            raise OptionError(f"{profile!r} is no trace of torch's profiler: {error}") from None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "torch.json")
        profile.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def _event(span: Span, to_base_ns: int, threads: set[int]) -> dict[str, Any]:
    pid, tid = _place(span.pid, span.track, threads)
    event = {
        "name": span.name,
        "cat": "antifreeze",
        "pid": pid,
        "tid": tid,
        "ts": (span.began_ns + to_base_ns) / 1e3,
        "args": span.args,
    }
    if span.took_ns is None:
        return event | {"ph": "i", "s": "p"}
    return event | {"ph": "X", "dur": span.took_ns / 1e3}


def _place(pid: int, track: int, threads: set[int]) -> tuple[int, int]:
    """(process, thread): the loop's own track stands beside the threads that torch shows under their numbers; a worker has one thread,
    its own, or is one of ours."""
    if track == THE_LOOP:
        return pid, 0
    return (os.getpid(), pid) if pid in threads else (pid, pid)


def _names(recorded: Iterable[Span], threads: set[int]) -> list[dict[str, Any]]:
    """The names of processes and threads, as the viewers want them."""
    named = []
    for number, track in dict.fromkeys((span.pid, span.track) for span in recorded):
        pid, tid = _place(number, track, threads)
        what = "antifreeze: the loop" if track == THE_LOOP else f"antifreeze worker {track}"
        named.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": what}})
        if track != THE_LOOP and number not in threads:
            named.append({"ph": "M", "name": "process_name", "pid": pid, "tid": tid, "args": {"name": f"{what} (pid {pid})"}})
    return named
