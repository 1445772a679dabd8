"""Every worker repeats the same iterable data: said once, and not where the samples are only alike."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from antifreeze import DataLoader


class Numbers(IterableDataset[Any]):
    def __init__(self, splits: bool, differ: bool) -> None:
        self.splits = splits
        self.differ = differ

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        first, step = (info.id, info.num_workers) if self.splits else (0, 1)
        return (torch.tensor(number if self.differ else 7) for number in range(first, 40, step))


@pytest.mark.parametrize(("splits", "differ", "times"), [(False, True, 1), (True, True, 0), (True, False, 0), (False, False, 0)])
@pytest.mark.parametrize("collate", [None, lambda samples: {"all": torch.stack(samples), "text": "a parcel"}])
def test_it_is_said_once_where_it_is_so(splits: bool, differ: bool, times: int, collate: Any) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = DataLoader(Numbers(splits, differ), 4, num_workers=2, collate_fn=collate, multiprocessing_context="fork")
        for _ in range(2):
            list(loader)
    assert sum("two workers began with the same samples" in str(warning.message) for warning in said) == times
