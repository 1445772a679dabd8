"""The stages of next() while a profiler or a trace watches: torch's profiler sees them as record_function, our trace as spans."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from torch.profiler import record_function

from antifreeze import spans
from antifreeze.torch_private import is_profiling


class Stage:
    """`with Stage("wait for workers"): …`"""

    def __init__(self, name: str, **args: Any) -> None:
        self._name = f"antifreeze: {name}"
        self._args = args
        self._in_torch = record_function(self._name) if is_profiling() else None
        self._began_ns = 0

    def __enter__(self) -> None:
        self._began_ns = time.perf_counter_ns()
        if self._in_torch is not None:
            self._in_torch.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        if self._in_torch is not None:
            self._in_torch.__exit__(*raised)
        if spans.active is not None:
            took_ns = time.perf_counter_ns() - self._began_ns
            spans.active.add(os.getpid(), spans.THE_LOOP, self._name, self._began_ns, took_ns, **self._args)


def in_stage(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, shown as a stage."""

    def staged(*args: Any) -> Any:
        with Stage(name):
            return call(*args)

    return staged
