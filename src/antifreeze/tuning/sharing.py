"""PURE: how loaders of one process that are iterated at the same time share its cores.

1. A loader that was not iterated lately takes no core, whatever workers it keeps: they wait for its next epoch. Lately is while the
   one that asks was iterated too, so that loaders whose loops come one after the other have all cores each; or, before it has begun,
   within ACTIVE_S.
2. Nor does one whose samples wait for something outside.
3. Whoever chooses how many workers there are gets what the others leave, and never less than an equal share.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from antifreeze.tuning.setting import WAITS_OUTSIDE

ACTIVE_S = 2.0


class Claim(NamedTuple):
    """`computing`: the share of their work for which its workers need a core; `idle_s`: since its loop last asked for a batch."""

    workers: int
    computing: float
    idle_s: float

    def cores(self, within_s: float) -> int:
        return self.workers if self.computing >= WAITS_OUTSIDE and self.idle_s < within_s else 0


def share(cores: int, others: Iterable[Claim], within_s: float = ACTIVE_S) -> tuple[int, bool]:
    """(cores for one loader, whether others need some too)."""
    taken = [needed for other in others if (needed := other.cores(within_s))]
    if not taken:
        return cores, False
    return max(1, cores // (len(taken) + 1), cores - sum(taken)), True
