"""A process of multiprocessing that ends while its loader still has workers: weakref finalizers do not run there, and yet it ends."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch

from antifreeze import DataLoader

_kept: list[Any] = []

CASES = {
    "persistent workers": {"num_workers": 1, "persistent_workers": True},
    "workers that wait for the next epoch": {"num_workers": "auto", "on_bad_sample": "skip"},
    "an epoch that was begun": {"num_workers": 1},
}


def _leave_with(options: dict[str, Any]) -> None:
    loader = DataLoader(torch.arange(64.0), batch_size=4, **options)
    batches = iter(loader)
    _kept.extend((loader, batches, next(batches)))
    if len(options) > 1:
        assert sum(1 for _ in batches) == 15


@pytest.mark.parametrize("daemon", [False, True], ids=["plain", "daemonic"])
@pytest.mark.parametrize("case", CASES)
def test_a_process_ends_though_its_loader_has_workers(case: str, daemon: bool) -> None:
    process = multiprocessing.get_context("fork").Process(target=_leave_with, args=(CASES[case],), daemon=daemon)
    process.start()
    process.join(100)
    try:
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
