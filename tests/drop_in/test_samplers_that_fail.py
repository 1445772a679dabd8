"""A sampler that fails does so where torch's loader would show it, and nothing that it gave before is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Sampler

from antifreeze import DataLoader


class FailsAt(Sampler[int]):
    def __init__(self, at: int) -> None:
        self.at = at

    def __iter__(self) -> Iterator[int]:
        for index in range(20):
            if index == self.at:
                raise KeyError("sampler")
            yield index

    def __len__(self) -> int:
        return 20


class FailsAtOnce(FailsAt):
    def __iter__(self) -> Iterator[int]:
        raise KeyError("at once")


class WithoutLength(FailsAt):
    def __len__(self) -> int:
        raise ValueError("nobody knows")


def story(kind: Any, sampler: Sampler[int], workers: int, **more: Any) -> tuple[str, int]:
    """Where it fails, and after how many batches."""
    batches = 0
    loader = kind(list(range(20)), batch_size=2, sampler=sampler, num_workers=workers, **more)
    try:
        iterator = iter(loader)
    except (KeyError, ValueError):
        return "iter", 0
    try:
        for _ in iterator:
            batches += 1
    except (KeyError, ValueError):
        return "next", batches
    return "end", batches


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", [FailsAt(0), FailsAtOnce(0), WithoutLength(99)], ids=lambda sampler: type(sampler).__name__)
def test_it_fails_where_it_does_with_torch(sampler: Sampler[int], workers: int) -> None:
    assert story(DataLoader, sampler, workers) == story(TorchLoader, sampler, workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_it_gave_before_is_delivered(workers: int) -> None:
    """(With workers, torch drops what it has in flight.)"""
    assert story(DataLoader, FailsAt(10), workers) == ("next", 5)


def test_the_same_loader_works_when_the_sampler_does_again() -> None:
    sampler = FailsAt(0)
    loader = DataLoader(list(range(20)), batch_size=2, sampler=sampler, num_workers=2, persistent_workers=True)
    for _ in range(2):
        with pytest.raises(KeyError):
            iter(loader)
    sampler.at = 99
    assert [batch.tolist() for batch in loader] == [[index, index + 1] for index in range(0, 20, 2)]
    loader.close()
