"""A sample that does not fit the others: refused with its index and what differed, never bent into shape."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from antifreeze.selftest.fault import BATCH, SAMPLES, SICK, Expectation, Outcome, Sickness, fault, sample_fault
from antifreeze.selftest.trial import Numbers, Trial


def odd(name: str, what: str, source: str, cause: str, error: str = "Exception") -> Callable[[Sickness], Sickness]:
    return sample_fault(name, what, source, error=error, cause=cause)


class GivesNone(Numbers):
    def __getitem__(self, index: int) -> Any:
        return None if index == SICK else super().__getitem__(index)


@fault(
    "none-sample",
    "a sample is None",
    "B2, pt#1137, pt#57429",
    Expectation((Outcome.ERROR,), "BadSample|TypeError", "None", names_sample=True),
    confined=True,
)
def none_sample(trial: Trial) -> None:
    trial.epoch(trial.loader(GivesNone(trial.folder)))


@odd("ragged-sample", "a sample has another shape", "B2", cause=r"shape|size")
def ragged(_: Path) -> Any:
    return torch.arange(3)


@odd("string-among-numbers", "a sample is a string", "B2", cause="str")
def string(_: Path) -> Any:
    return "no picture"


@odd("tuple-among-tensors", "a sample is a tuple of two", "B2", cause="tuple|list")
def other_structure(_: Path) -> Any:
    return torch.arange(2), 1


class Fractional(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, 0.5]) if index == SICK else torch.tensor([index, 7])


@fault(
    "other-dtype",
    "a float sample among integers: refused or promoted as torch does, never cut off",
    "B2",
    Expectation((Outcome.ERROR, Outcome.FINISHED), cause="dtype|float", names_sample=True),
)
def other_dtype(trial: Trial) -> None:
    def read(batch: torch.Tensor) -> list[Any]:
        for index, value in batch.tolist():
            if value != (0.5 if index == SICK else 7):
                trial.wrong(f"{value} came for sample {index}")
        return [int(index) for index, _ in batch.tolist()]

    trial.epoch(trial.loader(Fractional(trial.folder)), read=read)


@odd("unpicklable-sample", "the result holds a lock and cannot leave the worker", "FIELD 6: pt#142884", cause="pickle|lock")
def unpicklable_sample(_: Path) -> Any:
    return threading.Lock()


class Records(Numbers):
    def __getitem__(self, index: int) -> Any:
        return {"number": index, "handle": threading.Lock() if index == SICK else "fine"}


@fault(
    "unpicklable-batch",
    "the collate function hands on an object that does not pickle",
    "FIELD 6: pt#142884",
    Expectation((Outcome.ERROR,), "BatchNotPicklable|TypeError|PicklingError", r"lock"),
)
def unpicklable_batch(trial: Trial) -> None:
    loader = trial.loader(Records(trial.folder), collate_fn=list)
    trial.epoch(loader, read=lambda batch: [one["number"] for one in batch])


@fault(
    "unpicklable-without-batching",
    "the same with batch_size=None",
    "pt#142884",
    Expectation((Outcome.ERROR,), "BatchNotPicklable|BadSample|TypeError|PicklingError", "lock", names_sample=True),
    confined=True,
)
def unpicklable_single(trial: Trial) -> None:
    trial.epoch(trial.loader(Records(trial.folder), batch_size=None), read=lambda one: [int(one["number"])])


class SlowToPickle:
    def __reduce__(self) -> Any:
        time.sleep(3600)


class BreaksWhenRead:
    def __reduce__(self) -> Any:
        return (int, ("no number",))


class Parcels(Numbers):
    """Records with an object of the given kind in the sick one."""

    def __init__(self, folder: Path, kind: type) -> None:
        super().__init__(folder)
        self.kind = kind

    def __getitem__(self, index: int) -> Any:
        return {"number": index, "load": self.kind() if index == SICK else None}


def parcels(trial: Trial, kind: type) -> None:
    loader = trial.loader(Parcels(trial.folder, kind), collate_fn=list)
    trial.epoch(loader, read=lambda batch: [one["number"] for one in batch])


@fault(
    "pickling-hangs",
    "a result that takes for ever to pickle",
    "FIELD 1.2",
    Expectation((Outcome.ERROR,), "LoadingError", r"__reduce__|pickl|odd_samples\.py"),
    options={"sample_timeout_s": 0.8},
)
def pickling_hangs(trial: Trial) -> None:
    parcels(trial, SlowToPickle)


@fault(
    "unpickling-raises",
    "a result that pickles and cannot be read back",
    "FIELD 1.2",
    Expectation((Outcome.ERROR,), "Exception", "no number"),
)
def unpickling_raises(trial: Trial) -> None:
    parcels(trial, BreaksWhenRead)


def deep() -> Any:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


@odd("deeply-nested-sample", "a list in a list in a list, a hundred thousand deep", "FIELD 1.2", cause="Recursion|recursion|nested|list")
def deeply_nested(_: Path) -> Any:
    return deep()


class TooLong(Numbers):
    """Says that it has two samples more than it has."""

    def __len__(self) -> int:
        return SAMPLES + 2

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(list(range(SAMPLES))[index])


@fault(
    "length-too-long",
    "`__len__` promises two samples that are not there",
    "F7",
    Expectation((Outcome.ERROR,), "IndexError", rf"(sample|index)\D{{0,40}}{SAMPLES}\b"),
)
def length_too_long(trial: Trial) -> None:
    trial.epoch(trial.loader(TooLong(trial.folder)), range(SAMPLES + 2))


@fault("empty-data-set", "a data set without samples", "F7")
def empty(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(0)), ())


class ReturnsView(Numbers):
    """Hands out rows of its own storage."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rows = torch.stack([torch.tensor([index, index * index + 7]) for index in range(SAMPLES)])

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


@fault("changed-in-place", "the loop changes each batch in place, over two epochs", "F8")
def changed_in_place(trial: Trial) -> None:
    loader = trial.loader(ReturnsView(trial.folder))
    for _ in range(2):
        trial.plan(range(SAMPLES))
        for batch in loader:
            trial.got(batch)
            batch.zero_()


@fault(
    "own-storage-changed-in-place",
    "without workers and without batching the loop changes the data set itself",
    "F8, issue 3 silent traps",
    Expectation((Outcome.FINISHED, Outcome.WRONG_DATA), said="in.place|own storage|same memory"),
)
def own_storage(trial: Trial) -> None:
    dataset = ReturnsView(trial.folder)
    loader = trial.loader(dataset, batch_size=None, num_workers=0)
    trial.plan(range(SAMPLES))
    for one in loader:
        trial.got(one.unsqueeze(0))
        one.zero_()
    trial.report(loader)
    if dataset.rows.any():
        print("own storage untouched")
    else:
        trial.wrong("the data set is all zeros now")


@fault(
    "several-bad-samples",
    "three samples of one batch raise",
    "B1",
    Expectation(said=r"sample 4\b.*sample 5\b.*sample 6\b"),
    options={"on_bad_sample": "skip"},
)
def several_bad(trial: Trial) -> None:
    plan = [index for index in range(SAMPLES) if index not in (BATCH, BATCH + 1, BATCH + 2)]
    trial.epoch(trial.loader(SeveralBad(trial.folder)), plan)


class SeveralBad(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index in (BATCH, BATCH + 1, BATCH + 2):
            raise ValueError("the picture is torn")
        return super().__getitem__(index)


class AllBad(Numbers):
    def __getitem__(self, index: int) -> Any:
        raise ValueError("the picture is torn")


@fault(
    "every-sample-raises",
    "all samples are bad, more than max_bad_samples allows",
    "issue 3 Bad samples",
    Expectation((Outcome.ERROR,), "TooManyBadSamples", "torn"),
    options={"on_bad_sample": "skip", "max_bad_samples": 5},
)
def every_sample_raises(trial: Trial) -> None:
    trial.epoch(trial.loader(AllBad(trial.folder)))
