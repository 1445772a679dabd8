"""Samples of different lengths through real loaders: the same batches whoever loads them, exactly once whatever dies, and resumed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

import antifreeze
from antifreeze import (
    AntifreezeWarning,
    BadSample,
    BatchesByLength,
    DataLoader,
    Join,
    OptionError,
    Pad,
    StreamByLength,
    choices,
    lengths_of,
)
from antifreeze.delivery import next_epoch

LENGTHS = np.random.default_rng(3).integers(1, 60, 300)
LENGTHS[217] = LONGEST = 70


class Sentences(Dataset[dict[str, Any]]):
    """Sample i is i, LENGTHS[i] times; where it is told to, the worker that first meets `deadly` dies there."""

    def __init__(self, mark: Path | None = None, deadly: int = 123) -> None:
        self.mark = mark
        self.deadly = deadly

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.mark is not None and index == self.deadly and not self.mark.exists() and get_worker_info() is not None:
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"ids": np.full(LENGTHS[index], index), "index": index}


class Stream(IterableDataset[dict[str, Any]]):
    def __init__(self, mark: Path | None = None) -> None:
        self.sentences = Sentences(mark)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        for index in range(info.id if info else 0, len(LENGTHS), info.num_workers if info else 1):
            yield self.sentences[index]


def by_tokens(**options: Any) -> BatchesByLength:
    return BatchesByLength(LENGTHS, max_tokens=240, shuffle=True, seed=1, **options)


def looked_at(batches: Any) -> list[Any]:
    return [(batch["ids"].tolist(), batch["index"].tolist()) for batch in batches]


def all_said(error: BaseException | None) -> str:
    """Its text, and its notes: those of Python 3.10 are the cause at the end of its chain."""
    return "" if error is None else "\n".join([str(error), *getattr(error, "__notes__", []), all_said(error.__cause__)])


def test_the_same_batches_whoever_loads_them_and_torchs_too() -> None:
    pad = Pad({"ids": -1})
    loaders = [TorchDataLoader(Sentences(), batch_sampler=by_tokens(), collate_fn=pad, num_workers=2)]
    more: list[dict[str, Any]] = [
        {},
        {"num_workers": 1},
        {"num_workers": 2},
        {"num_workers": 2, "workers": "thread"},
        {"num_workers": "auto"},
    ]
    loaders += [DataLoader(Sentences(), batch_sampler=by_tokens(), collate_fn=pad, **options) for options in more]
    came = [[looked_at(loader) for _ in range(3)] for loader in loaders]
    assert all(epochs == came[0] for epochs in came[1:])
    assert came[0][0] != came[0][1] != came[0][2]
    for ids, indices in came[0][0]:
        assert all(row == [index] * LENGTHS[index] + [-1] * (len(row) - LENGTHS[index]) for row, index in zip(ids, indices, strict=True))
    for loader in loaders[1:]:
        assert len(loader) == len(came[0][0])
        loader.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 7])
def test_resumed_in_the_middle_of_a_later_epoch(workers: int, taken: int) -> None:
    with DataLoader(Sentences(), batch_sampler=by_tokens(), collate_fn=Join(), num_workers=workers) as loader:
        list(loader)
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        state = loader.state_dict()
        rest = looked_at(iterator)
        following = looked_at(loader)
    with DataLoader(Sentences(), batch_sampler=by_tokens(), collate_fn=Join(), num_workers=2 - workers) as again:
        again.load_state_dict(state)
        assert looked_at(again) == rest and looked_at(again) == following


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_at_the_very_end_of_an_epoch_the_next_one_follows(workers: int) -> None:
    options: dict[str, Any] = {"collate_fn": Pad(), "num_workers": workers}
    with DataLoader(Sentences(), batch_sampler=by_tokens(), **options) as loader:
        list(loader)
        list(loader)
        state = loader.state_dict()
        following = looked_at(loader)
    for epoch in (None, 7):
        with DataLoader(Sentences(), batch_sampler=by_tokens(), **options) as again:
            again.load_state_dict(state)
            if epoch is not None:
                again.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
            assert (looked_at(again) == following) == (epoch is None) and again.batch_sampler.epoch == (epoch or 2)  # type: ignore[union-attr]


def test_warm_epochs_know_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    # a batch of torch's own loader, left in shared memory by a test before, is a reason to load nothing ahead
    monkeypatch.setattr(next_epoch, "shares_memory", lambda *_: "")
    with DataLoader(Sentences(), batch_sampler=by_tokens(), collate_fn=Pad(), num_workers=2, persistent_workers=True) as loader:
        came = [looked_at(loader) for _ in range(4)]
        report = loader.report()
    assert report.loaded_ahead and not report.loaded_ahead_in_vain, report.loaded_ahead_no_more
    assert came == [looked_at(DataLoader(Sentences(), batch_sampler=sampler, collate_fn=Pad())) for sampler in _epochs(4)]


def _epochs(count: int) -> Iterator[BatchesByLength]:
    for epoch in range(count):
        sampler = by_tokens()
        sampler.set_epoch(epoch)
        yield sampler


def test_a_worker_that_dies_loses_nothing(tmp_path: Path) -> None:
    with DataLoader(Sentences(tmp_path / "died"), batch_sampler=by_tokens(), collate_fn=Pad(), num_workers=2) as loader:
        came = looked_at(loader)
        assert loader.report().restarts == 1
    assert came == looked_at(DataLoader(Sentences(), batch_sampler=by_tokens(), collate_fn=Pad()))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_is_too_long_is_the_one_that_is_named_and_left_out(workers: int) -> None:
    longest = int(LENGTHS.argmax())
    options: dict[str, Any] = {"batch_size": 10, "num_workers": workers, "collate_fn": Pad({"ids": 0}, length=LONGEST - 1)}
    with DataLoader(Sentences(), **options) as loader, pytest.raises(BadSample, match="field 'ids' is 70 long") as caught:
        list(loader)
    assert f"sample {longest}" in all_said(caught.value)
    with DataLoader(Sentences(), on_bad_sample="skip", **options) as loader:
        came = [index for batch in loader for index in batch["index"].tolist()]
        assert sorted(came) == [index for index in range(300) if index != longest]
        assert [bad.index for bad in loader.report().bad_samples] == [str(longest)]


@pytest.mark.parametrize("workers", [0, 2])
def test_lengths_of_another_data_set_are_told_once(workers: int) -> None:
    part = Subset(Sentences(), range(100))
    with DataLoader(part, batch_sampler=BatchesByLength(LENGTHS[:90], 10), collate_fn=Pad(), num_workers=workers) as loader:
        with pytest.warns(AntifreezeWarning, match=r"the lengths of 90 samples, but the data set has 100.*lengths\[subset.indices\]"):
            assert len(list(loader)) == 9
        list(loader)


class Rotten(Sentences):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index % 9 == 4:
            raise ValueError("rotten")
        return {**super().__getitem__(index), "label": None if index % 9 == 5 else 1}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_bad_samples_are_those_that_are_bad_and_what_replaces_them_keeps_to_max_tokens(workers: int, policy: str) -> None:
    sampler = by_tokens()
    options: dict[str, Any] = {"collate_fn": Pad({"ids": 0}), "num_workers": workers, "on_bad_sample": policy}
    with DataLoader(Rotten(), batch_sampler=sampler, **options) as loader:
        batches = list(loader)
        bad = {int(record.index) for record in loader.report().bad_samples}
    came = {index for batch in batches for index in batch["index"].tolist()}
    assert max(batch["ids"].numel() for batch in batches) <= 240 and len(batches) == len(sampler)
    assert bad == {index for index in range(300) if index % 9 in (4, 5)} and came == set(range(300)) - bad


@pytest.mark.parametrize("workers", [0, 2])
def test_what_cannot_be_asked_for_is_no_samples_fault(workers: int) -> None:
    with DataLoader(Sentences(), 10, num_workers=workers, collate_fn=Pad({"id": 0})) as loader, pytest.raises(OptionError) as caught:
        list(loader)
    told = all_said(caught.value)
    assert "names 'id'; arrays of the samples are 'ids'" in told and "but the batch's first sample" not in told


@pytest.mark.parametrize("dies", [False, True])
def test_streams_in_workers(tmp_path: Path, dies: bool) -> None:
    stream = StreamByLength(Stream(tmp_path / "died" if dies else None), max_tokens=300, length="ids", window=50)
    with DataLoader(stream, batch_size=None, collate_fn=Pad({"ids": 0}, lengths="n"), num_workers=2) as loader:
        batches = list(loader)
        assert bool(loader.report().restarts) == dies
    assert sorted(index for batch in batches for index in batch["index"].tolist()) == list(range(300))
    for batch in batches:
        assert batch["ids"].numel() <= 300 and batch["n"].tolist() == LENGTHS[batch["index"].numpy()].tolist()


class RottenStream(Stream):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        for sample in super().__iter__():
            yield {**sample, "label": None if sample["index"] % 50 == 9 else 1}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_of_a_stream_takes_no_batch_with_it(workers: int) -> None:
    options: dict[str, Any] = {"batch_size": None, "collate_fn": Pad({"ids": 0}), "num_workers": workers}
    with DataLoader(StreamByLength(RottenStream(), 20, window=100), on_bad_sample="skip", **options) as loader:
        came = [index for batch in loader for index in batch["index"].tolist()]
        told = [record.message for record in loader.report().bad_samples]
    assert sorted(came) == [index for index in range(300) if index % 50 != 9]
    assert len(told) == 6 and all("field 'label' is NoneType" in text for text in told)
    with (
        DataLoader(StreamByLength(RottenStream(), 20, window=100), **options) as loader,
        pytest.raises(BadSample, match="'label' is NoneType"),
    ):
        list(loader)


def test_a_stream_is_resumed() -> None:
    def loader() -> DataLoader[Any]:
        stream = StreamByLength(Stream(), 8, window=50)
        return DataLoader(stream, batch_size=None, collate_fn=Pad(), num_workers=2, generator=torch.Generator().manual_seed(4))

    with loader() as first, loader() as second:
        iterator = iter(first)
        for _ in range(9):
            next(iterator)
        state, rest = first.state_dict(), looked_at(iterator)
        second.load_state_dict(state)
        assert looked_at(second) == rest


class Odd(Dataset[Any]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise ValueError("sample 3 is broken")
        return torch.zeros(index)


@pytest.mark.parametrize("workers", [0, 2, "auto"])
def test_lengths_of_a_data_set(workers: Any) -> None:
    assert lengths_of(Sentences(), num_workers=workers).tolist() == LENGTHS.tolist()
    assert lengths_of(Sentences(), "ids", num_workers=workers).tolist() == LENGTHS.tolist()
    assert lengths_of(Sentences(), lambda sample: sample["index"], num_workers=workers).tolist() == list(range(300))
    with pytest.raises(ValueError, match="sample 3 is broken"):
        lengths_of(Odd(), num_workers=workers)


class Mixed(Dataset[Any]):
    """With a sample whose length cannot be told, and parts that nobody can collate."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"ids": [0] * (index % 7) if index != 11 else None, "other": None, "picture": object()}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_length_that_cannot_be_told_is_told_by_its_sample(workers: int) -> None:
    for length in ("ids", lambda sample: len(sample["ids"])):
        with pytest.raises(BadSample) as caught:
            lengths_of(Mixed(), length, num_workers=workers)
        assert "this was sample 11, row 11" in all_said(caught.value)
    told = lengths_of(Mixed(), lambda sample: 0 if sample["ids"] is None else len(sample["ids"]), num_workers=workers)
    assert told.tolist() == [index % 7 if index != 11 else 0 for index in range(20)]


@pytest.mark.parametrize("option", [{"on_bad_sample": "skip"}, {"shuffle": True}, {"drop_last": True}, {"batch_size": 3}, {"sampler": [1]}])
def test_every_length_is_at_its_place(option: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(option))} cannot be chosen: every sample is measured once"):
        lengths_of(Odd(), num_workers=0, **option)


def test_what_antifreeze_run_chose_leaves_no_length_out(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text('{"index": "1"}\n')
    before = choices.current()
    choices.choose(choices.Choices({"on_bad_sample": "skip", "quarantine": str(tmp_path / "bad")}))
    try:
        assert lengths_of([[0], [0, 0], [0]], num_workers=0).tolist() == [1, 2, 1]
        with pytest.raises(ValueError, match="sample 3 is broken"):
            lengths_of(Odd(), num_workers=0)
    finally:
        choices.choose(before)


def test_lengths_that_cannot_be_had() -> None:
    assert lengths_of([]).tolist() == []
    with pytest.raises(OptionError, match="StreamByLength"):
        lengths_of(Stream())
    with pytest.raises(OptionError, match="no array 'id'"):
        lengths_of(Sentences(), "id")


def rank_of_two(rank: int, store: str, told: Any) -> None:
    init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        sampler = by_tokens()
        told.put((sampler.rank, sampler.num_replicas, len(sampler), [list(sampler), list(sampler)]))
    finally:
        destroy_process_group()


def test_ranks_of_a_process_group_find_their_share_by_themselves(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    ranks = [context.Process(target=rank_of_two, args=(rank, str(tmp_path / "store"), told)) for rank in range(2)]
    for process in ranks:
        process.start()
    heard = sorted(told.get(timeout=100) for _ in ranks)
    for process in ranks:
        process.join(100)
    assert [(rank, world) for rank, world, _, _ in heard] == [(0, 2), (1, 2)] and heard[0][2] == heard[1][2] == len(heard[0][3][0])
    for epoch in range(2):
        assert {index for _, _, _, epochs in heard for batch in epochs[epoch] for index in batch} == set(range(300))


def test_every_name_is_public() -> None:
    assert all(hasattr(antifreeze, name) for name in ("Pad", "Join", "BatchesByLength", "StreamByLength", "lengths_of"))
