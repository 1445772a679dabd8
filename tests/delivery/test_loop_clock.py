"""The loop's stopwatch against a real clock: which part of next() is put down to what."""

from __future__ import annotations

import time

from antifreeze.delivery.ledger import LONG_WAIT_NS, LoopClock, Timing
from antifreeze.supervisor.work import Costs

PAUSE_S = LONG_WAIT_NS / 1e9 * 1.2
PAUSE_NS = PAUSE_S * 1e9


def one_epoch_began() -> tuple[Timing, Costs, LoopClock]:
    timing, costs = Timing(), Costs()
    clock = LoopClock(timing, costs)
    clock.new_epoch()
    return timing, costs, clock


def step(clock: LoopClock, pause_s: float = 0.0) -> None:
    clock.enter()
    time.sleep(pause_s)
    clock.leave()


def test_iter_and_the_first_batch_are_the_start_up_but_not_what_the_user_does_between() -> None:
    timing, costs, clock = one_epoch_began()
    time.sleep(PAUSE_S)
    clock.made()
    time.sleep(10 * PAUSE_S)  # the user's own
    costs.blocked_s += PAUSE_S
    step(clock, PAUSE_S)
    assert 2 * PAUSE_NS <= timing.startup_ns < 10 * PAUSE_NS
    assert timing.waited_ns == timing.startup_ns == timing.first_batch_ns == timing.longest_wait_ns
    assert timing.blocked_elsewhere_ns == int(PAUSE_S * 1e9)
    step(clock, PAUSE_S)
    assert timing.waited_ns - timing.startup_ns >= PAUSE_NS, "the second batch is no start-up"


def test_without_workers_only_iter_is_the_start_up() -> None:
    timing = Timing()
    clock = LoopClock(timing, Costs(), alone=True)
    clock.new_epoch()
    time.sleep(PAUSE_S)
    clock.made()
    step(clock, 10 * PAUSE_S)
    assert PAUSE_NS <= timing.startup_ns < 10 * PAUSE_NS
    assert timing.waited_ns == timing.first_batch_ns >= 11 * PAUSE_NS


def test_the_end_of_an_epoch_belongs_to_it_and_the_next_epoch_begins_anew() -> None:
    timing, _, clock = one_epoch_began()
    clock.made()
    step(clock)
    clock.enter()
    clock.ending()
    time.sleep(PAUSE_S)
    clock.leave()
    before = timing.startup_ns
    assert before >= PAUSE_NS
    clock.new_epoch()
    clock.made()
    step(clock, PAUSE_S)
    assert timing.startup_ns - before >= PAUSE_NS
    assert timing.epochs == 2
    assert timing.first_batch_ns is not None
    assert timing.first_batch_ns < PAUSE_NS, "the first batch of all"


def test_a_long_wait_in_which_a_worker_was_replaced_or_stuck_is_put_down_to_that() -> None:
    timing, costs, clock = one_epoch_began()
    clock.made()
    step(clock)
    step(clock, PAUSE_S)
    assert (timing.restarts_ns, timing.stalls_ns) == (0, 0)
    costs.stalls += 1
    step(clock, PAUSE_S)
    assert timing.stalls_ns >= PAUSE_NS
    costs.stalls += 1
    costs.restarts += 1
    step(clock, PAUSE_S)
    assert timing.restarts_ns >= PAUSE_NS
    assert timing.blocked_elsewhere_ns >= timing.restarts_ns + timing.stalls_ns
