"""Workers added and retired while batches are loaded, with real processes: nothing is lost, nothing comes twice, nobody is left."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from antifreeze import DataLoader
from antifreeze.supervisor.pool import Pool

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:This DataLoader will create")
SAMPLES, MOST = 240, 4


class Numbers(Dataset[torch.Tensor]):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, torch.randint(0, 2**60, ()).item()])

    def __len__(self) -> int:
        return SAMPLES


@pytest.fixture
def iterator() -> Iterator[Any]:
    given: dict[str, Any] = {"multiprocessing_context": "fork", "timeout": 100, "max_restarts_per_minute": 10_000}
    loader = DataLoader(Numbers(), batch_size=5, num_workers=MOST, generator=torch.Generator().manual_seed(3), **given)
    with loader:
        yield iter(loader)


def pids(pool: Pool) -> list[int]:
    return [worker.pid for worker in pool.crew.workers if worker is not None]


def wait_until_gone(pool: Pool, at_most: int) -> None:
    """Every step handles what has happened; who was told to go is gone when its process is."""
    deadline = time.monotonic() + 100
    while len(pids(pool)) > at_most:
        assert time.monotonic() < deadline, pool
        pool._ears.drain(0.05)


def expected() -> list[int]:
    """As without workers: the same samples with the same random numbers."""
    return torch.cat(list(DataLoader(Numbers(), batch_size=5, generator=torch.Generator().manual_seed(3)))).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_any_resizes_and_deaths_leave_every_batch_as_it_is(iterator: Any, seed: int) -> None:
    dice, got, pool = random.Random(seed), [], iterator.pool
    for batch in iterator:
        got.append(batch)
        if dice.random() < 0.5:
            pool.resize(dice.randint(1, MOST))
        if dice.random() < 0.2 and pids(pool):
            with contextlib.suppress(ProcessLookupError):  # who retires may have ended, and been reaped, before the pool looked
                os.kill(dice.choice(pids(pool)), signal.SIGKILL)
    assert torch.cat(got).tolist() == expected()


def test_who_retires_is_gone_and_its_place_is_used_again(iterator: Any) -> None:
    pool, got = iterator.pool, [next(iterator)]
    before = pids(pool)
    pool.resize(1)
    assert pool.size == 1
    wait_until_gone(pool, at_most=1)
    assert pids(pool) == before[:1]
    got.append(next(iterator))
    pool.resize(3)
    assert (pool.size, pool.ready) == (3, 1)
    got += iterator
    assert torch.cat(got).tolist() == expected()
    assert pool.costs.restarts == 0
    assert not any("replaced" in str(line) for line in pool.story.lines())


def test_none_at_all_only_while_nothing_is_loaded(iterator: Any) -> None:
    with pytest.raises(ValueError, match="batches are being loaded"):
        iterator.pool.resize(0)
    assert torch.cat(list(iterator)).tolist() == expected()


def test_no_more_than_there_is_room_for(iterator: Any) -> None:
    iterator.pool.resize(99)
    assert iterator.pool.size == MOST
    assert torch.cat(list(iterator)).tolist() == expected()


def test_of_very_many_some_at_a_time(iterator: Any) -> None:
    pool, got = iterator.pool, [next(iterator)]
    pool.resize(1)
    wait_until_gone(pool, at_most=1)
    pool.ask_for(MOST)
    pool.grow_on(within_s=0)
    assert (pool.size, pool.to_come) == (2, MOST - 2)
    got.append(next(iterator))
    pool.grow_on(0)
    assert (pool.size, pool.to_come) == (3, MOST - 3)
    pool.resize(2)
    assert (pool.size, pool.to_come) == (2, 0), "nobody is still to come of what was asked for before"
    pool.grow_on(100)
    assert pool.size == 2
    assert torch.cat([*got, *iterator]).tolist() == expected()


class Held(Numbers):
    """Whoever takes sample 7 first stays in it."""

    def __init__(self) -> None:
        self.flags = mmap.mmap(-1, 16)
        self.flags[0] = 1

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 7 and self.flags[0]:
            self.flags[0], self.flags[1] = 0, 1
            time.sleep(600)
        return super().__getitem__(index)


def test_a_worker_that_hangs_while_it_retires_is_ended_at_its_deadline() -> None:
    dataset = Held()
    given: dict[str, Any] = {
        "multiprocessing_context": "fork",
        "sample_timeout_s": 1.0,
        "on_bad_sample": "skip",
        "keep_batches_full": False,
    }
    with DataLoader(dataset, batch_size=5, num_workers=2, **given) as loader:
        iterator = iter(loader)
        got = [next(iterator)]
        while not dataset.flags[1]:
            time.sleep(0.01)
        stuck = next(number for number in range(2) if iterator.pool.crew.journal.row(number).read().index == 7)
        iterator.pool._replacing.retire(stuck)
        got += iterator
    assert sorted(torch.cat(got)[:, 0].tolist()) == [index for index in range(SAMPLES) if index != 7]


class Refusing:
    """A worker_init_fn that ends every worker once it was told to."""

    def __init__(self) -> None:
        self.flags = mmap.mmap(-1, 16)

    def __call__(self, worker: int) -> None:
        if self.flags[0]:
            os._exit(3)


def test_one_more_that_does_not_come_up_is_no_fault() -> None:
    refuses = Refusing()
    given: dict[str, Any] = {"multiprocessing_context": "fork", "generator": torch.Generator().manual_seed(3), "timeout": 100}
    with DataLoader(Numbers(), batch_size=5, num_workers=3, worker_init_fn=refuses, **given) as loader:
        iterator = iter(loader)
        got = [next(iterator)]
        iterator.pool.resize(1)
        wait_until_gone(iterator.pool, at_most=1)
        refuses.flags[0] = 1
        iterator.pool.resize(2)
        wait_until_gone(iterator.pool, at_most=1)
        assert iterator.pool.size == 1
        assert "exit code 3" in iterator.pool.growth_failed
        got += iterator
    assert torch.cat(got).tolist() == expected()


class Counting(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        assert info is not None
        return torch.tensor([info.num_workers])


def test_a_worker_is_told_how_many_there_were_when_it_started() -> None:
    with DataLoader(Counting(), batch_size=1, num_workers=MOST, multiprocessing_context="fork", timeout=100) as loader:
        iterator = iter(loader)
        seen = {int(next(iterator))}
        iterator.pool.resize(1)
        wait_until_gone(iterator.pool, at_most=1)
        iterator.pool.resize(2)
        seen |= {int(batch) for batch in iterator}
    assert MOST in seen
    assert seen <= {MOST, 2}
