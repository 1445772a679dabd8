"""The sampler is sick. It runs in the loop's own process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DistributedSampler, Sampler

from antifreeze.selftest.fault import BATCH, SAMPLES, Expectation, Outcome, fault
from antifreeze.selftest.trial import Numbers, Trial, row


class Listed(Sampler[Any]):
    def __init__(self, keys: list[Any]) -> None:
        self.keys = keys

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


class InList(Numbers):
    def __getitem__(self, index: int) -> Any:
        return row(list(range(SAMPLES))[index])


@fault(
    "index-out-of-range",
    "the sampler asks for a sample that is not there",
    "F7",
    Expectation((Outcome.ERROR,), "IndexError", r"(sample|index)\D{0,40}999\b"),
)
def out_of_range(trial: Trial) -> None:
    keys = [*range(12), 999, *range(13, SAMPLES)]
    trial.epoch(trial.loader(InList(trial.folder), sampler=Listed(keys)), keys)


class RaisesMidway(Listed):
    def __iter__(self) -> Iterator[Any]:
        yield from self.keys
        raise OSError("the index file is torn")


@fault("sampler-raises", "the sampler raises midway", "F7", Expectation((Outcome.ERROR,), "OSError", "index file is torn"))
def sampler_raises(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(), sampler=RaisesMidway(list(range(8)))))


class Endless(Listed):
    def __iter__(self) -> Iterator[Any]:
        return itertools.cycle(self.keys)


@fault("endless-sampler", "an endless sampler, and a break", "F7")
def endless(trial: Trial) -> None:
    plan = list(range(SAMPLES)) * 2
    trial.epoch(trial.loader(trial.numbers(), sampler=Endless(list(range(SAMPLES)))), plan, batches=len(plan) // BATCH)


class ByName(Numbers):
    def __getitem__(self, key: Any) -> Any:
        return row(int(key.removeprefix("picture-")))


@fault("keys-are-strings", "the sampler yields names instead of numbers", "P2")
def string_keys(trial: Trial) -> None:
    trial.epoch(trial.loader(ByName(trial.folder), sampler=Listed([f"picture-{index}" for index in range(SAMPLES)])))


class BadName(ByName):
    def __getitem__(self, key: Any) -> Any:
        if key == "picture-7":
            raise ValueError("torn")
        return super().__getitem__(key)


@fault("bad-sample-with-a-name", "a sample with a string for a key raises", "B1", Expectation((Outcome.ERROR,), "ValueError", "picture-7"))
def bad_name(trial: Trial) -> None:
    trial.epoch(trial.loader(BadName(trial.folder), sampler=Listed([f"picture-{index}" for index in range(SAMPLES)])))


@fault("repeated-indices", "a sampler with replacement: each sample as often as asked", "P2")
def repeated(trial: Trial) -> None:
    keys = [3, 3, 3, 3, 5, 3, 5, 0, 0, 1]
    trial.epoch(trial.loader(trial.numbers(), sampler=Listed(keys)), keys)


@fault("sampler-length-is-wrong", "the sampler says three and yields 24", "F7")
def wrong_length(trial: Trial) -> None:
    class Short(Listed):
        def __len__(self) -> int:
            return 3

    trial.epoch(trial.loader(trial.numbers(), sampler=Short(list(range(SAMPLES)))))


@fault("batch-sampler-of-odd-sizes", "a batch sampler with batches of 1, 7, 2 and 14", "P4")
def odd_batches(trial: Trial) -> None:
    cuts = [range(1), range(1, 8), range(8, 10), range(10, SAMPLES)]
    trial.epoch(trial.loader(trial.numbers(), batch_sampler=Listed([list(cut) for cut in cuts])))


@fault(
    "empty-batch",
    "a batch sampler yields an empty batch",
    "F7",
    Expectation((Outcome.ERROR, Outcome.FINISHED), cause="empty|index"),
)
def empty_batch(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(), batch_sampler=Listed([[0, 1], [], [2, 3]])), range(4))


@fault(
    "epoch-never-set",
    "a DistributedSampler that is never given set_epoch: every epoch has the same order",
    "P2, issue 3 silent traps",
    Expectation(said="set_epoch"),
)
def epoch_never_set(trial: Trial) -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(trial.numbers(), num_replicas=1, rank=0, seed=5)
    loader = trial.loader(trial.numbers(), sampler=sampler)
    orders: list[list[int]] = []

    def read(batch: Any) -> list[int]:
        orders[-1].extend(trial.samples_in(batch))
        return orders[-1][-len(batch) :]

    for _ in range(2):
        orders.append([])
        trial.epoch(loader, read=read)
    if trial.ours and orders[0] == orders[1]:
        trial.wrong("both epochs came in the same order")
