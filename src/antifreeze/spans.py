"""What happened when, while a trace is being recorded: `active` is None otherwise, and nobody records anything."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

MOST = 1_000_000
"""So many spans are kept; what comes later is counted and left out."""

THE_LOOP = -1
"""The track of the process that iterates; workers have their numbers."""


APART_NS = 2
"""Between stages that follow each other: a viewer reads microseconds since long ago as floats, and shows nothing that seems to cross."""


class Span(NamedTuple):
    """On the monotonic clock, which all processes of a machine share. `took_ns` None: an instant."""

    pid: int
    """Of the process; of a worker that is a thread, the number of that."""
    track: int
    name: str
    began_ns: int
    took_ns: int | None
    args: dict[str, Any]


class Recorder:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.left_out = 0
        self.threads: dict[int, bool] = {}
        """Of whom recorded a task: whether it is a thread of this process."""

    def add(self, pid: int, track: int, name: str, began_ns: int, took_ns: int | None, **args: Any) -> None:
        if len(self.spans) < MOST:
            self.spans.append(Span(pid, track, name, began_ns, took_ns, args))
        else:
            self.left_out += 1

    def task(self, pid: int, worker: int, batch: int | None, began_ns: int, stages: dict[str, int], rows: int, cpu_ns: int) -> None:
        """A worker's task, and inside it its stages one after the other. (Large rows are written between fetches: there the bounds
        are not to be taken literally, the lengths are.)"""
        if pid not in self.threads:
            self.threads[pid] = os.path.exists(f"/proc/self/task/{pid}")
        whose = "a batch" if batch is None else f"batch {batch}"
        self.add(pid, worker, f"antifreeze: {whose}", began_ns, sum(stages.values()), rows=rows, cpu_ms=cpu_ns / 1e6)
        for name, took_ns in stages.items():
            if took_ns:
                self.add(pid, worker, f"antifreeze: {name}", began_ns, max(1, took_ns - APART_NS))
                began_ns += took_ns


active: Recorder | None = None
