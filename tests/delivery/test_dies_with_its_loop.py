"""What a loop holds dies with it, without the garbage collector: an error, and the end of an epoch, have the loop's frames with them.

On a device that is more than memory: a CUDA tensor that dies in a forked child, where a collection may come first, ends that process.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
import weakref
from collections.abc import Callable, Container, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import antifreeze
from antifreeze.delivery.device_queue import _Raised
from antifreeze.supervisor.tasks import Phase
from waiting import wait_until


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


class Many(Rows):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class Awaited(Dataset[Any]):
    def __init__(self, bad: Container[int] = ()) -> None:
        self.rows = Rows(bad)

    async def __getitem__(self, index: int) -> torch.Tensor:
        await asyncio.sleep(0)
        return self.rows[index]

    def __len__(self) -> int:
        return 24


class ManyAwaited(Awaited):
    async def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        await asyncio.sleep(0)
        return [self.rows[index] for index in indices]


class Ends(Rows):
    """Ctrl-C, in the middle of a sample."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.bad:
            signal.raise_signal(signal.SIGINT)
        return super().__getitem__(index)


class EndsAwaited(Awaited):
    def __init__(self, bad: Container[int] = ()) -> None:
        self.rows = Ends(bad)


class Gap(Rows):
    def __getitem__(self, index: int) -> Any:
        return None if index in self.bad else super().__getitem__(index)


class OfTheLoop:
    """A batch, say."""


def to_the_end(loader: Any) -> weakref.ref[Any]:
    held = OfTheLoop()
    for _ in loader:
        time.sleep(0.005)
    return weakref.ref(held)


def to_an_error(loader: Any) -> weakref.ref[Any]:
    held = OfTheLoop()
    with pytest.raises((LookupError, KeyboardInterrupt, TypeError)):
        for _ in loader:
            pass
    return weakref.ref(held)


def is_loading(batches: Any) -> bool:
    batches._next_is_ready()  # hears what workers have done
    return any(batch.phase is Phase.LOADING for batch in batches.pool.state.batches.values())


def to_the_batch_before(loader: Any) -> weakref.ref[Any]:
    """Behind which the error, or the end, was drawn ahead."""
    held, batches = OfTheLoop(), iter(loader)
    while not any(isinstance(sent.batch, _Raised) for sent in batches._queue._ahead):
        next(batches)
        wait_until(lambda: not is_loading(batches))
    return weakref.ref(held)


AUTO: dict[str, Any] = {"num_workers": "auto"}
INLINE: dict[str, Any] = {"num_workers": 0}
ONE: dict[str, Any] = {"num_workers": 1}
TWO: dict[str, Any] = {"num_workers": 2}
STAY: dict[str, Any] = {**TWO, "persistent_workers": True}
SKIP: dict[str, Any] = {"on_bad_sample": "skip"}
SINGLE: dict[str, Any] = {"num_workers": 0, "batch_size": None}

LOOPS = [
    *((to_the_end, Rows(), each) for each in (INLINE, TWO, STAY, AUTO)),
    *((to_an_error, Rows([9]), each) for each in (INLINE, TWO, STAY, AUTO)),
    *((to_the_end, Rows([9]), {**each, **SKIP}) for each in (INLINE, TWO)),
    *((to_the_end, Stream([9]), {**each, **SKIP}) for each in (INLINE, ONE)),
    *((to_an_error, Stream([9]), each) for each in (INLINE, ONE)),
    *((to_an_error, kind([9]), each) for kind in (Many, Awaited, ManyAwaited, Gap) for each in (INLINE, AUTO)),
    *((to_an_error, kind([9]), INLINE) for kind in (Ends, EndsAwaited)),
    *((to_the_end, kind([9]), {**INLINE, **SKIP}) for kind in (Many, Awaited, ManyAwaited, Gap)),
    *((to_an_error, kind([9]), SINGLE) for kind in (Rows, Awaited)),
    *((to_the_end, kind([9]), {**SINGLE, **SKIP}) for kind in (Rows, Awaited)),
]
AHEAD = [(to_the_batch_before, Rows([9]), STAY), (to_the_batch_before, Rows(range(8, 12)), {**TWO, **SKIP})]
ON_DEVICE = [(loop, dataset, {**given, "device": "meta"}) for loop, dataset, given in LOOPS + AHEAD]


@pytest.mark.parametrize(("loop", "dataset", "given"), LOOPS + ON_DEVICE)
@pytest.mark.filterwarnings("ignore:Caught LookupError")
def test_what_a_loop_has_held_dies_with_it(loop: Callable[[Any], weakref.ref[Any]], dataset: Any, given: dict[str, Any]) -> None:
    loader = antifreeze.DataLoader(dataset, **{"batch_size": 4, **given})
    gc.disable()
    try:
        assert loop(loader)() is None
    finally:
        gc.enable()
        loader.close()


@pytest.mark.parametrize("kind", [Ends, EndsAwaited])
def test_an_interrupt_within_a_sample_comes_once(kind: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """asyncio, left alone with it, adds that a task's exception was never retrieved."""
    loader = antifreeze.DataLoader(kind([9]), batch_size=4)
    assert to_an_error(loader)() is None
    gc.collect()
    assert capfd.readouterr().err == ""


def test_an_error_keeps_the_variables_of_the_users_code() -> None:
    """For a debugger; of ours it has names and lines."""
    with pytest.raises(LookupError) as raised:
        next(iter(antifreeze.DataLoader(Rows([0]), batch_size=4)))
    frames = [entry.frame for entry in raised.traceback]
    assert frames[-1].f_locals["index"] == 0
    assert len(frames) > 3
