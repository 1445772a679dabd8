"""A trial in a forked child, where samples load in the loop's own process: one that crashes or never returns would take us with it.

Without workers and with threads that is so; worker processes are contained by the loader itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from antifreeze.checks.errors import NotCheckable
from antifreeze.checks.live.child import ask_child
from antifreeze.errors import AntifreezeError
from antifreeze.profiling.model import Kind, Trial
from antifreeze.profiling.trials import Tell, loader_name, run_trial, trial_name
from antifreeze.profiling.workload import SAMPLE_LIMIT_S, Workload


class ThreadsFailed(NotCheckable):
    """Processes may do all the same."""


def is_apart(kind: Kind, workers: int) -> bool:
    return kind in (Kind.INLINE, Kind.THREAD) or not workers


def run_apart(
    workload: Workload,
    kind: Kind,
    workers: int,
    limit_s: float,
    tell: Tell,
    *,
    batch_size: int | None,
    prefetch: int | None = None,
    step: Callable[[Any], Any] | None = None,
) -> Trial:
    """Raises NotCheckable, of threads ThreadsFailed, where it raises, crashes or does not come back."""
    name = trial_name(kind, workers, batch_size, prefetch, step is not None)
    tell(name)

    def measure() -> Trial | str:
        if kind is Kind.THREAD or not _is_young():
            torch.set_num_threads(1)  # the parent's pool of threads was not forked with it: who waits for it waits for ever
        try:
            return run_trial(workload, kind, workers, limit_s, lambda text: None, batch_size=batch_size, prefetch=prefetch, step=step)
        except AntifreezeError as error:
            return str(error)

    asked = ask_child(measure, SAMPLE_LIMIT_S + 5 * limit_s)
    if isinstance(asked.answer, Trial):
        tell(f"{name}: {asked.answer.rate:,.0f} samples/s")
        return asked.answer
    reason = (asked.answer or asked.trouble).strip().partition("\n")[0]
    raised = not reason.startswith(("it died", "it did not answer"))  # without a worker, nobody is left to skip such a sample
    failed = workload.cannot_be_loaded(loader_name(kind, workers), reason, could_skip=raised and kind is not Kind.THREAD)
    raise ThreadsFailed(f"threads are left out: {failed}") if kind is Kind.THREAD else NotCheckable(failed)


def _is_young() -> bool:
    """Nothing has started threads in this process since we were imported, so torch has no pool yet, and a child can make its own."""
    return _count_threads() <= _AT_IMPORT


def _count_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1 << 20


_AT_IMPORT = _count_threads()
