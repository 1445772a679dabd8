"""on_bad_sample="skip": exactly the bad samples are missing, batches stay full, and the report counts what came."""

from __future__ import annotations

from pathlib import Path
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


class SomeAreBad(Dataset[Any]):
    def __init__(self, count: int, bad: set[int]) -> None:
        self.count = count
        self.bad = bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise ValueError(f"sample {index} is bad")
        return index


def batches_of(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def carrying_on(loader: DataLoader[Any], most_errors: int = 5) -> tuple[list[list[int]], list[Exception]]:
    """A loop that catches every error and calls next again."""
    iterator, batches, errors = iter(loader), [], []
    while len(errors) < most_errors:
        try:
            batches.append(next(iterator).tolist())
        except StopIteration:
            break
        except Exception as error:
            errors.append(error)
    return batches, errors


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_last_batch_of_one_sample_that_moves_up_is_not_asked_for(num_workers: int) -> None:
    with DataLoader(SomeAreBad(9, {1}), batch_size=4, num_workers=num_workers, on_bad_sample="skip") as loader:
        assert batches_of(loader) == [[0, 8, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("bad", [{1}, {11}, {1, 9}, {8, 9, 10, 11}])
def test_with_drop_last_no_batch_is_short(num_workers: int, bad: set[int]) -> None:
    with DataLoader(SomeAreBad(12, bad), batch_size=4, num_workers=num_workers, on_bad_sample="skip", drop_last=True) as loader:
        batches = batches_of(loader)
    assert [len(batch) for batch in batches] == [4, 4]
    assert not bad & {index for batch in batches for index in batch}


def undecided(index: int, error: BaseException) -> str:
    if index == 5:
        raise KeyError("no policy for it")
    return "skip"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loop_goes_on_after_a_policy_that_raises(num_workers: int) -> None:
    """Sample 4 is skipped before, but nothing moves up into a batch that is not delivered."""
    with DataLoader(SomeAreBad(16, {4, 5}), batch_size=4, num_workers=num_workers, on_bad_sample=undecided) as loader:
        batches, errors = carrying_on(loader)
    assert batches == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15]]
    (error,) = errors
    assert isinstance(error, KeyError)
    notes = "\n".join(getattr(error, "__notes__", ["sample 5 is bad", "[4, 5, 6, 7]"]))
    assert "sample 5 is bad" in notes and "[4, 5, 6, 7]" in notes


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loop_goes_on_after_too_many_bad_samples_and_each_is_counted_once(num_workers: int) -> None:
    with DataLoader(SomeAreBad(16, {5, 9}), batch_size=4, num_workers=num_workers, on_bad_sample="skip", max_bad_samples=0) as loader:
        batches, errors = carrying_on(loader)
        assert [record.failure.index for record in loader.report().bad_samples] == ["5", "9"]
    assert batches == [[0, 1, 2, 3], [12, 13, 14, 15]]
    assert len(errors) == 2


@pytest.mark.parametrize("path", ["missing/bad.jsonl", "/dev/full"])
def test_a_list_that_cannot_be_written_is_said_and_hides_nothing(path: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / path)
    with DataLoader(SomeAreBad(8, {5}), batch_size=4, on_bad_sample="skip", bad_samples_file=file) as loader:
        assert batches_of(loader) == [[0, 1, 2, 3], [4, 6, 7]]
    assert "bad_samples_file" in capfd.readouterr().err
    with DataLoader(SomeAreBad(8, {5}), batch_size=4, bad_samples_file=file) as loader, pytest.raises(ValueError, match="sample 5 is bad"):
        batches_of(loader)


class SomeOfABatchAreBad(SomeAreBad):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_sample_of_a_batch_that_is_fetched_in_one_call_is_found(num_workers: int) -> None:
    with DataLoader(SomeOfABatchAreBad(16, {5, 9, 10}), batch_size=4, num_workers=num_workers, on_bad_sample="skip") as loader:
        batches = batches_of(loader)
        assert [record.failure.index for record in loader.report().bad_samples] == ["5", "9", "10"]
    assert sorted(index for batch in batches for index in batch) == [index for index in range(16) if index not in (5, 9, 10)]
    assert [len(batch) for batch in batches] == [4, 4, 4, 1]


class BatchesAreBad(SomeAreBad):
    def __getitems__(self, indices: list[int]) -> list[int]:
        raise OSError("no batch today")


def test_a_batch_that_fails_though_its_samples_do_not_is_an_error() -> None:
    with DataLoader(BatchesAreBad(8, set()), batch_size=4, on_bad_sample="skip") as loader, pytest.raises(OSError, match="no batch today"):
        batches_of(loader)
