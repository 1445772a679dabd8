"""What all modules of one pool share: its state, its workers, its slots, what it counts, and its voice."""

from __future__ import annotations

from dataclasses import dataclass

from antifreeze.options import Options
from antifreeze.slots.ring import Ring
from antifreeze.supervisor.crew import Crew
from antifreeze.supervisor.state import PoolState
from antifreeze.supervisor.voice import Voice
from antifreeze.supervisor.watch import Watch
from antifreeze.supervisor.work import Costs, Jobs


@dataclass(frozen=True)
class Workshop:
    state: PoolState
    jobs: Jobs
    crew: Crew
    ring: Ring
    options: Options
    costs: Costs
    watch: Watch
    voice: Voice
