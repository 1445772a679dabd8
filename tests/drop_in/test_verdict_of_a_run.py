"""The verdict of real runs: a data set that sleeps, one that computes; with workers and without."""

from __future__ import annotations

import time

import pytest
import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader


class Sleeps(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.tensor(index)


class Computes(Sleeps):
    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.process_time() + 0.02  # a machine that stands still for a while (another's turn) is not to outweigh all of them
        while time.process_time() < until:
            pass
        return torch.tensor(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_waiting_and_computing_are_told_apart(workers: int) -> None:
    for dataset, kind, other in ((Sleeps(), "waiting", "computing"), (Computes(), "computing", "waiting")):
        with DataLoader(dataset, batch_size=8, num_workers=workers) as loader:
            for _ in loader:
                pass
            report = loader.report()
        assert report.waited_for_s[f"fetch, {kind}"] > report.waited_for_s[f"fetch, {other}"], report
        assert sum(report.waited_for_s.values()) == pytest.approx(report.waited_s)
        assert report.verdict.startswith("the loop waited"), report
