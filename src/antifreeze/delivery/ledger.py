"""What is counted while a loader runs: a few additions per batch, for all its iterators and epochs together."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from antifreeze.delivery.bad_samples import BadSampleRecord
from antifreeze.events import Story
from antifreeze.supervisor.work import Costs


@dataclass
class Timing:
    """The loop's side of the clock."""

    waited_ns: int = 0
    loop_ns: int = 0
    epochs: int = 0
    batches: int = 0
    samples: int = 0
    delivered_bytes: int = 0
    first_batch_ns: int | None = None
    longest_wait_ns: int = 0


@dataclass
class Ledger:
    timing: Timing = field(default_factory=Timing)
    costs: Costs = field(default_factory=Costs)
    story: Story = field(default_factory=Story)
    bad_samples: list[BadSampleRecord] = field(default_factory=list)
    most_in_flight_bytes: int = 0


class LoopClock:
    """One iterator's stopwatch: inside next(), or in the user's code."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._began_at: int | None = time.perf_counter_ns()
        self._entered_at = 0
        self._left_at: int | None = None

    def enter(self) -> None:
        self._entered_at = time.perf_counter_ns()
        if self._left_at is not None:
            self._timing.loop_ns += self._entered_at - self._left_at

    def leave(self) -> None:
        now = time.perf_counter_ns()
        timing = self._timing
        waited = now - self._entered_at
        timing.waited_ns += waited
        timing.longest_wait_ns = max(timing.longest_wait_ns, waited)
        if self._began_at is not None:
            timing.first_batch_ns = timing.first_batch_ns or now - self._began_at
            self._began_at = None
        self._left_at = now

    def new_epoch(self) -> None:
        self._left_at = None
        self._timing.epochs += 1
