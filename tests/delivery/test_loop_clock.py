"""The loop's stopwatch, with a clock that is set by hand: which part of next() is put down to what."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from antifreeze.delivery import ledger
from antifreeze.delivery.ledger import LONG_WAIT_NS, LoopClock, Timing
from antifreeze.supervisor.work import Costs

PAUSE_NS = LONG_WAIT_NS * 6 // 5


class Time:
    now_ns = 10**9

    def passes(self, nanoseconds: int) -> None:
        self.now_ns += nanoseconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(ledger, "time", SimpleNamespace(perf_counter_ns=lambda: time.now_ns))
    return time


def one_epoch_began() -> tuple[Timing, Costs, LoopClock]:
    timing, costs = Timing(), Costs()
    clock = LoopClock(timing, costs)
    clock.new_epoch()
    return timing, costs, clock


def step(clock: LoopClock, time: Time, takes_ns: int) -> None:
    clock.enter()
    time.passes(takes_ns)
    clock.leave()


def test_iter_and_the_first_batch_are_the_start_up_but_not_what_the_user_does_between(time: Time) -> None:
    timing, costs, clock = one_epoch_began()
    time.passes(PAUSE_NS)
    clock.made()
    time.passes(10 * PAUSE_NS)  # the user's own
    costs.blocked_s += PAUSE_NS / 1e9
    step(clock, time, 2 * PAUSE_NS)
    assert timing.startup_ns == timing.waited_ns == timing.first_batch_ns == timing.longest_wait_ns == 3 * PAUSE_NS
    assert timing.in_stages_elsewhere_ns == PAUSE_NS
    step(clock, time, PAUSE_NS)
    assert (timing.startup_ns, timing.waited_ns) == (3 * PAUSE_NS, 4 * PAUSE_NS), "the second batch is no start-up"


def test_without_workers_only_iter_is_the_start_up(time: Time) -> None:
    timing = Timing()
    clock = LoopClock(timing, Costs(), alone=True)
    clock.new_epoch()
    time.passes(PAUSE_NS)
    clock.made()
    step(clock, time, 10 * PAUSE_NS)
    assert timing.startup_ns == PAUSE_NS
    assert timing.waited_ns == timing.first_batch_ns == 11 * PAUSE_NS


def test_the_end_of_an_epoch_belongs_to_it_and_the_next_epoch_begins_anew(time: Time) -> None:
    timing, _, clock = one_epoch_began()
    clock.made()
    step(clock, time, 7)
    time.passes(PAUSE_NS)
    clock.enter()
    clock.ending()
    time.passes(2 * PAUSE_NS)
    clock.leave()
    assert (timing.startup_ns, timing.loop_ns) == (7 + 2 * PAUSE_NS, PAUSE_NS)
    time.passes(100 * PAUSE_NS)  # between two epochs
    clock.new_epoch()
    clock.made()
    step(clock, time, 5 * PAUSE_NS)
    assert (timing.startup_ns, timing.loop_ns) == (7 + 7 * PAUSE_NS, PAUSE_NS)
    assert (timing.epochs, timing.first_batch_ns) == (2, 7), "the first batch of all"


def test_a_long_wait_in_which_a_worker_was_replaced_or_stuck_is_put_down_to_that(time: Time) -> None:
    timing, costs, clock = one_epoch_began()
    clock.made()
    step(clock, time, 7)
    step(clock, time, PAUSE_NS)
    assert (timing.restarts_ns, timing.stalls_ns) == (0, 0)
    costs.stalls += 1
    step(clock, time, 2 * PAUSE_NS)
    assert (timing.restarts_ns, timing.stalls_ns) == (0, 2 * PAUSE_NS)
    costs.stalls += 1
    costs.restarts += 1
    step(clock, time, 3 * PAUSE_NS)
    assert (timing.restarts_ns, timing.stalls_ns) == (3 * PAUSE_NS, 2 * PAUSE_NS)
    assert timing.in_stages_elsewhere_ns == 5 * PAUSE_NS
    costs.restarts += 1
    step(clock, time, LONG_WAIT_NS)
    assert timing.restarts_ns == 3 * PAUSE_NS, "not a long one"


def test_a_long_wait_in_which_workers_were_begun_is_start_up_for_as_long_as_that_took(time: Time) -> None:
    timing, costs, clock = one_epoch_began()
    clock.made()
    step(clock, time, 7)
    costs.starting_s += PAUSE_NS / 1e9
    step(clock, time, 3 * PAUSE_NS)
    assert (timing.startup_ns, timing.growth_ns) == (7 + PAUSE_NS, PAUSE_NS)
    step(clock, time, 3 * PAUSE_NS)
    assert (timing.startup_ns, timing.in_stages_elsewhere_ns) == (7 + PAUSE_NS, 0)


def test_without_workers_the_first_batch_was_loaded_by_the_loop_and_counts_as_that(time: Time) -> None:
    timing, costs = Timing(), Costs()
    clock = LoopClock(timing, costs, alone=True)
    clock.new_epoch()
    clock.made()
    costs.own_ns += PAUSE_NS
    step(clock, time, PAUSE_NS)
    assert timing.in_stages_elsewhere_ns == 0


# --- what the process used ---


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Faults so far; twice as many context switches."""
    faults = [100]
    monkeypatch.setattr(ledger.Usage, "now", lambda: ledger.Usage(0, faults[0], 2 * faults[0]))
    return faults


def delivered(clock: LoopClock, time: Time, timing: Timing, kernel: list[int], faults: int) -> None:
    clock.enter()
    time.passes(1)
    kernel[0] += faults
    timing.batches += 1
    clock.leave()


def test_the_process_is_counted_from_the_first_batch_of_an_epoch_to_its_end(time: Time, kernel: list[int]) -> None:
    timing, _, clock = one_epoch_began()
    own = timing.own
    for epoch in (1, 2):
        delivered(clock, time, timing, kernel, 1000)  # the start-up
        for _ in range(3):
            delivered(clock, time, timing, kernel, 5)
        clock.enter()
        clock.ending()
        kernel[0] += 10_000  # workers are ended
        clock.leave()
        assert (own.batches, own.faults, own.switches) == (3 * epoch, 15 * epoch, 30 * epoch)
        kernel[0] += 10_000  # the user's own code between two epochs
        clock.new_epoch()


def test_what_came_after_the_last_look_at_a_loop_that_was_left_does_not_count(time: Time, kernel: list[int]) -> None:
    timing, _, clock = one_epoch_began()
    for _ in range(3):
        delivered(clock, time, timing, kernel, 5)
    timing.own.look(timing.batches)
    delivered(clock, time, timing, kernel, 10_000)
    clock.new_epoch()
    timing.own.look(timing.batches)
    assert (timing.own.batches, timing.own.faults) == (2, 10)


def test_an_epoch_without_batches_counts_nothing(time: Time, kernel: list[int]) -> None:
    timing, _, clock = one_epoch_began()
    clock.enter()
    clock.ending()
    clock.leave()
    kernel[0] += 10_000
    clock.new_epoch()
    timing.own.look(timing.batches)
    assert (timing.own.batches, timing.own.faults) == (0, 0)
