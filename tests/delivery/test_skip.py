"""on_bad_sample="skip": exactly the bad samples are missing, batches stay full, and the report counts what came."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from antifreeze import DataLoader
from antifreeze.errors import AntifreezeWarning, TooManyBadSamples


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
        if len(indices) == 1:
            return indices
        raise OSError("no batch today")


def test_a_batch_that_fails_though_its_samples_do_not_is_an_error() -> None:
    with DataLoader(BatchesAreBad(8, set()), batch_size=4, on_bad_sample="skip") as loader, pytest.raises(OSError, match="no batch today"):
        batches_of(loader)


class Noisy(Dataset[Any]):
    """Each sample is its index and a random fraction."""

    def __init__(self, samples: int, bad: tuple[int, ...]) -> None:
        self.samples = samples
        self.bad = bad

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.bad:
            raise ValueError("bad")
        return index + torch.rand(1, dtype=torch.float64)


def epoch(dataset: Dataset[Any], num_workers: int, **kwargs: Any) -> list[list[float]]:
    torch.manual_seed(1)
    with DataLoader(dataset, num_workers=num_workers, on_bad_sample="skip", **kwargs) as loader:
        return [batch.flatten().tolist() for batch in loader]


@pytest.mark.parametrize(
    ("batch_size", "samples", "bad", "drop_last", "expected"),
    [
        (4, 11, (0, 1, 2), False, [[10, 9, 8, 3], [4, 5, 6, 7]]),
        (4, 11, (1, 9, 10), False, [[0, 8, 2, 3], [4, 5, 6, 7]]),
        (1, 4, (0, 2), False, [[3], [1]]),
        (4, 12, (0,), True, [[11, 1, 2, 3], [4, 5, 6, 7]]),
        (4, 12, (0, 1, 2, 3), True, [[11, 10, 9, 8], [4, 5, 6, 7]]),
        (4, 12, (0, 1, 2, 3, 4), True, [[11, 10, 9, 8]]),
        (4, 12, (11,), True, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (4, 12, (9, 11), True, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_last_batch_that_moved_up_is_no_batch(
    batch_size: int, samples: int, bad: tuple[int, ...], drop_last: bool, expected: list[list[int]], num_workers: int
) -> None:
    """All of it: it does not come empty. Some of it: with drop_last it does not come either."""
    batches = epoch(Noisy(samples, bad), num_workers, batch_size=batch_size, drop_last=drop_last)
    assert [[int(sample) for sample in batch] for batch in batches] == expected


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_samples_of_a_short_batch_keep_their_random_numbers() -> None:
    """Whether a bad sample's row was left out of a loaded batch or the batch was collated again, the others stand where they stood."""
    short, whole = (epoch(Noisy(24, bad), 0, batch_size=4, keep_batches_full=False) for bad in ((1, 6, 9, 11), ()))
    good = [[sample for sample in batch if int(sample) not in (1, 6, 9, 11)] for batch in whole]
    assert short == good
    for num_workers in (1, 2, 3):
        assert epoch(Noisy(24, (1, 6, 9, 11)), num_workers, batch_size=4, keep_batches_full=False) == good
    as_list = epoch(Noisy(24, (1, 6, 9, 11)), 2, batch_size=4, keep_batches_full=False, collate_fn=torch.cat)
    assert as_list == good


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_last_batch_of_which_nothing_is_left_does_not_come(num_workers: int) -> None:
    """One of its two samples has moved up, and the other one is bad."""
    loader = DataLoader(SomeAreBad(10, {3, 8}), batch_size=4, num_workers=num_workers, on_bad_sample="skip")
    assert batches_of(loader) == [[0, 1, 2, 9], [4, 5, 6, 7]]


class Bare(IterableDataset[Any]):
    """Three of its samples are None."""

    def __iter__(self) -> Iterator[Any]:
        return iter([None if index in (1, 20, 39) else index for index in range(40)])


@pytest.mark.parametrize(("most", "is_enough"), [(0.05, False), (0.08, True), (2, False), (3, True)])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_fraction_of_bad_samples_counts_for_streams_too(most: float, is_enough: bool, num_workers: int) -> None:
    loader = DataLoader(Bare(), batch_size=4, num_workers=num_workers, on_bad_sample="skip", max_bad_samples=most)
    batches, errors = carrying_on(loader)
    assert [type(error) for error in errors] == ([] if is_enough else [TooManyBadSamples])
    if is_enough or isinstance(most, float):
        assert sum(map(len, batches)) == 37


class Leaves(SomeAreBad):
    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise SystemExit(3)
        return index


class LeavesStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return map(Leaves(12, {5}).__getitem__, range(12))


@pytest.mark.parametrize(
    ("dataset", "options", "lost"),
    [
        (Leaves(12, {5}), {}, {4, 5, 6, 7}),
        (Leaves(12, {5}), {"on_bad_sample": "skip"}, {4, 5, 6, 7}),
        (LeavesStream(), {}, {4, 5}),
        (LeavesStream(), {"on_bad_sample": "skip"}, {4, 5}),
    ],
)
def test_without_workers_an_exit_of_the_data_set_is_the_programs_and_a_loop_that_stays_goes_on(
    dataset: Any, options: Any, lost: set[int]
) -> None:
    iterator = iter(DataLoader(dataset, batch_size=4, **options))
    got = next(iterator).tolist()
    with pytest.raises(SystemExit):
        next(iterator)
    got += [index for batch in iterator for index in batch.tolist()]
    assert got == [index for index in range(12) if index not in lost]


@pytest.mark.parametrize("more", [{}, {"collate_fn": list}], ids=["rows", "collated"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_sample_that_nothing_replaces_is_decided_once_beside_one_that_is_replaced(num_workers: int, more: dict[str, Any]) -> None:
    asked: list[int] = []

    def skip_odd_ones(index: int, _: object) -> str:
        asked.append(index)
        return "skip" if index % 2 else "replace"

    given: dict[str, Any] = {"on_bad_sample": skip_odd_ones, "keep_batches_full": False, "max_bad_samples": 4, **more}
    torch.manual_seed(0)  # so that what replaces them is good
    loader = DataLoader(SomeAreBad(1000, {1, 2, 5, 6}), batch_size=4, sampler=range(16), num_workers=num_workers, **given)
    assert [len(batch) for batch in loader] == [3, 3, 4, 4]
    assert asked == [1, 2, 5, 6]
    assert [record.index for record in loader.report().bad_samples] == ["1", "2", "5", "6"]
    loader.close()


class FirstOfItsBatchIsOdd(SomeAreBad):
    def __init__(self, odd: Any, usual: Any, at: int = 4) -> None:
        super().__init__(20, set())
        self.odd, self.usual, self.at = odd, usual, at

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "is": self.odd if index == self.at else self.usual}


@pytest.mark.parametrize("odd", [torch.zeros(3), None, {"a": 1}], ids=["shape", "None", "dict"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_first_of_a_batch_may_be_the_one_that_does_not_fit(num_workers: int, odd: Any) -> None:
    loader = DataLoader(FirstOfItsBatchIsOdd(odd, torch.zeros(2)), batch_size=4, num_workers=num_workers, on_bad_sample="skip")
    assert sorted(index for batch in loader for index in batch["index"].tolist()) == [index for index in range(20) if index != 4]
    assert [record.index for record in loader.report().bad_samples] == ["4"]
    loader.close()


@pytest.mark.parametrize("at", [4, 5])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_of_two_that_are_not_alike_either_is_left_out_and_not_the_rest_of_the_epoch(num_workers: int, at: int) -> None:
    """Which of them is odd nobody can tell; but beside the odd one every other sample was left out."""
    dataset = FirstOfItsBatchIsOdd(torch.zeros(3), torch.zeros(2), at)
    loader = DataLoader(dataset, batch_size=2, num_workers=num_workers, on_bad_sample="skip")
    came = {index for batch in loader for index in batch["index"].tolist()}
    assert at not in came and len(came) >= 17
    loader.close()


class NoRows(SomeAreBad):
    def __getitem__(self, index: int) -> Any:
        number = super().__getitem__(index)
        return f"s{number}", [number] * 2


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_what_moves_up_does_not_depend_on_what_parts_a_batch_was_loaded_in(num_workers: int) -> None:
    """Of two bad samples of a batch the second was not known yet where its part turned out to be no rows."""
    loader = DataLoader(NoRows(40, {5, 6, 39}), batch_size=4, num_workers=num_workers, on_bad_sample="skip")
    batches = [list(texts) for texts, _ in loader]
    assert batches[1] == ["s4", "s37", "s38", "s7"]
    assert [record.index for record in loader.report().bad_samples] == ["5", "6", "39"]
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_sample_for_which_none_is_left_to_move_up_is_decided_once(num_workers: int) -> None:
    loader = DataLoader(SomeAreBad(9, {5, 6}), batch_size=4, num_workers=num_workers, on_bad_sample="skip")
    assert batches_of(loader) == [[0, 1, 2, 3], [4, 8, 7]]
    assert [record.index for record in loader.report().bad_samples] == ["5", "6"]
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_record_has_what_the_list_has(num_workers: int) -> None:
    loader = DataLoader(SomeAreBad(12, {5}), batch_size=4, num_workers=num_workers, on_bad_sample="skip")
    list(loader)
    (record,) = loader.report().bad_samples
    listed = record.as_dict()
    for name in ("index", "path", "seed", "epoch", "batch", "stage", "exception", "message", "traceback"):
        assert getattr(record, name) == listed[name]
    assert (record.index, record.exception, record.message) == ("5", "ValueError", "sample 5 is bad")
    assert "__getitem__" in record.traceback


@pytest.mark.parametrize("num_workers", [0, 2, "auto"])
def test_an_epoch_of_which_nothing_is_left_is_said_once(num_workers: int | str) -> None:
    """A wrong folder, for instance: the loop would do nothing, epoch after epoch, without a word."""
    with DataLoader(SomeAreBad(6, set(range(6))), batch_size=2, num_workers=num_workers, on_bad_sample="skip") as loader:
        with pytest.warns(
            AntifreezeWarning, match="no batch came in this epoch, because all samples were bad.*the last one: sample .* is bad"
        ):
            assert list(loader) == []
        assert list(loader) == []


def test_an_epoch_without_samples_is_no_news() -> None:
    assert list(DataLoader(SomeAreBad(0, set()), on_bad_sample="skip")) == []
