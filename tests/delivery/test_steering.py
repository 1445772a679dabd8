"""What a signal's handler raises while the loop itself draws or loads, with num_workers="auto" above all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from antifreeze import DataLoader


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
        steering, planned = batches._steering, batches._flights
        planned.plan_next(as_list=True)
        loader.dataset.rings = planned.planned[0].indices[1]
        with pytest.raises(Alarm):
            steering._make(planned.take_one_to_make(), False, steering.local)
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
