"""PURE: what can be chosen: where samples are loaded, and by how many."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MOST_PROCESSES, MOST_THREADS = 256, 256
FEWER_PROCESSES = 64
"""Of a rank, where there are so many ranks on the node that its part would be less; and where each is a fresh interpreter, which takes
seconds of a core to start."""
WAITS_OUTSIDE = 0.5
"""Below this share of computing, samples wait for something that more workers wait for at the same time."""
WORTH_A_THREAD_S = 0.001
"""A sample that takes less than this waits for nothing outside worth speaking of."""


class Kind(Enum):
    """Where samples are loaded."""

    INLINE = "inline"
    PROCESS = "process"
    THREAD = "thread"

    @property
    def plural(self) -> str:
        return "processes" if self is Kind.PROCESS else f"{self.value}s"


@dataclass(frozen=True)
class Setting:
    kind: Kind
    workers: int = 0

    def __str__(self) -> str:
        if self.kind is Kind.INLINE:
            return "no workers"
        plural = "" if self.workers == 1 else "es" if self.kind is Kind.PROCESS else "s"
        return f"{self.workers} worker {self.kind.value}{plural}"


INLINE = Setting(Kind.INLINE)


@dataclass(frozen=True)
class Limits:
    """What may be chosen: `inline` where nothing forbids loading in the user's process; `most` workers have a place."""

    inline: bool
    most: int = MOST_PROCESSES
    kinds: tuple[Kind, ...] = (Kind.PROCESS,)


def kind_for(sample_s: float, cpu_s: float, draws: bool) -> tuple[Kind, str]:
    """Of workers for a data set that threads may share, and why: a sample takes `sample_s`, `cpu_s` of it computing, and `draws` numbers
    from the process's generators, which threads would have to do one after the other."""
    if draws:
        return Kind.PROCESS, "samples draw random numbers, which threads can only do one at a time"
    share = min(1.0, cpu_s / sample_s) if sample_s > 0 else 1.0
    if sample_s < WORTH_A_THREAD_S:
        return Kind.PROCESS, f"a sample takes {sample_s * 1e6:.0f} µs"
    if share >= WAITS_OUTSIDE:
        return Kind.PROCESS, f"a sample computes {share:.0%} of its time, and threads might keep the GIL from each other and the loop"
    return Kind.THREAD, f"a sample waits {1 - share:.0%} of its time, which threads do as well for less"
