"""What a signal's handler raises while the loop itself draws or loads, with num_workers="auto" above all; and workers that are still to
come."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from antifreeze import DataLoader
from antifreeze.delivery import steering
from antifreeze.delivery.steering import NotHere
from antifreeze.supervisor.replacing import Replacing


class Alarm(TimeoutError):
    """As most alarms are; and so an OSError."""


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    def ring(number: int, frame: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGUSR1, ring)
    yield
    signal.signal(signal.SIGUSR1, before)


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """In the loop's own process: one sample cannot be loaded, and during another one an alarm goes off, once."""

    def __init__(self, bad: int = -1, rings: int = -1) -> None:
        self.loop, self.bad, self.rings = os.getpid(), bad, rings

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        if os.getpid() == self.loop and index == self.bad:
            raise LookupError("not here")
        if os.getpid() == self.loop and index == self.rings:
            self.rings = -1
            signal.raise_signal(signal.SIGUSR1)
        return index


def came(batches: Any) -> list[int]:
    return [int(index) for batch in batches for index in batch]


def test_an_alarm_within_a_sample_is_the_users_and_no_bad_sample() -> None:
    with DataLoader(Numbers(rings=13), batch_size=4, num_workers="auto") as loader:
        batches = iter(loader)
        found = came(next(batches) for _ in range(3))
        with pytest.raises(Alarm):
            next(batches)
        assert found + came(batches) == list(range(60))
        assert "failed" not in str(loader.report())


def test_an_alarm_within_a_sample_that_the_loop_makes_beside_workers() -> None:
    with DataLoader(Numbers(), batch_size=4, num_workers="auto") as loader:
        batches: Any = iter(loader)
        found = came([next(batches)])
        steers, planned = batches._steering, batches._flights
        planned.plan_next(as_list=True)
        loader.dataset.rings = planned.planned[0].indices[1]
        with pytest.raises(Alarm):
            steers._make(planned.take_one_to_make(), False, steers.local)
        assert found + came(batches) == list(range(60))


@pytest.mark.limit(30)
def test_what_was_broken_off_goes_on_with_workers_where_the_loop_may_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool without workers, and a loop that waits for them: for ever."""
    with DataLoader(Numbers(bad=13), batch_size=4, num_workers="auto") as loader:
        batches: Any = iter(loader)
        found = came(next(batches) for _ in range(4))
        with monkeypatch.context() as patch, pytest.raises(Alarm):
            patch.setattr(type(batches._arrivals), "next", lambda *_: signal.raise_signal(signal.SIGUSR1))
            next(batches)
        assert found + came(batches) == list(range(60))


class Rings(torch.utils.data.Sampler):  # type: ignore[type-arg]
    """While it gives this index, for the first time, an alarm goes off."""

    def __init__(self, at: int) -> None:
        self.at, self.rang = at, False

    def __iter__(self) -> Iterator[int]:
        for index in range(60):
            if index == self.at and not self.rang:
                self.rang = True
                signal.raise_signal(signal.SIGUSR1)
            yield index

    def __len__(self) -> int:
        return 60


@pytest.mark.parametrize("workers", [0, 2, "auto"])
def test_an_alarm_within_the_sampler_is_raised_at_once_and_is_no_end_of_it(workers: Any) -> None:
    sampler, found = Rings(at=45), []
    with DataLoader(Numbers(), batch_size=4, sampler=sampler, num_workers=workers) as loader:
        batches = iter(loader)
        with pytest.raises(Alarm):
            while not sampler.rang:
                found += came([next(batches)])
        assert found + came(batches) == list(range(60))


def test_an_alarm_within_the_sampler_while_the_epoch_begins() -> None:
    with DataLoader(Numbers(), batch_size=4, sampler=Rings(at=2), num_workers=2) as loader:
        with pytest.raises(Alarm):
            iter(loader)
        assert came(loader) == list(range(60))


def test_an_alarm_while_we_close_a_workers_line_is_not_taken_for_code_that_closes_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """It falls between the closing of the line and the moment in which the worker is let go."""
    with DataLoader(Numbers(), batch_size=4, num_workers=2) as loader:
        batches: Any = iter(loader)
        found = came([next(batches)])
        with monkeypatch.context() as patch, pytest.raises(Alarm):
            patch.setattr(type(batches.pool.crew), "closed_by_others", lambda crew: ["line to worker 0"])
            patch.setattr(type(batches._arrivals), "next", lambda *_: signal.raise_signal(signal.SIGUSR1))
            next(batches)
        assert found + came(batches) == list(range(60))


class Waits(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """For something outside; who loaded it is said beside its number."""

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> tuple[int, int]:
        time.sleep(0.005)
        return index, os.getpid()


def until(batches: Any, seen: Callable[[set[int]], bool], seconds: float = 15) -> bool:
    """Whether that is seen soon, of those who loaded a batch."""
    ends_s = time.monotonic() + seconds
    return any(seen(set(batch[1].tolist())) for batch in itertools.takewhile(lambda _: time.monotonic() < ends_s, batches))


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a fork takes long: each worker is still to come when the one before it has been started."""
    monkeypatch.setattr(steering, "GROWS_FOR_S", 0.0)


@pytest.mark.usefixtures("one_at_a_time")
def test_workers_that_are_there_take_part_while_others_are_still_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the loop loads slow batches itself between two forks, the last worker of 256 is there after minutes."""
    monkeypatch.setattr(steering, "RESTS", 1e6)
    with DataLoader(Waits(), batch_size=16, num_workers="auto") as loader:
        batches: Any = iter(loader)
        assert until(batches, lambda pids: os.getpid() not in pids)
        assert batches.pool.to_come


@pytest.mark.usefixtures("one_at_a_time")
def test_it_goes_on_where_one_dies_while_others_are_still_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were to come for ever, what was decided was never taken up, and nothing else was ever tried."""
    add_worker, pids = Replacing.add_worker, []

    def add(self: Replacing) -> bool:
        added = add_worker(self)
        pids.append(next(worker.pid for worker in reversed(self._crew.workers) if worker is not None))
        if len(pids) == 3:
            os.kill(pids[-1], signal.SIGKILL)
        return added

    monkeypatch.setattr(Replacing, "add_worker", add)
    with DataLoader(Waits(), batch_size=16, num_workers="auto") as loader:
        batches: Any = iter(loader)
        auto = batches._steering.auto
        most = auto.tuner.limits.most
        assert until(batches, lambda _: auto.tuner.limits.most < most)
        decided = len(loader.report().decided)
        assert until(batches, lambda _: not batches.pool.to_come and len(loader.report().decided) > decided)


@pytest.mark.usefixtures("one_at_a_time")
def test_it_goes_on_where_the_loop_can_load_no_more_while_others_are_still_to_come() -> None:
    with DataLoader(Waits(), batch_size=16, num_workers="auto") as loader:
        batches: Any = iter(loader)
        assert until(batches, lambda _: batches.pool.to_come > 0)
        batches._steering.leave_to_workers(NotHere("a sample failed"))
        assert until(batches, lambda _: batches._steering.auto.setting.workers > 1)
