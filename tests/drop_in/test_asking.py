"""The sampler is asked as often as torch asks it, and `__getitems__` with what the batch sampler gave."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset

from .contract import Case, Ours, Torchs, assert_same, build, drain, ours_only, seed_all
from .datasets import Squares
from .resuming import resume, uninterrupted


class Eager:
    """Draws its whole order in __iter__, as samplers by length do."""

    def __init__(self, draw: Callable[[list[Any]], None]) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[start, start + 1] for start in range(0, 12, 2)]
        self.draw(batches)
        return iter(batches)

    def __len__(self) -> int:
        return 6


class Counting(Eager):
    """Another order in every epoch, which it counts by itself."""

    def __init__(self) -> None:
        self.epoch, self.asked = 0, 0
        super().__init__(lambda batches: random.Random(self.epoch).shuffle(batches))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        answer = super().__iter__()
        self.epoch, self.asked = self.epoch + 1, self.asked + 1
        return answer


class Mutating(BatchSampler):
    """One list, filled anew for every batch."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[list[int]]:
        batch = [0, 0]
        for number in range(6):
            batch[:] = [number, 2 * number]
            yield batch


def by_torch(batches: list[Any]) -> None:
    batches[:] = [batches[place] for place in torch.randperm(len(batches))]


EAGER: dict[str, Callable[[], Any]] = {
    "random": lambda: Eager(random.shuffle),
    "numpy": lambda: Eager(np.random.shuffle),
    "torch": lambda: Eager(by_torch),
    "counts its epochs": Counting,
}


@pytest.mark.parametrize("more", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("name", EAGER)
def test_an_order_drawn_at_once_is_torchs(name: str, more: dict[str, Any]) -> None:
    def epochs(cls: Any) -> Any:
        seed_all(5)
        sampler = EAGER[name]()
        loader = build(cls, Squares(12), batch_sampler=sampler, **more)
        return [drain(loader) for _ in range(3)], getattr(sampler, "asked", None)

    assert_same(epochs(Ours), epochs(Torchs))


@ours_only
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", EAGER)
def test_an_order_drawn_at_once_is_resumed(name: str, num_workers: int) -> None:
    case = Case(name, lambda: Squares(12), lambda _: {"batch_sampler": EAGER[name]()})
    whole = uninterrupted(case, num_workers)
    for key, saved in whole.saved.items():
        if name in ("random", "numpy") and key in ("before", "end"):
            continue  # between two epochs the process's own generators are the user's affair; the helper restores torch's
        first, _ = resume(case, saved, num_workers)[1]
        assert_same(first, whole.second if key == "end" else whole.first[saved.taken :])


@ours_only
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_the_sampler_fills_anew_is_what_it_was_when_it_was_given(num_workers: int) -> None:
    loader = Ours(Squares(12), batch_sampler=Mutating(), num_workers=num_workers)
    assert [batch[1].tolist() for batch in loader] == [[number, 2 * number] for number in range(6)]


class TellsWhatItGot(Dataset[Any]):
    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("it is asked for whole batches")

    def __getitems__(self, batch: Any) -> list[Any]:
        return [type(batch).__name__, repr(batch)]


GIVEN: list[Any] = [
    [0, 1],
    (0, 1),
    np.array([0, 1], np.int32),
    np.array([]),
    torch.tensor([[0], [1]]),
    range(4),
    slice(3),
    {2, 1},
    {"a": 1},
    "ab",
    7,
    None,
]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_getitems_is_given_what_the_batch_sampler_gave(num_workers: int) -> None:
    given = {"batch_sampler": GIVEN, "collate_fn": list}
    torchs = drain(Torchs(TellsWhatItGot(), **given))  # without workers: tensors that it sends to some leave a server behind
    assert_same(drain(build(Ours, TellsWhatItGot(), num_workers=num_workers, **given)), torchs)
