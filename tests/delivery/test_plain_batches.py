"""Without workers most batches are loaded plainly: nothing seeded, no slot. What deviates must be found out all the same."""

from __future__ import annotations

import gc
import os
import random
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset

from antifreeze import DataLoader
from antifreeze.delivery.local_pool import SLOT_PAYS_BYTES
from antifreeze.worker.fetch import MapFetcher

LATE = 45


class Uses(Dataset[Any]):
    """Draws a random number in some samples only, long after the first ones."""

    def __init__(self, draw: Any, samples: int = 64, many: bool = False) -> None:
        self.draw, self.samples, self.asked = draw, samples, 0
        if many:
            self.__getitems__ = lambda indices: [self[index] for index in indices]

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return index, float(self.draw()) if index >= LATE else 0.0

    def __len__(self) -> int:
        return self.samples


DRAWS = {"random": random.random, "gauss": lambda: random.gauss(0, 1), "numpy": np.random.rand, "torch": lambda: torch.rand(()).item()}


@pytest.mark.parametrize("name", sorted(DRAWS))
@pytest.mark.parametrize("many", [False, True])
def test_a_first_random_number_late_in_the_epoch_is_the_same_with_and_without_workers(name: str, many: bool) -> None:
    def epoch(workers: int) -> list[Any]:
        torch.manual_seed(3)
        return [[part.tolist() for part in batch] for batch in DataLoader(Uses(DRAWS[name], many=many), batch_size=4, num_workers=workers)]

    assert epoch(0) == epoch(2)


@pytest.mark.parametrize("name", sorted(DRAWS))
def test_the_users_own_generators_are_left_alone_by_a_late_use(name: str) -> None:
    def after(samples: int) -> Any:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        for _ in DataLoader(Uses(DRAWS[name], samples), batch_size=4, generator=torch.Generator()):
            pass
        return DRAWS[name]()

    assert after(64) == after(8)


class Draws(Dataset[Any]):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random()

    def __len__(self) -> int:
        return 64


@pytest.mark.parametrize("name", sorted(DRAWS))
def test_a_collate_function_may_draw_late_where_samples_have_drawn_all_along(name: str) -> None:
    def collate(samples: list[Any]) -> Any:
        return samples, DRAWS[name]() if samples[0][0] >= LATE else 0.0

    def epoch(workers: int) -> list[Any]:
        torch.manual_seed(3)
        return list(DataLoader(Draws(), batch_size=4, num_workers=workers, collate_fn=collate))

    assert epoch(0) == epoch(2)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("name", sorted(DRAWS))
def test_the_users_own_generators_are_left_alone_by_a_collate_function_that_draws_late(name: str, raises: bool) -> None:
    def collate(samples: list[Any]) -> Any:
        if samples[0][0] >= LATE:
            DRAWS[name]()
            if raises:
                raise ValueError("late")
        return samples

    def after(samples: int) -> Any:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        loader = DataLoader(Subset(Draws(), range(samples)), batch_size=4, generator=torch.Generator(), collate_fn=collate)
        batches_until_it_raises(iter(loader))
        return DRAWS[name]()

    assert after(LATE + 4) == after(LATE - 4)


def test_what_the_loop_itself_draws_is_no_use_by_the_data_set() -> None:
    data = Uses(lambda: 0.0)
    for _ in DataLoader(data, batch_size=4):
        random.random(), np.random.rand(), torch.rand(1)
    assert data.asked == 64


class Odd(Dataset[Any]):
    def __init__(self, sample: Any, odd: Any) -> None:
        self.sample, self.odd = sample, odd

    def __getitem__(self, index: int) -> Any:
        if index == 30 and isinstance(self.odd, Exception):
            raise self.odd
        return self.odd if index == 30 else self.sample

    def __len__(self) -> int:
        return 40


@pytest.mark.parametrize(
    "sample", [torch.zeros(2), (1, 2.0), {"a": 1}, 3, 2.5, "text", b"bytes", np.zeros(3)], ids=lambda s: type(s).__name__
)
def test_a_late_none_is_named(sample: Any) -> None:
    with pytest.raises(Exception, match=r"30.*None|None.*30"):
        list(DataLoader(Odd(sample, None), batch_size=4))


def batches_until_it_raises(loader: Iterator[Any]) -> tuple[int, Any]:
    done = 0
    try:
        for _ in loader:
            done += 1
    except Exception as error:
        return done, error
    return done, None


def test_a_late_exception_is_the_data_sets_own_and_comes_in_its_turn() -> None:
    error = KeyError("gone")
    done, raised = batches_until_it_raises(iter(DataLoader(Odd(1, error), batch_size=4)))
    assert done == 7 and raised is error and "sample 30" in getattr(raised, "__notes__", [str(raised.__cause__)])[0]


def test_a_late_sample_of_another_shape_is_named() -> None:
    done, raised = batches_until_it_raises(iter(DataLoader(Odd(torch.zeros(2), torch.zeros(3)), batch_size=4)))
    assert done == 7 and "sample 30" in getattr(raised, "__notes__", [str(raised.__cause__)])[0]


def test_the_report_tells_fetching_from_collating() -> None:
    def slowly(samples: Any) -> Any:
        time.sleep(0.002)
        return samples

    loader = DataLoader(list(range(200)), batch_size=2, collate_fn=slowly)
    for _ in loader:
        pass
    costs = loader._ledger.costs
    assert costs.samples == 200
    assert costs.collate_ns > costs.fetch_ns


def test_a_batch_that_is_none_is_a_batch_and_loaded_once() -> None:
    data = Uses(lambda: 0.0)
    assert list(DataLoader(data, batch_size=4, collate_fn=lambda samples: None)) == [None] * 16
    assert data.asked == 64


# --- from epoch to epoch ------------------------------------------------------------------------------------------------------


def test_the_next_epoch_knows_that_batches_are_plain_and_looks_again_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Uses(DRAWS["random"], samples=40), batch_size=4)
    list(loader)
    for _ in loader:
        break  # abandoned: what was learnt is there all the same
    long_way = []
    load = MapFetcher.load
    monkeypatch.setattr(MapFetcher, "load", lambda self, task, check=None: long_way.append(task) or load(self, task, check))
    epochs = [len(long_way) for _ in range(13) if list(loader)]
    assert epochs[:3] == [0, 0, 0] and epochs[-1] == 2  # of 130 batches one in LOOK_AGAIN_EVERY


class Grows(Dataset[Any]):
    def __init__(self) -> None:
        self.size = 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.size,), index)

    def __len__(self) -> int:
        return 40


def test_rows_that_become_large_from_one_epoch_to_another_are_right_and_found_out() -> None:
    dataset = Grows()
    with DataLoader(dataset, batch_size=4) as loader:
        list(loader)
        dataset.size = SLOT_PAYS_BYTES // 32
        came = [batch[:, -1].tolist() for _ in range(7) for batch in loader]
        assert came == [[*range(first, first + 4)] for first in range(0, 40, 4)] * 7
        assert loader.report().delivered_bytes > 0, "some lay in a slot: of others nobody asks for the size"


@pytest.mark.parametrize("name", sorted(DRAWS))
def test_iterators_of_one_loader_that_live_at_once_have_their_own_numbers(name: str) -> None:
    def batches(workers: int) -> list[Any]:
        torch.manual_seed(5)
        loader = DataLoader(Uses(DRAWS[name]), batch_size=4, num_workers=workers)
        list(loader)
        both = [iter(loader), iter(loader)]
        return [[part.tolist() for part in next(each)] for _ in range(16) for each in both]

    assert batches(0) == batches(1)


def test_memory_limits_are_looked_for_only_where_a_slot_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted() -> None:
        raise AssertionError("nobody needs it")

    monkeypatch.setattr("antifreeze.supervisor.cgroup.available_memory_bytes", unwanted)
    assert torch.cat(list(DataLoader(range(20), 4))).tolist() == list(range(20))


def test_the_data_set_goes_with_its_loader() -> None:
    dataset = Uses(DRAWS["torch"])
    loader, gone = DataLoader(dataset, batch_size=4), weakref.ref(dataset)
    list(loader)
    iterator = iter(loader)
    next(iterator)
    del dataset, loader, iterator
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("dataset", [Draws(), range(64), torch.arange(64)], ids=["drawn", "plain", "gathered"])
@pytest.mark.parametrize("nested", [False, True])
def test_other_indices_of_a_subset_count_from_the_next_batch_on(dataset: Any, nested: bool) -> None:
    part: Subset[Any] = Subset(dataset, range(20))
    batches = iter(DataLoader(Subset(part, range(20)) if nested else part, batch_size=4))
    next(batches)
    part.indices = [*range(40, 60)]
    second = next(batches)
    assert (second[0] if isinstance(dataset, Draws) else second).tolist() == [44, 45, 46, 47]
    part.indices = np.arange(20)  # type: ignore[assignment]
    third = next(batches)
    assert (third[0] if isinstance(dataset, Draws) else third).tolist() == [8, 9, 10, 11]


def test_an_iterator_goes_on_in_a_fork_too() -> None:
    batches = iter(DataLoader(range(64), batch_size=2))
    next(batches)
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.write(writes, bytes(batch[0].item() for batch in batches))
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as said:
        assert list(said.read()) == [*range(2, 64, 2)]
    os.waitpid(child, 0)


class Raises(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise ValueError("five")
        return index

    def __len__(self) -> int:
        return 8


class RaisesInStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return map(Raises().__getitem__, range(8))


@pytest.mark.parametrize("dataset", [Raises(), RaisesInStream()], ids=["by index", "stream"])
def test_after_an_error_nothing_is_left_to_the_garbage_collector(dataset: Any) -> None:
    """Where it is switched off, descriptors would run out."""

    def ends_badly() -> weakref.ref[Any]:
        iterator = iter(DataLoader(dataset, batch_size=4))
        try:
            list(iterator)
        except ValueError as error:
            assert "five" in str(error)
            return weakref.ref(iterator)
        raise AssertionError("nothing was raised")

    gc.disable()
    try:
        assert ends_badly()() is None
    finally:
        gc.enable()
