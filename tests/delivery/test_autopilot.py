"""Windows of "auto": how long one lasts."""

from __future__ import annotations

import pytest

from antifreeze.delivery import claims
from antifreeze.delivery.autopilot import (
    FEW_BATCHES_TIMES,
    SETTLE_NS,
    SHORT_WINDOW_BATCHES,
    SHORT_WINDOW_NS,
    WAVES,
    WAVES_TO_GO_BADLY,
    WINDOW_NS,
    Autopilot,
)
from antifreeze.delivery.ledger import Ledger
from antifreeze.options import Options
from antifreeze.tuning.setting import Kind, Limits, Setting
from antifreeze.tuning.sharing import Claim

MS = 1_000_000
HOME = Setting(Kind.PROCESS, 3)


@pytest.fixture(autouse=True)
def alone() -> None:
    """Loaders of other tests may be there still."""
    claims._claimants.clear()


def run(auto: Autopilot, ledger: Ledger, setting: Setting, batch_ns: int) -> tuple[int, Setting]:
    """(how long its window took, what was decided), with one batch of 10 samples every `batch_ns`, all of it waited for."""
    timing, costs = ledger.timing, ledger.costs
    auto.changed(0)
    began = timing.waited_ns + SETTLE_NS
    while True:
        timing.batches, timing.samples, timing.waited_ns = timing.batches + 1, timing.samples + 10, timing.waited_ns + batch_ns
        costs.fetch_ns, costs.cpu_ns = costs.fetch_ns + 3 * batch_ns, costs.cpu_ns + 3 * batch_ns
        decision = auto.look(timing.waited_ns, setting)
        if decision is not None:
            return timing.waited_ns - began, decision.setting


@pytest.mark.parametrize(("slower", "ends_early"), [(1.0, False), (1.2, False), (1.5, True), (1.9, True)])
def test_a_trial_that_goes_badly_does_not_last(slower: float, ends_early: bool) -> None:
    ledger = Ledger()
    auto = Autopilot(ledger, Options(), lambda: 8, Limits(inline=False), HOME)
    took, decided = run(auto, ledger, HOME, 2 * MS)
    assert took >= WINDOW_NS and decided.workers > HOME.workers
    took, decided = run(auto, ledger, decided, int(2 * MS * slower))
    if ends_early:
        assert SHORT_WINDOW_NS <= took < WINDOW_NS / 2 and took >= SHORT_WINDOW_BATCHES * 2 * MS * slower and decided == HOME
    else:
        assert took >= WINDOW_NS


def test_of_few_batches_nothing_is_seen_early() -> None:
    ledger = Ledger()
    auto = Autopilot(ledger, Options(), lambda: 8, Limits(inline=False), HOME)
    _, decided = run(auto, ledger, HOME, 20 * MS)
    took, _ = run(auto, ledger, decided, 80 * MS)
    assert took >= WINDOW_NS


@pytest.mark.parametrize(("faster", "took_ns"), [(0.5, WAVES_TO_GO_BADLY * 160 * MS), (1.0, WAVES * 160 * MS), (3.0, WINDOW_NS)])
def test_where_batches_come_in_waves_a_window_has_some_of_them(faster: float, took_ns: int) -> None:
    """But for a trial that goes so well that there is nothing to wait for."""
    ledger = Ledger()
    auto = Autopilot(ledger, Options(), lambda: 8, Limits(inline=False), HOME)
    _, decided = run(auto, ledger, HOME, 4 * MS)
    auto.task_ns = 160 * MS
    batch_ns = int(4 * MS / faster)
    took, _ = run(auto, ledger, decided, batch_ns)
    assert took_ns <= took <= took_ns + 5 * batch_ns


def test_waves_do_not_make_a_window_last_for_ever() -> None:
    ledger = Ledger()
    auto = Autopilot(ledger, Options(), lambda: 8, Limits(inline=False), HOME)
    auto.task_ns = 60_000 * MS
    took, _ = run(auto, ledger, HOME, 4 * MS)
    assert took <= FEW_BATCHES_TIMES * WINDOW_NS + 20 * MS


def test_a_loop_with_many_pauses_has_windows_too_and_the_pauses_are_no_part_of_them() -> None:
    ledger = Ledger()
    auto = Autopilot(ledger, Options(), lambda: 8, Limits(inline=False), HOME)
    timing, costs = ledger.timing, ledger.costs
    decision = None
    for batch in range(10_000):
        timing.batches, timing.samples, timing.waited_ns = timing.batches + 1, timing.samples + 10, timing.waited_ns + 2 * MS
        costs.fetch_ns, costs.cpu_ns = costs.fetch_ns + 6 * MS, costs.cpu_ns + 6 * MS
        timing.loop_ns += 3_000 * MS if batch % 125 == 124 else 0  # after 250 ms of loading
        decision = auto.look(timing.waited_ns + timing.loop_ns, HOME)
        if decision is not None:
            break
    assert decision is not None and decision.is_trial
    assert auto.tuner.belief.rate(HOME) == pytest.approx(10 / 0.002, rel=0.01)
    assert decision.why.startswith("the loop waited for data 100% of the time")


class Other:
    """Another loader of this process, that was last asked for a batch at `asked_ns`."""

    asked_ns = 0

    def claim(self, now_ns: int) -> Claim:
        return Claim(6, 1.0, (now_ns - self.asked_ns) / 1e9)


@pytest.mark.parametrize(("beside", "workers"), [(False, HOME.workers), (True, 2)])
def test_who_is_iterated_between_two_epochs_takes_no_cores(beside: bool, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A validation, say: a window that goes on in the next epoch has begun before it."""
    now_ns = 10**12
    monkeypatch.setattr("time.perf_counter_ns", lambda: now_ns)
    ledger, other = Ledger(), Other()
    auto = Autopilot(ledger, Options(), lambda: 4, Limits(inline=False), HOME)
    claims.register(other)
    timing, costs = ledger.timing, ledger.costs
    for batch in range(10_000):
        timing.batches, timing.samples, timing.waited_ns = timing.batches + 1, timing.samples + 10, timing.waited_ns + 2 * MS
        costs.fetch_ns, costs.cpu_ns, now_ns = costs.fetch_ns + 6 * MS, costs.cpu_ns + 6 * MS, now_ns + 2 * MS
        if beside:
            other.asked_ns = now_ns
        if batch % 125 == 124:
            now_ns += 3_000 * MS
            other.asked_ns = now_ns
            auto.new_epoch()
        if auto.look(now_ns, HOME) is not None:
            break
    assert auto.tuner.home.workers == workers


def test_the_window_of_a_setting_begins_with_it_even_where_an_epoch_does() -> None:
    ledger = Ledger()
    auto = Autopilot(ledger, Options(), lambda: 8, Limits(inline=False), HOME)
    _, decided = run(auto, ledger, HOME, 2 * MS)
    timing = ledger.timing
    timing.batches, timing.samples, timing.waited_ns = timing.batches + 200, timing.samples + 2000, timing.waited_ns + WINDOW_NS
    assert auto.look(timing.waited_ns, decided) is None, "all that is known was measured with the one before"
    took, _ = run(auto, ledger, decided, 2 * MS)
    assert took >= WINDOW_NS


def test_a_trial_in_which_a_worker_is_replaced_in_every_window_ends() -> None:
    """Batches of a second, and a worker that is replaced every two of them: no window is ever over."""
    ledger = Ledger()
    auto = Autopilot(ledger, Options(), lambda: 8, Limits(inline=False), HOME)
    _, trial = run(auto, ledger, HOME, 300 * MS)
    assert trial != HOME
    timing, costs, setting, decided = ledger.timing, ledger.costs, trial, list[Setting]()
    auto.changed(0)
    for batch in range(40):
        timing.batches, timing.samples, timing.waited_ns = timing.batches + 1, timing.samples + 10, timing.waited_ns + 1_000 * MS
        costs.restarts += batch % 2
        decision = auto.look(timing.waited_ns, setting)
        if decision is not None:
            setting = decision.setting
            decided.append(setting)
            auto.changed(0)
    assert decided[0] == HOME and auto.setting == setting
    assert trial not in auto.tuner.belief, "nothing was seen of it"
    assert decided == [HOME], "nor is anything tried in times like these"


def test_it_is_undecided_until_nothing_was_worth_a_trial() -> None:
    """What the report says of its choice depends on that."""
    ledger = Ledger()
    auto = Autopilot(ledger, Options(), lambda: 8, Limits(inline=False), HOME)
    _, setting = run(auto, ledger, HOME, 2 * MS)
    assert ledger.undecided and setting != HOME
    for _ in range(30):
        _, setting = run(auto, ledger, setting, 2 * MS)
    assert not ledger.undecided


def test_the_window_of_workers_that_begin_begins_later() -> None:
    """They need the cores for that, all at once: two trials of hundreds were taken for slow."""
    ledger = Ledger()
    auto = Autopilot(ledger, Options(), lambda: 8, Limits(inline=False), HOME)
    began, _ = run(auto, ledger, HOME, 2 * MS)
    ledger.costs.started, ledger.costs.starting_s = 100, 1.0
    later, _ = run(auto, ledger, HOME, 2 * MS)
    assert later == pytest.approx(began + 1_000 * MS, abs=10 * MS)
    again, _ = run(auto, ledger, HOME, 2 * MS)
    assert again == pytest.approx(began, abs=10 * MS)
