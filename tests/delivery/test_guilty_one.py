"""A sample that ends or blocks its worker together with others: it is found, it alone is missing, and it is named."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader
from antifreeze.errors import BadSample, SampleLost, SampleTimeout

SAMPLES, BATCH, GUILTY = 16, 4, 9
SOON = {"sample_timeout_s": 0.6, "num_workers": 2, "multiprocessing_context": "fork"}
IN_TIME = {**SOON, "sample_timeout_s": 100.0}
"""Where nothing hangs: however busy the machine is."""
REST = [number for number in range(SAMPLES) if number != GUILTY]


class InOneCall(Dataset[Any]):
    """Whole batches in one call; one sample is guilty of `crime`, wherever it is."""

    def __init__(self, crime: str, guilty: tuple[int, ...] = (GUILTY,)) -> None:
        self.crime = crime
        self.guilty = guilty

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("__getitems__ is there")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.one(index) for index in indices]

    def one(self, index: int) -> Any:
        if index in self.guilty:
            commit(self.crime)
        return index + torch.rand(1, dtype=torch.float64)


def commit(crime: str) -> None:
    if crime == "raise":
        raise ValueError("guilty")
    if crime == "hang":
        time.sleep(1000)
    if crime == "exit":
        os._exit(3)
    if crime == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def epoch(dataset: Dataset[Any], **options: Any) -> tuple[list[list[float]], list[Any]]:
    torch.manual_seed(1)
    times = SOON if getattr(dataset, "crime", None) == "hang" else IN_TIME
    with DataLoader(dataset, BATCH, **times, **options) as loader:
        return [batch.flatten().tolist() for batch in loader], [record.failure.index for record in loader.report().bad_samples]


def numbers(batches: list[list[float]]) -> list[int]:
    return sorted(int(sample) for batch in batches for sample in batch)


@pytest.mark.parametrize(("crime", "collate"), [("raise", None), ("hang", None), ("kill", None), ("raise", torch.cat), ("exit", torch.cat)])
def test_the_guilty_sample_of_a_call_for_a_whole_batch_is_skipped_alone(crime: str, collate: Any) -> None:
    batches, bad = epoch(InOneCall(crime), on_bad_sample="skip", collate_fn=collate)
    assert numbers(batches) == REST
    assert bad == [str(GUILTY)]
    innocent, _ = epoch(InOneCall("none"), collate_fn=collate)
    assert [batches[0], batches[1]] == [innocent[0], innocent[1]]


def test_a_call_for_a_whole_batch_that_hangs_is_an_error_that_names_its_sample() -> None:
    with DataLoader(InOneCall("hang"), BATCH, **SOON) as loader:
        batches = iter(loader)
        came = [int(sample) for _ in range(2) for sample in next(batches).flatten()]
        with pytest.raises(SampleTimeout, match=f"sample {GUILTY} took longer"):
            next(batches)
        assert came + [int(sample) for sample in next(batches).flatten()] == [*range(8), *range(12, 16)]


class Thoughtful(InOneCall):
    """A call that takes longer than one sample may."""

    def one(self, index: int) -> Any:
        time.sleep(0.35)
        return torch.tensor([float(index)])


@pytest.mark.slow
def test_a_call_for_a_whole_batch_that_is_honestly_slow_is_delivered() -> None:
    with DataLoader(Thoughtful("none"), BATCH, **{**SOON, "sample_timeout_s": 1.0}) as loader:
        assert numbers([batch.flatten().tolist() for batch in loader]) == list(range(SAMPLES))
        assert not loader.report().bad_samples


def test_several_guilty_ones_of_one_batch_are_all_found() -> None:
    batches, bad = epoch(InOneCall("exit", (4, 5, 7)), on_bad_sample="skip")
    assert numbers(batches) == [number for number in range(SAMPLES) if number not in (4, 5, 7)]
    assert sorted(bad) == ["4", "5", "7"]


def test_another_sample_takes_its_place() -> None:
    batches, bad = epoch(InOneCall("exit"), on_bad_sample="replace")
    assert [len(batch) for batch in batches] == [BATCH] * (SAMPLES // BATCH)
    assert GUILTY not in numbers(batches)
    assert bad == [str(GUILTY)]


def test_the_error_names_the_sample_of_a_call_for_a_whole_batch() -> None:
    with pytest.raises(SampleLost, match=rf"loading sample {GUILTY}\b"):
        epoch(InOneCall("exit"))


class OneByOne(InOneCall):
    """The crime is committed by the collate function, not by the data set."""

    __getitems__ = None  # type: ignore[assignment]

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)])


def collate_with_crime(samples: list[torch.Tensor]) -> torch.Tensor:
    for sample in samples:
        if sample.item() == GUILTY:
            os._exit(3)
    return torch.cat(samples)


def test_a_sample_that_ends_the_worker_in_the_collate_function_is_found() -> None:
    batches, bad = epoch(OneByOne("none"), collate_fn=collate_with_crime, on_bad_sample="skip")
    assert numbers(batches) == REST
    assert bad == [str(GUILTY)]


@pytest.mark.parametrize("batch_size", [1, None])
def test_a_batch_of_one_is_its_sample(batch_size: int | None) -> None:
    options: dict[str, Any] = {**IN_TIME, "on_bad_sample": "skip", "collate_fn": one_with_crime}
    with DataLoader(OneByOne("none"), batch_size, **options) as loader:
        assert sorted(int(batch) for batch in loader) == REST
        assert [record.failure.index for record in loader.report().bad_samples] == [str(GUILTY)]


def one_with_crime(sample: Any) -> Any:
    return collate_with_crime(sample if isinstance(sample, list) else [sample])


class OnlyTogether(OneByOne):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        if GUILTY in indices and len(indices) > 1:
            os._exit(3)
        return [torch.tensor([float(index)]) for index in indices]


def test_samples_that_are_innocent_alone_are_an_error_of_their_batch() -> None:
    with pytest.raises(SampleLost, match=r"of samples \[8, 9, 10, 11\]"):
        epoch(OnlyTogether("none"), on_bad_sample="skip")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_row_of_a_file_that_was_cut_short_is_found(tmp_path: Path, num_workers: int) -> None:
    """The gather of a memory-mapped array meets a bus error: exactly the rows that are not there are missing."""
    import numpy as np

    page = 4096 // 8
    rows = np.memmap(tmp_path / "rows", dtype=np.int64, mode="w+", shape=(6, page))
    rows[:] = np.arange(6)[:, None]
    rows.flush()
    os.truncate(tmp_path / "rows", 5 * page * 8)
    options: dict[str, Any] = {"worker_init_fn": lambda _: faulthandler.disable(), "multiprocessing_context": "fork"}
    with DataLoader(rows, 3, num_workers=num_workers, on_bad_sample="skip", **options) as loader:
        assert [batch[:, 0].tolist() for batch in loader] == [[0, 1, 2], [3, 4]]
        assert [record.failure.index for record in loader.report().bad_samples] == ["5"]


class SomeAreNone(OneByOne):
    def __getitem__(self, index: int) -> Any:
        return None if index == GUILTY else torch.tensor([float(index)])


class SomeOfACallAreNone(SomeAreNone):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def without_none(samples: Any) -> Any:
    """What many a user writes."""
    return torch.cat([sample for sample in samples if sample is not None])


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("dataset", [SomeAreNone("none"), SomeOfACallAreNone("none")])
def test_a_collate_function_that_knows_none_gets_it_unless_bad_samples_are_skipped(dataset: Any, num_workers: int) -> None:
    options: dict[str, Any] = {"collate_fn": without_none, "num_workers": num_workers}
    with DataLoader(dataset, BATCH, **options) as loader:
        assert [len(batch) for batch in loader] == [4, 4, 3, 4]
        assert loader.report().bad_samples == ()
    with DataLoader(dataset, BATCH, on_bad_sample="skip", **options) as loader:
        assert [len(batch) for batch in loader] == [4, 4, 4, 3]
        assert [record.failure.index for record in loader.report().bad_samples] == [str(GUILTY)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_none_without_batching_is_delivered_as_torch_does_unless_bad_samples_are_skipped(num_workers: int) -> None:
    with DataLoader(SomeAreNone("none"), None, num_workers=num_workers) as loader:
        assert [batch is None for batch in loader] == [number == GUILTY for number in range(SAMPLES)]
    with DataLoader(SomeAreNone("none"), None, num_workers=num_workers, on_bad_sample="skip") as loader:
        assert [int(batch) for batch in loader] == REST
        assert [record.failure.index for record in loader.report().bad_samples] == [str(GUILTY)]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("dataset", [SomeAreNone("none"), SomeOfACallAreNone("none")])
def test_none_under_default_collate_is_refused_by_name(dataset: Any, num_workers: int) -> None:
    with (
        DataLoader(dataset, BATCH, num_workers=num_workers) as loader,
        pytest.raises(BadSample, match=f'sample {GUILTY} is None .*\n.*what to do: on_bad_sample="skip"'),
    ):
        list(loader)


class Nameless:
    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        raise RuntimeError("no name")


class ByKey(InOneCall):
    __getitems__ = None  # type: ignore[assignment]

    def __getitem__(self, key: Any) -> Any:
        return self.one(key.number)


@pytest.mark.parametrize("crime", ["raise", "hang"])
def test_a_key_without_a_repr_is_named_by_its_type_and_place(crime: str) -> None:
    sampler = [Nameless(number) for number in range(SAMPLES)]
    batches, bad = epoch(ByKey(crime), sampler=sampler, on_bad_sample="skip")
    assert numbers(batches) == REST
    assert "Nameless" in bad[0]
    with pytest.raises(Exception, match=r"Nameless") as caught:
        epoch(ByKey(crime), sampler=sampler)
    assert f"position {GUILTY}" in str(caught.value) or f"row {GUILTY % BATCH}" in str(caught.value)
