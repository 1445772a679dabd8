"""Ranks whose streams are of different lengths: told to each other through a real store, one thread for each rank; and for real."""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore
from torch.utils.data import IterableDataset

from antifreeze import DataLoader
from antifreeze.delivery import stream_ranks as module
from antifreeze.delivery.stream_ranks import StreamRanks
from antifreeze.errors import UnevenRanks
from antifreeze.options import UnevenChoice


@pytest.fixture(autouse=True)
def all_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late they begin: where there are more ranks than one, each of them iterates."""
    monkeypatch.setattr(module, "FIRST_PATIENCE_S", 100.0)
    monkeypatch.setattr(module, "PATIENCE_S", 100.0)


class Rank:
    """One of the ranks of a program, with a stream of so many batches."""

    def __init__(self, store: Any, choice: UnevenChoice, rank: int, world_size: int) -> None:
        self.said: list[str] = []
        self.watch = StreamRanks(store, choice, f"train.py:{id(store)}#0", rank, world_size, self.said.append)
        self.came: list[list[int]] = []
        self.errors: list[Exception] = []

    def epoch(self, batches: int, ahead: int, together: threading.Barrier | None = None) -> None:
        """`together`: a collective after each batch."""
        stream = list(range(batches))
        self.watch.begin()

        def load() -> list[int]:
            if not stream:
                raise StopIteration
            return [stream.pop(0)]

        while len(self.errors) < 3:
            try:
                self.came.append(self.watch.next(load, lambda: min(ahead, len(stream)), stream.clear))
                if together is not None:
                    together.wait(100)
            except StopIteration:
                return
            except UnevenRanks as error:
                self.errors.append(error)


def run(choice: UnevenChoice, *batches: int, ahead: int = 0, collective: bool = True) -> list[Rank]:
    store = HashStore()
    ranks = [Rank(store, choice, rank, len(batches)) for rank in range(len(batches))]
    together = threading.Barrier(len(batches)) if collective else None
    threads = [threading.Thread(target=rank.epoch, args=(count, ahead, together)) for rank, count in zip(ranks, batches, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    return ranks


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("choice", [UnevenChoice.ERROR, UnevenChoice.TRIM, UnevenChoice.PAD])
def test_nothing_is_done_where_all_have_as_many(choice: UnevenChoice, ahead: int) -> None:
    for rank in run(choice, 5, 5, ahead=ahead):
        assert rank.came == [[batch] for batch in range(5)]
        assert not rank.errors
        assert not rank.said


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("counts", [(3, 5), (5, 3), (4, 3, 7), (0, 2)])
def test_trim_ends_all_with_the_first(counts: tuple[int, ...], ahead: int) -> None:
    for rank in run(UnevenChoice.TRIM, *counts, ahead=ahead):
        assert rank.came == [[batch] for batch in range(min(counts))]
        assert not rank.errors


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("counts", [(3, 5), (5, 3), (4, 3, 7)])
def test_pad_repeats_until_the_last_is_done(counts: tuple[int, ...], ahead: int) -> None:
    ranks = run(UnevenChoice.PAD, *counts, ahead=ahead)
    for rank, count in zip(ranks, counts, strict=True):
        assert rank.came == [[batch] for batch in range(count)] + [[0]] * (max(counts) - count)


def test_what_is_repeated_is_a_copy() -> None:
    came = run(UnevenChoice.PAD, 1, 3)[0].came
    came[0].append(7)
    assert came[1:] == [[0], [0]]


@pytest.mark.parametrize("ahead", [0, 3])
def test_an_error_comes_on_every_rank_before_the_batch_that_others_lack_and_then_it_goes_on(ahead: int) -> None:
    short, long = run(UnevenChoice.ERROR, 3, 5, ahead=ahead, collective=False)
    assert [len(rank.errors) for rank in (short, long)] == [1, 1]
    assert "a rank has 3 batches and rank 1 has more" in str(long.errors[0])
    assert (short.came, long.came) == ([[0], [1], [2]], [[0], [1], [2], [3], [4]])


def test_without_gradients_nobody_waits_and_nothing_is_asked() -> None:
    rank = Rank(HashStore(), UnevenChoice.ERROR, 0, 2)
    with torch.no_grad():
        rank.epoch(3, 0)
    assert rank.came == [[0], [1], [2]]


def test_who_iterates_alone_is_patient_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PATIENCE_S", 0.05)
    rank = Rank(HashStore(), UnevenChoice.TRIM, 0, 2)
    rank.epoch(3, 0)
    monkeypatch.setattr(module, "FIRST_PATIENCE_S", 1000.0)
    rank.epoch(3, 0)
    assert rank.came == [[0], [1], [2]] * 2


def test_who_began_and_says_no_more_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    store = HashStore()
    rank, other = Rank(store, UnevenChoice.PAD, 0, 2), Rank(store, UnevenChoice.PAD, 1, 2)
    other.watch.begin()
    rank.epoch(3, 0)
    assert rank.came == [[0], [1], [2]]
    assert "says nothing of its batch 0" in rank.said[0]


def test_a_store_that_does_not_answer_is_said_and_left_alone() -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise ConnectionError("the server is gone")

    rank = Rank(Broken(), UnevenChoice.TRIM, 0, 2)
    rank.epoch(3, 0)
    assert rank.came == [[0], [1], [2]]
    assert rank.said == ["ranks could not compare their numbers of batches: ConnectionError: the server is gone"]


class OfRank(IterableDataset[torch.Tensor]):
    """Rank 1 has two batches more."""

    def __init__(self, rank: int) -> None:
        self.samples = 12 + 8 * rank

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(torch.tensor, range(self.samples))


def _add_up(rank: int, store: str, workers: int, choice: str, told: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    sums = []
    warnings.simplefilter("ignore")  # that ranks differ is said
    for batch in DataLoader(OfRank(rank), batch_size=4, num_workers=workers, uneven_ranks=choice):
        total = batch.sum()
        dist.all_reduce(total)
        sums.append(int(total))
    told.put((rank, sums))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize(("workers", "choice", "batches"), [(0, "trim", 3), (1, "trim", 3), (1, "pad", 5)])
def test_a_collective_in_the_loop_finds_everybody(tmp_path: Any, workers: int, choice: str, batches: int) -> None:
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    ranks = [context.Process(target=_add_up, args=(rank, str(tmp_path / "store"), workers, choice, told)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(150)
    assert [process.exitcode for process in ranks] == [0, 0]
    sums = dict(told.get() for _ in ranks)
    told.close()
    assert sums[0] == sums[1]
    assert len(sums[0]) == batches
