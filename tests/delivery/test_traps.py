"""Silent traps: said once where there is one, and not at all where there is none."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

from antifreeze.delivery.traps import Traps


class Draws:
    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)


def said(act: Callable[[Traps], None]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act(Traps(lambda: 64))
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("workers", "forks", "word"), [(2, True, "forked"), (2, False, "started"), (1, True, None), (1, False, None), (0, False, None)]
)
def test_a_generator_that_every_worker_has_a_copy_of(workers: int, forks: bool, word: str | None) -> None:
    def start_twice(traps: Traps) -> None:
        for _ in range(2):
            traps.before_start(Draws(), workers, forks)

    told = said(start_twice)
    assert len(told) == (word is not None)
    assert all(
        f"dataset.generator (numpy.random._generator.Generator) is a random generator made before the workers are {word}" in t for t in told
    )


@pytest.mark.parametrize(
    ("loop", "times"),
    [(lambda row: row.add_(1), 1), (lambda row: row + 1, 0), (lambda row: row.sum(), 0)],
    ids=["in place", "a copy", "only read"],
)
def test_the_data_sets_own_storage_is_no_trap_before_the_loop_writes_to_it(loop: Callable[[torch.Tensor], object], times: int) -> None:
    rows = torch.zeros(5, 3)

    def hand_out(traps: Traps) -> None:
        for row in rows:
            traps.handed_out(row)
            loop(row)

    told = said(hand_out)
    assert len(told) == times
    assert all("own storage" in text for text in told)


class Guarded:
    def __init__(self) -> None:
        self.only_four = asyncio.Semaphore(4)


@pytest.mark.parametrize(("workers", "threads", "times"), [(2, True, 1), (1, True, 0), (2, False, 0)])
def test_a_lock_of_one_event_loop_that_several_threads_share(workers: int, threads: bool, times: int) -> None:
    told = said(lambda traps: traps.before_start(Guarded(), workers, forks=not threads, threads=threads))
    assert len(told) == times
    assert all("dataset.only_four (asyncio.locks.Semaphore) is used by all worker threads" in text for text in told)
