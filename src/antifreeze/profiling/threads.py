"""A trial with threads, in a forked child: a data set that several threads may not use at once can crash, and would take us with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from antifreeze.checks.errors import NotCheckable
from antifreeze.checks.live.child import ask_child
from antifreeze.profiling.model import Kind, Trial
from antifreeze.profiling.trials import Tell, loader_name, run_trial, trial_name
from antifreeze.profiling.workload import SAMPLE_LIMIT_S, Workload


class ThreadsFailed(NotCheckable):
    """Processes may do all the same."""


def run_in_child(
    workload: Workload,
    threads: int,
    limit_s: float,
    tell: Tell,
    *,
    batch_size: int | None,
    prefetch: int | None = None,
    step: Callable[[Any], Any] | None = None,
) -> Trial:
    """Raises ThreadsFailed where it raises, crashes or does not come back."""
    name = trial_name(Kind.THREAD, threads, batch_size, prefetch, step is not None)
    tell(name)

    def measure() -> Trial:
        torch.set_num_threads(1)  # the parent's pool of threads was not forked with it: who waits for it waits for ever
        return run_trial(workload, Kind.THREAD, threads, limit_s, lambda text: None, batch_size=batch_size, prefetch=prefetch, step=step)

    asked = ask_child(measure, SAMPLE_LIMIT_S + 5 * limit_s)
    if not isinstance(asked.answer, Trial):
        reason = asked.trouble.strip().partition("\n")[0]
        raise ThreadsFailed(f"threads are left out: {workload.name} cannot be loaded with {loader_name(Kind.THREAD, threads)}: {reason}")
    tell(f"{name}: {asked.answer.rate:,.0f} samples/s")
    return asked.answer
