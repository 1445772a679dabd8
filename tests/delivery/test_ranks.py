"""Ranks that tell each other how many batches they have, through a real store; whole ranks run as faults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore, destroy_process_group, init_process_group

from antifreeze import DataLoader
from antifreeze.delivery.ranks import Ranks, made_at, watch_ranks
from antifreeze.errors import UnevenRanks
from antifreeze.options import UnevenChoice


class Pair:
    """Two ranks of one program."""

    def __init__(self, choice: UnevenChoice, kinds: tuple[str, str] = ("Pictures", "Pictures")) -> None:
        self.said: list[str] = []
        self.store = HashStore()
        self.ranks = [Ranks(self.store, choice, "train.py:88#0", kind, rank, 2, self.said.append) for rank, kind in enumerate(kinds)]
        for rank in self.ranks:
            rank._patience_s = 0.0

    def begin(self, *batches: int | None) -> None:
        for rank, count in zip(self.ranks, batches, strict=True):
            rank.begin(count)

    def run(self, rank: int, batches: int) -> int:
        """How many of its batches this rank delivers."""
        for done in range(batches):
            if self.ranks[rank].step():
                return done
        return batches


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_raises_before_its_first_batch_and_then_goes_on(rank: int) -> None:
    pair = Pair(UnevenChoice.ERROR)
    pair.begin(4, 3)
    with pytest.raises(UnevenRanks, match=r"rank 1 has 3 batches and rank 0 has 4 \(loader made at train.py:88\)"):
        pair.ranks[rank].step()
    assert not pair.ranks[rank].step()


@pytest.mark.parametrize("counts", [(4, 4), (4, None), (0, 0)])
def test_nothing_is_said_where_nothing_is_known_to_differ(counts: tuple[Any, Any]) -> None:
    pair = Pair(UnevenChoice.ERROR)
    pair.begin(*counts)
    assert pair.run(0, 4) == 4
    assert not pair.said


def test_loaders_of_different_kinds_are_not_compared() -> None:
    pair = Pair(UnevenChoice.ERROR, ("Pictures", "Sounds"))
    pair.begin(4, 3)
    assert pair.run(0, 4) == 4


def test_without_gradients_it_is_said_only() -> None:
    pair = Pair(UnevenChoice.ERROR)
    pair.begin(4, 3)
    with torch.no_grad():
        assert pair.run(0, 4) == 4
    assert "rank 1 has 3 batches" in pair.said[0]


def test_trim_ends_all_ranks_with_the_first() -> None:
    pair = Pair(UnevenChoice.TRIM)
    pair.begin(40, 3)
    assert (pair.run(0, 40), pair.run(1, 3)) == (3, 3)
    pair.begin(40, 40)
    assert (pair.run(0, 40), pair.run(1, 40)) == (40, 40)


def test_pad_says_how_many_are_missing_once() -> None:
    pair = Pair(UnevenChoice.PAD)
    pair.begin(5, 3)
    assert (pair.run(0, 5), pair.run(1, 3)) == (5, 3)
    assert [rank.take_missing() for rank in pair.ranks] == [0, 2]
    assert [rank.take_missing() for rank in pair.ranks] == [0, 0]


def test_nothing_can_be_repeated_where_there_is_nothing() -> None:
    pair = Pair(UnevenChoice.PAD)
    pair.begin(5, 0)
    with pytest.raises(UnevenRanks, match="nothing to repeat on rank 1"):
        pair.ranks[0].step()


@pytest.mark.parametrize("late_at", [1, 2, 3, 8])
def test_a_rank_that_speaks_late_is_heard_before_the_last_batch(late_at: int) -> None:
    pair = Pair(UnevenChoice.ERROR)
    pair.ranks[0].begin(9)
    for _ in range(late_at):
        assert not pair.ranks[0].step()
    pair.ranks[1].begin(8)
    with pytest.raises(UnevenRanks):
        pair.run(0, 9 - late_at)


def test_who_iterates_alone_is_patient_once() -> None:
    pair = Pair(UnevenChoice.ERROR)
    alone = pair.ranks[0]
    alone._patience_s = 0.05
    for _ in range(2):
        alone.begin(3)
        assert pair.run(0, 3) == 3
        assert alone._patience_s == 0.0


def test_a_store_that_does_not_answer_is_said_and_left_alone() -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise ConnectionError("the server is gone")

    said: list[str] = []
    ranks = Ranks(Broken(), UnevenChoice.ERROR, "train.py:88#0", "Pictures", 0, 2, said.append)
    ranks.begin(3)
    assert not any(ranks.step() for _ in range(3))
    assert said == ["ranks could not compare their numbers of batches: ConnectionError: the server is gone"]


def test_old_words_do_not_stay_in_the_store() -> None:
    pair = Pair(UnevenChoice.ERROR)
    for _ in range(50):
        pair.begin(3, 3)
        pair.run(0, 3)
    assert pair.store.num_keys() <= 6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_leaves_its_parents_store_alone(tmp_path: Path) -> None:
    """Its connection would be the parent's: two processes that write to one socket."""
    init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        loader = DataLoader([1, 2])  # type: ignore[arg-type]
        assert watch_ranks(loader, UnevenChoice.ERROR, 0, 2, print) is not None
        child = os.fork()
        if child == 0:
            os._exit(0 if watch_ranks(loader, UnevenChoice.ERROR, 0, 2, print) is None else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        destroy_process_group()
    assert watch_ranks(loader, UnevenChoice.ERROR, 0, 2, print) is None


def test_loaders_are_known_by_the_line_that_made_them() -> None:
    places = [DataLoader([1, 2])._made_at for _ in range(2)]  # type: ignore[arg-type]
    assert [place.partition(":")[0] for place in places] == ["test_ranks.py"] * 2
    assert places[0] != places[1]
    assert made_at().startswith("test_ranks.py:")
