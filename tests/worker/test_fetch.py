"""From a task to what lies in its slot."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from antifreeze.slots.arena import Arena
from antifreeze.slots.parcel import unpack
from antifreeze.worker import seeding
from antifreeze.worker.fetch import MapFetcher
from antifreeze.worker.hands import seed_for_sample
from antifreeze.worker.journal import ROW_WORDS, JournalRow, Word
from antifreeze.worker.making import SampleMaker
from antifreeze.worker.seeding import SampleSeeds
from antifreeze.worker.slot_writer import SlotWriter
from antifreeze.worker.task import Bounce, FetchConfig, FetchError, Packed, Rows, Task
from antifreeze.worker.twister_python import PythonGenerator


class Made:
    """A data set by a function."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Bench:
    """A worker's fetching without the worker."""

    def __init__(self, make: Callable[[int], Any], *, forgive: bool = False, collate: Any = default_collate) -> None:
        self.arena = Arena.create()
        config = FetchConfig(collate, auto_collation=True, drop_last=False, forgive=forgive, worker=0)
        self.journal = journal = JournalRow(memoryview(bytearray(8 * ROW_WORDS)).cast("q"))
        maker = SampleMaker(config, SlotWriter(self.arena, lambda: (None, "a test")), journal)
        self.fetcher = MapFetcher(Made(make), config, maker, SampleSeeds(1, 0), journal)
        self.tasks = 0

    def load(self, indices: list[int], *, first_row: int = 0, batch_rows: int | None = None) -> Any:
        self.tasks += 1
        rows = len(indices) if batch_rows is None else batch_rows
        self.journal.begin(self.tasks, self.tasks, 1, first_row, array("q", indices).tobytes())
        return self.fetcher.load(Task(self.tasks, self.tasks, 0, rows, first_row, 100 * self.tasks, indices, rows == len(indices)))

    def batch(self, indices: list[int]) -> Any:
        outcome = self.load(indices)
        if isinstance(outcome, Packed):
            return unpack(bytearray(self.arena.map(0, outcome.size_bytes)[:]))
        assert isinstance(outcome, Rows)
        columns = outcome.layout.columns(self.arena.map(0, outcome.layout.offsets(len(indices))[-1]), len(indices))
        return outcome.layout.assemble([column.clone() for column in columns])


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*arguments: Any, **options: Any) -> Bench:
        made.append(Bench(*arguments, **options))
        return made[-1]

    yield make
    while made:
        made.pop().arena.close()


def test_rows_or_a_parcel_the_batch_is_torchs(bench: Any) -> None:
    with_rows: list[Callable[[int], Any]] = [lambda index: (torch.full((3,), index), index), lambda index: torch.full((5000,), index)]
    for make in (*with_rows, lambda index: {"text": str(index), "x": index}):
        got, expected = bench(make).batch([4, 7, 9]), default_collate([make(index) for index in (4, 7, 9)])
        assert repr(got) == repr(expected)


def test_the_keys_of_a_batch_are_in_the_order_of_its_own_first_sample(bench: Any) -> None:
    """As with torch; not in the order of whatever sample came first of all."""
    fetching = bench(lambda index: {"a": index, "b": -index} if index < 10 else {"b": -index, "a": index})
    assert list(fetching.batch([1, 2])) == ["a", "b"]
    assert list(fetching.batch([11, 12])) == ["b", "a"]


def test_a_part_that_has_no_rows_is_asked_for_whole(bench: Any) -> None:
    assert isinstance(bench(str).load([1, 2], first_row=2, batch_rows=4), Bounce)
    assert isinstance(bench(str).load([1, 2]), Packed)


def test_samples_that_differ_are_left_to_torch_and_named(bench: Any) -> None:
    fetching = bench(lambda index: torch.zeros(2 + (index == 5)))
    assert isinstance(fetching.load([1, 5], first_row=0, batch_rows=4), Bounce)
    with pytest.raises(FetchError) as refused:
        fetching.load([1, 5])
    assert refused.value.failure.type_name == "RuntimeError"
    assert (refused.value.failure.index, refused.value.failure.row) == ("5", 1)


def test_an_empty_batch_is_torchs_own_error(bench: Any) -> None:
    with pytest.raises(IndexError) as expected:
        default_collate([])
    with pytest.raises(FetchError) as refused:
        bench(int).load([])
    assert refused.value.failure.message == str(expected.value)


def test_one_bad_sample_is_noted_and_the_others_are_written(bench: Any) -> None:
    fetching = bench(lambda index: 1 // index, forgive=True)
    outcome = fetching.load([1, 0, 1])
    assert isinstance(outcome, Rows)
    assert list(outcome.failures) == [1]
    assert outcome.failures[1].type_name == "ZeroDivisionError"
    with pytest.raises(FetchError):
        bench(lambda index: 1 // index).load([1, 0, 1])


@pytest.mark.parametrize("forgive", [True, False])
def test_whether_a_sample_is_bad_does_not_depend_on_when_its_generator_was_first_used(bench: Any, forgive: bool) -> None:
    """Long after the warm-up one sample draws a number and does not like what it gets; fetched again with its own seed, it does."""
    seed_for_sample(PythonGenerator(), SampleSeeds(1, 0).seed_of(200))
    own = random.random()

    def make(index: int) -> int:
        if index == 99 and random.random() != own:
            raise ValueError("not my numbers")
        return index

    fetching = bench(make, forgive=forgive)
    fetching.load(list(range(seeding.WARM_UP)))
    outcome = fetching.load([99])
    assert isinstance(outcome, Rows)
    assert outcome.failures == {}


def test_a_stop_iteration_does_not_end_the_epoch(bench: Any) -> None:
    def make(index: int) -> int:
        raise StopIteration

    with pytest.raises(FetchError) as refused:
        bench(make).load([3])
    assert refused.value.failure.type_name == "LoadingError"
    assert "__getitem__ raised StopIteration" in refused.value.failure.message


def test_a_quick_task_that_failed_points_nowhere(bench: Any) -> None:
    """Its samples may be asked for once more, each noted: who looked at the old place would name another one."""
    pointed: list[bool] = []

    def make(index: int) -> int:
        pointed.append(bool(fetching.journal.words[Word.PLACE_AT]))
        return index if index < 50 else index // 0

    fetching = bench(make)
    for first in range(0, 40, 4):
        fetching.load(list(range(first, first + 4)))
    fetching.fetcher._is_quick = True
    fetching.load([41, 42])
    assert pointed[-2:] == [True, True] and not fetching.journal.words[Word.PLACE_AT]
    with pytest.raises(FetchError):
        fetching.load([43, 50, 44])
    assert pointed[-1] and not fetching.journal.words[Word.PLACE_AT]
