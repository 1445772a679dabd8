"""A few samples, loaded in the loop's own process before there are workers: do they compute, wait, or draw random numbers?

1. For data sets that the user calls fit for threads (`workers="auto"`), once per loader, for LONG_S or so.
2. The random generators are afterwards as they were. A data set that cannot be asked like this (its keys are no ints, its first samples
   are bad) tells nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from antifreeze.worker.seeding import global_generators

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
    generators = global_generators()
    before = [(generator, generator.mark(), generator.save()) for generator in generators]
    try:
        looked = _load(dataset)
    except Exception:
        return None
    finally:
        moved = [(generator, state) for generator, mark, state in before if generator.moved_since(mark)]
        for generator, state in moved:
            generator.restore(state)
    return Probed(len(looked), sum(wall for wall, _ in looked), sum(cpu for _, cpu in looked), bool(moved)) if looked else None


def _load(dataset: Any) -> list[tuple[float, float]]:
    """(wall, CPU) of each sample."""
    looked: list[tuple[float, float]] = []
    began_s = time.perf_counter()
    for index in range(min(MOST_SAMPLES, len(dataset))):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        dataset[index]
        looked.append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
        if len(looked) > 1 and time.perf_counter() - began_s > LONG_S:
            break
    return looked[1:] or looked
