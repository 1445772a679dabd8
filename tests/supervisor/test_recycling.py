"""recycle_worker_after: by what a worker alone has, not by what it shares with its parent."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader

COUNT = 60
LIMIT_BYTES = 48_000_000


class Leaking(Dataset[Any]):
    """Every sample leaves `leak_bytes` behind in its worker."""

    def __init__(self, leak_bytes: int) -> None:
        self.leak_bytes = leak_bytes
        self.kept: list[bytes] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        self.kept.append(os.urandom(self.leak_bytes))
        return torch.tensor([index, os.getpid()])


def load(leak_bytes: int, limit: int | str = LIMIT_BYTES) -> set[int]:
    """All samples came once, in order; the processes that loaded them."""
    given: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 100}
    loader = DataLoader(Leaking(leak_bytes), 5, recycle_worker_after=f"{limit}B", **given)
    rows = torch.cat(list(loader))
    assert rows[:, 0].tolist() == list(range(COUNT))
    assert loader.report().restarts == 0, "recycling is no fault"
    return set(rows[:, 1].tolist())


def test_what_the_fork_shares_does_not_make_a_worker_large() -> None:
    of_the_parent = os.urandom(2 * LIMIT_BYTES)
    assert len(load(leak_bytes=1)) <= 2
    assert of_the_parent


def test_a_worker_that_leaks_makes_room_for_another(capfd: pytest.CaptureFixture[str]) -> None:
    assert len(load(leak_bytes=4_000_000)) > 2
    assert "after its first task" not in capfd.readouterr().err


def test_that_no_worker_stays_below_the_limit_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert len(load(leak_bytes=100_000, limit=10_000)) > 4
    assert capfd.readouterr().err.count("after its first task: more than recycle_worker_after allows (10,000)") == 1


class Listed(Leaking):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("dataset, batch_size", [(Leaking(1), 5), (Listed(1), 5), (Leaking(1), None)])
def test_samples_are_counted_however_the_data_set_is_asked(dataset: Dataset[Any], batch_size: int | None) -> None:
    with DataLoader(dataset, batch_size, recycle_worker_after=10, num_workers=1, multiprocessing_context="fork") as loader:
        processes = {int(row[1]) for batch in loader for row in batch.view(-1, 2)}
    assert 4 <= len(processes) <= 6
    assert loader.report().worker_samples >= COUNT
