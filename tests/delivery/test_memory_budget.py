"""memory_budget: what is in flight is bounded by it, whatever the path, and what cannot fit is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from antifreeze import DataLoader
from antifreeze.errors import BatchTooLarge

SAMPLE_BYTES, SAMPLES, BATCH = 1 << 18, 40, 2
BATCH_BYTES = SAMPLE_BYTES * BATCH


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.full((SAMPLE_BYTES // 4,), float(index))


class Parcels(Rows):
    def __getitem__(self, index: int) -> Any:
        return {"sample": super().__getitem__(index), "name": "x" * index}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return map(Rows().__getitem__, range(first, SAMPLES, step))


@pytest.mark.parametrize("kind", [Rows, Parcels, Stream])
@pytest.mark.parametrize("workers", ["process", "thread"])
@pytest.mark.parametrize("fits", [1, 2, 4])
def test_no_more_is_in_flight_than_the_budget_allows(kind: Any, workers: str, fits: int) -> None:
    budget = fits * BATCH_BYTES + BATCH_BYTES // 2
    with DataLoader(kind(), BATCH, num_workers=2, prefetch_factor=8, workers=workers, memory_budget=budget, timeout=100) as loader:
        iterator, most, came = iter(loader), 0, 0
        for _ in iterator:
            came += 1
            most = max(most, len(iterator._flights.in_flight))
        assert came == SAMPLES // BATCH
    assert 1 <= most <= fits


class Longer(Dataset[Any]):
    """Each sample is larger than the one before."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        return torch.zeros((index + 1) << 11)


def test_batches_that_grow_are_over_the_budget_by_little() -> None:
    """By as much as they grow while they wait."""
    budget, step = 1 << 21, 1 << 13
    with DataLoader(Longer(), batch_size=1, num_workers=8, memory_budget=budget, timeout=100) as loader:
        iterator, most = iter(loader), 0
        for number, _ in enumerate(iterator):
            most = max(most, sum(step * (number + ahead + 1) for ahead in range(len(iterator._flights.in_flight) + 1)))
    assert budget / 4 < most < 1.5 * budget


@pytest.mark.parametrize("kind", [Rows, Parcels, Stream])
@pytest.mark.parametrize("given", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}, {"num_workers": "auto"}])
def test_a_batch_that_cannot_fit_is_refused(kind: Any, given: dict[str, Any]) -> None:
    with DataLoader(kind(), BATCH, memory_budget=SAMPLE_BYTES, **given) as loader, pytest.raises(BatchTooLarge) as caught:
        next(iter(loader))
    assert f"memory_budget ({SAMPLE_BYTES:,} bytes)" in str(caught.value)
