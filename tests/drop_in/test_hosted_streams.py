"""Streams that go on in a process which is not the one of their own number: the same samples as ever, worker_init_fn and all."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from .contract import Ours, build, drain, ours_only, seed_all

pytestmark = [
    ours_only,
    pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:antifreeze. two workers began with the same samples"),
]


class Window(IterableDataset[int]):
    """torch's own example: `divide` tells each worker its part."""

    def __init__(self) -> None:
        self.start, self.end = 0, 40

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


class StatefulWindow(Window):
    at = 0

    def __iter__(self) -> Iterator[int]:
        while self.start + self.at < self.end:
            self.at += 1
            yield self.start + self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class SeededByInfo(Window):
    """What it gives depends on all that get_worker_info() says."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is not None:
            assert info.dataset is self
        draw = random.Random(0 if info is None else info.seed)
        return iter([draw.randrange(1000) for _ in range(self.start, self.end)])


def pipe() -> Any:
    return IterableWrapper(range(40)).shuffle().sharding_filter()


def divide(worker_id: int) -> None:
    info = get_worker_info()
    window, step = info.dataset, -(-(info.dataset.end - info.dataset.start) // info.num_workers)
    window.start += worker_id * step
    window.end = min(window.start + step, window.end)


CASES: list[tuple[str, Callable[[], Any], dict[str, Any]]] = [
    ("window", Window, {"worker_init_fn": divide}),
    ("window with a state", StatefulWindow, {"worker_init_fn": divide}),
    ("seeded by get_worker_info()", SeededByInfo, {"worker_init_fn": divide}),
    ("DataPipe", pipe, {"shuffle": True}),
]
cases = pytest.mark.parametrize(("make", "more"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])


def loader_of(make: Callable[[], Any], num_workers: int, **more: Any) -> Any:
    return build(Ours, make(), batch_size=3, num_workers=num_workers, **more)


def whole_and_state(make: Callable[[], Any], num_workers: int, taken: int, **more: Any) -> tuple[list[Any], Any]:
    seed_all(5)
    loader = loader_of(make, num_workers, **more)
    batches = iter(loader)
    got = [next(batches).tolist() for _ in range(taken)]
    state = loader.state_dict()
    return got + [batch.tolist() for batch in batches], state


@cases
@pytest.mark.parametrize(("saved", "resumed"), [(0, 0), (2, 2), (0, 2), (1, 2), (2, 3), (3, 2), (3, 0)])
def test_the_same_samples(make: Callable[[], Any], more: dict[str, Any], saved: int, resumed: int) -> None:
    whole, state = whole_and_state(make, saved, 4, **more)
    seed_all(999)
    loader = loader_of(make, resumed, **more)
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in drain(loader)] == whole[4:]


@pytest.mark.parametrize("make", [Window, StatefulWindow])
def test_in_threads(make: Callable[[], Any]) -> None:
    whole, state = whole_and_state(make, 3, 4, worker_init_fn=divide)
    loader = loader_of(make, 2, worker_init_fn=divide, workers="thread")
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in drain(loader)] == whole[4:]


def test_workers_that_stay_have_their_own_streams_again_in_the_next_epoch() -> None:
    whole, state = whole_and_state(Window, 3, 4, worker_init_fn=divide)
    loader = loader_of(Window, 2, worker_init_fn=divide, persistent_workers=True)
    own = [batch.tolist() for batch in drain(loader)]
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in drain(loader)] == whole[4:]
    assert [batch.tolist() for batch in drain(loader)] == own


def test_the_users_own_data_set_is_as_it_was() -> None:
    whole, state = whole_and_state(Window, 2, 4, worker_init_fn=divide)
    loader = loader_of(Window, 0, worker_init_fn=divide)
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in drain(loader)] == whole[4:]
    assert (loader.dataset.start, loader.dataset.end) == (0, 40)
    assert get_worker_info() is None
    assert [batch.tolist() for batch in drain(loader)] == [list(range(first, min(first + 3, 40))) for first in range(0, 40, 3)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_init_function_that_fails_is_named(num_workers: int) -> None:
    def fail(worker_id: int) -> None:
        if get_worker_info().num_workers == 3:
            raise KeyError("no such part")

    state = whole_and_state(Window, 3, 0, worker_init_fn=divide)[1]
    loader = loader_of(Window, num_workers, worker_init_fn=fail)
    loader.load_state_dict(state)
    with pytest.raises(KeyError, match="no such part") as raised:
        drain(loader)
    said = str(raised.value)
    del raised
    assert not num_workers or "worker_init_fn" in said
