"""on_bad_sample="skip": exactly the bad samples are missing, batches stay full, and the report counts what came."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader


class TwoAreBad(Dataset[Any]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index in (13, 57):
            raise ValueError("bad")
        return torch.full((3,), float(index)), index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_exactly_the_bad_samples_are_missing(num_workers: int) -> None:
    loader = DataLoader(TwoAreBad(), batch_size=8, num_workers=num_workers, on_bad_sample="skip")
    batches = [indices.tolist() for _, indices in loader]
    assert sorted(index for batch in batches for index in batch) == [index for index in range(1000) if index not in (13, 57)]
    assert [len(batch) for batch in batches] == [8] * 124 + [6]
    assert loader.report().samples == 998
    loader.close()
