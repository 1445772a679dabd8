"""A few samples, loaded in the loop's own process before there are workers: do they compute, wait, or draw random numbers?

1. For data sets that the user calls fit for threads (`workers="auto"`), once per loader, for LONG_S or so.
2. The random generators are afterwards as they were. In a loader inside a sample of a worker's thread nobody else uses them meanwhile
   (turns.py). A data set that cannot be asked like this (its keys are no ints, its first samples are bad) tells nothing.
3. What a sample stood in the queue for a core is no waiting of its own: on a busy machine the quickest one does that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from antifreeze.signals import came_from_signal
from antifreeze.worker.generators import global_generators
from antifreeze.worker.turns import exclusively, unless_given_up
from antifreeze.worker.twister import Generator

MOST_SAMPLES, LONG_S = 6, 0.05


@dataclass(frozen=True)
class Probed:
    """Seconds are sums over the samples; the very first one, which may import and open, does not count where others followed."""

    samples: int
    wall_s: float
    cpu_s: float
    draws: bool


def probe(dataset: Any) -> Probed | None:
    """None where it tells nothing."""
    probed: Probed | None = exclusively(partial(_probe, dataset))
    return probed


def _probe(dataset: Any) -> Probed | None:
    generators = global_generators()
    before = [(generator, generator.mark(), generator.save()) for generator in generators]
    try:
        looked = _load(dataset)
    except Exception as error:
        if came_from_signal(error):
            raise  # an alarm of the user's
        return None
    finally:
        moved = [(generator, state) for generator, mark, state in before if generator.moved_since(mark)]
        unless_given_up(partial(_put_back, moved))
    return Probed(len(looked), sum(wall for wall, _ in looked), sum(cpu for _, cpu in looked), bool(moved)) if looked else None


def _put_back(moved: Sequence[tuple[Generator, Any]]) -> None:
    for generator, state in moved:
        generator.restore(state)


def _load(dataset: Any) -> list[tuple[float, float]]:
    """(wall without the queue for a core, CPU) of each sample."""
    looked: list[tuple[float, float]] = []
    began_s = time.perf_counter()
    for index in range(min(MOST_SAMPLES, len(dataset))):
        queued_s, wall_s, cpu_s = _queued_s(), time.perf_counter(), time.process_time()
        dataset[index]
        took_s, computed_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        looked.append((max(took_s - (_queued_s() - queued_s), 0.0), computed_s))
        if len(looked) > 1 and time.perf_counter() - began_s > LONG_S:
            break
    return looked[1:] or looked


def _queued_s() -> float:
    """How long this thread could have run and had no core, so far; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
