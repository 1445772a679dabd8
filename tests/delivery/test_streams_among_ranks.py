"""An iterable data set on two ranks of which one leaves samples out: both have the same number of batches."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset

from antifreeze import DataLoader


class Items(IterableDataset[torch.Tensor]):
    def __init__(self, bad: set[int]) -> None:
        self._bad = bad

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(self._item, range(24))

    def _item(self, number: int) -> torch.Tensor:
        if number in self._bad:
            raise ValueError(f"item {number}")
        return torch.tensor(number)


def _count(rank: int, store: str, workers: int, counts: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    loader = DataLoader(Items({1, 2, 9, 17} if rank else set()), batch_size=4, num_workers=workers, on_bad_sample="skip")
    counts.put((rank, [len(batch) for batch in loader]))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("workers", [0, 1])
def test_no_rank_has_fewer_batches_because_of_what_it_left_out(tmp_path: Any, workers: int) -> None:
    context = multiprocessing.get_context("fork")
    counts = context.SimpleQueue()
    ranks = [context.Process(target=_count, args=(rank, str(tmp_path / "store"), workers, counts)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(150)
    assert [process.exitcode for process in ranks] == [0, 0]
    assert dict(counts.get() for _ in ranks) == {0: [4] * 6, 1: [2, 4, 3, 4, 3, 4]}
    counts.close()
