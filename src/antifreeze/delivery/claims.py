"""Which loaders of this process are iterated now, and how many cores each needs for its workers.

An autopilot claims for itself; an iterator whose number of workers was given has a FixedClaim, which looks at what is counted anyway:
it costs nothing per batch, and goes with its iterator.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import Protocol

from antifreeze.delivery.ledger import LoopClock
from antifreeze.linux import on_fork
from antifreeze.living import living
from antifreeze.supervisor.work import Costs
from antifreeze.tuning.sharing import ACTIVE_S, Claim, share


class Claimant(Protocol):
    def claim(self, now_ns: int) -> Claim: ...


_claimants: weakref.WeakSet[Claimant] = weakref.WeakSet()


def register(claimant: Claimant) -> None:
    _claimants.add(claimant)


class FixedClaim:
    def __init__(self, workers: int, clock: LoopClock, costs: Costs) -> None:
        self._workers = workers
        self._clock = clock
        self._costs = costs
        register(self)

    def __repr__(self) -> str:
        return f"<FixedClaim of {self._workers} workers, process {os.getpid()}>"

    def claim(self, now_ns: int) -> Claim:
        costs = self._costs
        work_ns = costs.fetch_ns + costs.collate_ns + costs.write_ns
        computing = min(1.0, (costs.cpu_ns + costs.queued_ns) / work_ns) if work_ns else 1.0
        return Claim(self._workers, computing, (now_ns - self._clock.entered_at) / 1e9)


def shared_cores(me: Claimant | None, cores: int, since_ns: int | None = None) -> tuple[int, bool]:
    """(cores for this loader, whether others need some too, which were iterated since then)."""
    now_ns = time.perf_counter_ns()
    within_s = ACTIVE_S if since_ns is None else (now_ns - since_ns) / 1e9
    return share(cores, [other.claim(now_ns) for other in living(_claimants) if other is not me], within_s)


on_fork(child=_claimants.clear)  # the parent's loaders are not iterated here
