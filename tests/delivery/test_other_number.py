"""`__getitems__` that gives fewer samples than it was asked for, or more: what is bad is not told by its place in the list."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader
from antifreeze.errors import BadSample


class OtherNumber(Dataset[Any]):
    """Each sample as often as `times` says, sample 12 not at all; sample 14 is None, or larger than the others."""

    def __init__(self, times: int = 1, odd: str = "None", only_among_others: bool = False) -> None:
        self.times = times
        self.odd = odd
        self.only_among_others = only_among_others

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("__getitems__ is asked")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        alone = len(indices) == 1 and self.only_among_others
        return [self._one(index, alone) for index in indices if index != 12 for _ in range(self.times)]

    def _one(self, index: int, alone: bool) -> Any:
        if index == 14 and not alone:
            return None if self.odd == "None" else torch.zeros(2, dtype=torch.int64)
        return torch.tensor([index])


def numbers(loader: DataLoader[Any]) -> list[int]:
    return [int(number) for batch in loader for number in batch.flatten()]


@pytest.mark.parametrize("num_workers", [0, 2, "auto"])
@pytest.mark.parametrize("times", [1, 2])
def test_only_the_bad_one_is_skipped(num_workers: Any, times: int) -> None:
    with DataLoader(OtherNumber(times), batch_size=8, num_workers=num_workers, on_bad_sample="skip") as loader:
        assert sorted(numbers(loader)) == sorted(times * [index for index in range(32) if index not in (12, 14)])
        assert [record.failure.index for record in loader.report().bad_samples] == ["14"]


@pytest.mark.parametrize("num_workers", [0, 2, "auto"])
def test_the_bad_one_is_named(num_workers: Any) -> None:
    with DataLoader(OtherNumber(), batch_size=8, num_workers=num_workers) as loader, pytest.raises(BadSample, match="sample 14 is None"):
        numbers(loader)


@pytest.mark.parametrize("on_bad_sample", ["raise", "skip"])
def test_where_none_is_bad_alone_the_batch_is_named(on_bad_sample: Any) -> None:
    dataset = OtherNumber(only_among_others=True)
    with DataLoader(dataset, batch_size=8, num_workers=2, on_bad_sample=on_bad_sample) as loader, pytest.raises(BadSample) as raised:
        numbers(loader)
    assert "one of the 7 samples that __getitems__ gave for 8" in str(raised.value)
    assert "[8, 9, 10, 11, 12, 13, 14, 15]" in str(raised.value)


@pytest.mark.parametrize("on_bad_sample", ["raise", "skip"])
def test_what_does_not_fit_is_not_taken_for_the_sample_of_its_place(on_bad_sample: Any) -> None:
    loader = DataLoader(OtherNumber(odd="larger"), batch_size=8, num_workers=2, on_bad_sample=on_bad_sample)
    with loader, pytest.raises(RuntimeError) as raised:
        numbers(loader)
    assert "number 5 of the 7 samples that __getitems__ gave for [8, 9, 10, 11, 12, 13, 14, 15]" in str(raised.value)
    assert "this was sample" not in str(raised.value)
    assert not loader.report().bad_samples
