"""Loaders that are iterated at the same time share the cores; those that wait for their next epoch take none."""

from __future__ import annotations

import time
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader
from antifreeze.delivery import claims
from antifreeze.delivery.ledger import LoopClock, Timing
from antifreeze.supervisor.work import Costs
from antifreeze.tuning.sharing import ACTIVE_S, Claim, share

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def computing(workers: int) -> Claim:
    return Claim(workers, computing=0.9, idle_s=0.1)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], (8, False)),
        ([computing(0)], (8, False)),
        ([computing(2)], (6, True)),
        ([computing(7)], (4, True)),
        ([computing(4), computing(4)], (2, True)),
        ([computing(8)] * 20, (1, True)),
        ([Claim(6, computing=0.1, idle_s=0.1)], (8, False)),
        ([Claim(6, computing=1.0, idle_s=ACTIVE_S)], (8, False)),
        ([computing(3), Claim(6, computing=1.0, idle_s=60.0)], (5, True)),
    ],
)
def test_what_the_others_leave_and_never_less_than_an_equal_share(others: list[Claim], expected: tuple[int, bool]) -> None:
    assert share(8, others) == expected


def test_loops_that_come_one_after_the_other_have_all_cores_each() -> None:
    other = Claim(6, computing=1.0, idle_s=0.5)
    assert share(8, [other], within_s=0.4) == (8, False)
    assert share(8, [other], within_s=0.6) == (4, True)


class Other:
    """A loader whose loop asked for a batch just then."""

    asked_ns = 0

    def claim(self, now_ns: int) -> Claim:
        return Claim(6, computing=1.0, idle_s=(now_ns - self.asked_ns) / 1e9)


@pytest.mark.parametrize(("asked_ms_after_window_began", "share_of_it"), [(-1, (8, False)), (1, (4, True))])
def test_at_the_same_time_is_within_one_window(asked_ms_after_window_began: int, share_of_it: tuple[int, bool]) -> None:
    other = Other()
    claims.register(other)
    began_ns = time.perf_counter_ns() - 100_000_000
    other.asked_ns = began_ns + asked_ms_after_window_began * 1_000_000
    assert claims.shared_cores(None, 8, since_ns=began_ns) == share_of_it


class Busy(Dataset):  # type: ignore[type-arg]
    """Computes for some milliseconds."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> int:
        end = time.perf_counter() + 0.003
        while time.perf_counter() < end:
            pass
        return index


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders of other tests may have been iterated a moment ago."""
    claims._claimants.clear()


def test_a_loader_with_a_given_number_of_workers_is_known_while_it_is_iterated(monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader(Busy(), 4, num_workers=3, persistent_workers=True) as loader:
        iterator = iter(loader)
        next(iterator)
        assert claims.shared_cores(None, 8) == (5, True)
        list(iterator)
        now_ns = time.perf_counter_ns()
        monkeypatch.setattr(time, "perf_counter_ns", lambda: now_ns + int(ACTIVE_S * 1e9))
        assert claims.shared_cores(None, 8) == (8, False)
    del iterator
    assert not list(claims._claimants)


def test_workers_that_wait_for_something_outside_need_no_cores() -> None:
    timing, costs = Timing(), Costs()
    clock = LoopClock(timing, costs)
    clock.enter()
    claim = claims.FixedClaim(3, clock, costs)
    assert claim.claim(clock.entered_at).cores(ACTIVE_S) == 3, "nothing is known yet"
    costs.add(4, fetch_ns=900, collate_ns=100, write_ns=0, cpu_ns=50, queued_ns=100)
    assert claim.claim(clock.entered_at).cores(ACTIVE_S) == 0
    costs.add(4, fetch_ns=900, collate_ns=100, write_ns=0, cpu_ns=500, queued_ns=400)
    assert claim.claim(clock.entered_at).cores(ACTIVE_S) == 3


def test_auto_begins_with_what_a_loader_that_is_at_work_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antifreeze.delivery.choosing.rank_cores", lambda: 8)
    given: dict[str, Any] = {"num_workers": "auto", "stall_report_s": 29.0}
    with DataLoader(Busy(), 4, num_workers=3) as train, DataLoader(range(32), 4, **given) as validation:
        iterator = iter(train)
        next(iterator)
        other = iter(validation)
        assert other.pool.size == 4  # 8 less 3, and less one for the loop
        assert torch.cat(list(other)).tolist() == list(range(32))
    with DataLoader(range(32), 4, **given) as alone:
        claims._claimants.clear()
        assert iter(alone).pool.size == 7


def test_workers_that_wait_for_the_next_epoch_use_no_cpu() -> None:
    with DataLoader(Busy(), 4, num_workers=2, persistent_workers=True) as loader:
        list(loader)
        workers = [psutil.Process(worker.pid) for worker in loader._iterator.pool.crew.workers]
        assert len(workers) == 2

        def used() -> list[tuple[float, float, int, bool]]:
            seen = [(worker.cpu_times(), worker.num_ctx_switches().voluntary, worker.status()) for worker in workers]
            return [(times.user, times.system, switches, status == psutil.STATUS_SLEEPING) for times, switches, status in seen]

        deadline, before = time.monotonic() + 100, None
        while before != (before := used()) or not all(asleep for *_, asleep in before):  # until what they load of the next epoch is there
            assert time.monotonic() < deadline
            time.sleep(0.3)
        time.sleep(0.5)
        assert used() == before
