"""What a loop holds dies with it, without the garbage collector: an error, and the end of an epoch, have the loop's frames with them.

On a device that is more than memory: a CUDA tensor that dies in a forked child, where a collection may come first, ends that process.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Container, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import antifreeze
from antifreeze.delivery.device_queue import _Raised


class Rows(Dataset[torch.Tensor]):
    def __init__(self, bad: Container[int] = ()) -> None:
        self.bad = bad

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.bad:
            raise LookupError(f"no {index}")
        return torch.full((3,), float(index))

    def __len__(self) -> int:
        return 24


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, bad: Container[int] = ()) -> None:
        self.bad = bad

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(Rows(self.bad).__getitem__, range(24))


class OfTheLoop:
    """A batch, say."""


def to_the_end(loader: Any) -> weakref.ref[Any]:
    held = OfTheLoop()
    for _ in loader:
        time.sleep(0.005)
    return weakref.ref(held)


def to_an_error(loader: Any) -> weakref.ref[Any]:
    held = OfTheLoop()
    with pytest.raises(LookupError):
        for _ in loader:
            pass
    return weakref.ref(held)


def to_the_batch_before(loader: Any) -> weakref.ref[Any]:
    """Behind which the error, or the end, was drawn ahead."""
    held, batches = OfTheLoop(), iter(loader)
    while not any(isinstance(sent.batch, _Raised) for sent in batches._queue._ahead):
        next(batches)
        time.sleep(0.02)
    return weakref.ref(held)


AUTO: dict[str, Any] = {"num_workers": "auto"}
INLINE: dict[str, Any] = {"num_workers": 0}
ONE: dict[str, Any] = {"num_workers": 1}
TWO: dict[str, Any] = {"num_workers": 2}
STAY: dict[str, Any] = {**TWO, "persistent_workers": True}
SKIP: dict[str, Any] = {"on_bad_sample": "skip"}

LOOPS = [
    *((to_the_end, Rows(), each) for each in (INLINE, TWO, STAY, AUTO)),
    *((to_an_error, Rows([9]), each) for each in (INLINE, TWO, STAY, AUTO)),
    *((to_the_end, Rows([9]), {**each, **SKIP}) for each in (INLINE, TWO)),
    *((to_the_end, Stream([9]), {**each, **SKIP}) for each in (INLINE, ONE)),
    *((to_an_error, Stream([9]), each) for each in (INLINE, ONE)),
]
AHEAD = [(to_the_batch_before, Rows([9]), STAY), (to_the_batch_before, Rows(range(8, 12)), {**TWO, **SKIP})]
ON_DEVICE = [(loop, dataset, {**given, "device": "meta"}) for loop, dataset, given in LOOPS + AHEAD]


@pytest.mark.parametrize(("loop", "dataset", "given"), LOOPS + ON_DEVICE)
@pytest.mark.filterwarnings("ignore:Caught LookupError")
def test_what_a_loop_has_held_dies_with_it(loop: Callable[[Any], weakref.ref[Any]], dataset: Any, given: dict[str, Any]) -> None:
    loader = antifreeze.DataLoader(dataset, batch_size=4, **given)
    gc.disable()
    try:
        assert loop(loader)() is None
    finally:
        gc.enable()
        loader.close()
