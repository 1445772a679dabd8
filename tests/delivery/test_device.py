"""Batches on a device: what moves, what stays, and how far the loop is. A real GPU is looked at by
benchmarks/gpu.py, a device whose copies run later by test_accelerator.py."""

from __future__ import annotations

import itertools
import signal
import time
from array import array
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Container
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import Dataset

import antifreeze
from antifreeze import OptionError
from antifreeze.delivery.device import moved, note_use, sparse_parts

META = torch.device("meta")  # a device that every torch has: tensors without values


class Pair(NamedTuple):
    left: Any
    right: Any


class Own:
    """A batch of the user's own kind, which knows how to move."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: torch.device) -> Own:
        return Own(self.x.to(device))


def devices(part: Any) -> list[str]:
    if isinstance(part, torch.Tensor):
        return [part.device.type]
    if isinstance(part, dict):
        return devices(list(part.values()))
    return [found for value in part for found in devices(value)] if isinstance(part, (list, tuple)) else []


def test_tensors_move_and_everything_else_stays() -> None:
    batch = {
        "a": [torch.ones(2), ("x", b"y", 5, None)],
        "b": Pair(torch.ones(1), {"c": (torch.ones(3),)}),
        "d": OrderedDict(e=torch.ones(1)),
    }
    on_device = moved(batch, META)
    assert devices(on_device) == ["meta"] * 4
    assert on_device["a"][1] == ("x", b"y", 5, None)
    assert type(on_device["b"]) is Pair
    assert type(on_device["b"].right["c"]) is tuple
    assert type(on_device["d"]) is OrderedDict
    assert devices(batch) == ["cpu"] * 4


def test_what_has_a_to_of_its_own_is_asked() -> None:
    assert moved([Own(torch.ones(2))], META)[0].x.device.type == "meta"


class Rows(Dataset[tuple[torch.Tensor, str]]):
    def __init__(self, bad: Container[int] = ()) -> None:
        self.bad = bad

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        if index in self.bad:
            raise LookupError(f"no {index}")
        return torch.full((3,), float(index)), str(index)

    def __len__(self) -> int:
        return 24


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_arrive_on_the_device(workers: int) -> None:
    with antifreeze.DataLoader(Rows(), batch_size=4, num_workers=workers, device="meta") as loader:
        batches = list(loader)
    assert [names for _, names in batches] == [tuple(map(str, range(first, first + 4))) for first in range(0, 24, 4)]
    assert all(x.device.type == "meta" and x.shape == (4, 3) for x, _ in batches)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seen", [0, 1, 3])
def test_the_state_speaks_of_what_the_loop_has_seen(workers: int, seen: int) -> None:
    """Not of what is on its way to the device already."""
    with antifreeze.DataLoader(Rows(), batch_size=4, num_workers=workers, device="meta") as loader:
        batches = iter(loader)
        for _ in range(seen):
            next(batches)
        state = loader.state_dict()
    with antifreeze.DataLoader(Rows(), batch_size=4, num_workers=2 - workers, device="meta") as loader:
        loader.load_state_dict(state)
        assert [names[0] for _, names in loader] == [str(first) for first in range(4 * seen, 24, 4)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_comes_when_its_batch_does_and_the_next_batch_follows(workers: int) -> None:
    with antifreeze.DataLoader(Rows(bad=[9]), batch_size=4, num_workers=workers, device="meta") as loader:
        batches, came = iter(loader), []
        while True:
            try:
                came.append(next(batches)[1][0])
            except LookupError:
                came.append("error")
            except StopIteration:
                break
    assert came == ["0", "4", "error", "12", "16", "20"]


def with_four_bad(**given: Any) -> Any:
    """Of six batches five come: their samples move up from the end."""
    return antifreeze.DataLoader(Rows(bad=range(8, 12)), batch_size=4, num_workers=2, on_bad_sample="skip", device="meta", **given)


def at_leisure(batches: Any) -> Any:
    """So that the next batch is there, and drawn ahead, whenever the loop asks for one."""
    for batch in batches:
        yield batch
        time.sleep(0.02)


def test_the_last_batch_comes_though_the_end_was_found_behind_it() -> None:
    """The end, too, is drawn ahead: it took the batch before it along."""
    with with_four_bad() as loader:
        assert sorted(int(name) for _, names in at_leisure(loader) for name in names) == [*range(8), *range(12, 24)]


@pytest.mark.parametrize("got", [3, 4, 5])
def test_the_state_knows_nothing_of_an_end_that_the_loop_has_not_seen(got: int) -> None:
    with with_four_bad() as loader:
        came = [names for _, names in itertools.islice(at_leisure(loader), got)]
        state = loader.state_dict()
        assert not state["finished"]
    with with_four_bad() as loader:
        loader.load_state_dict(state)
        came += [names for _, names in loader]
    assert sorted(int(name) for names in came for name in names) == [*range(8), *range(12, 24)]


class Rings(Own):
    """One during whose copy an alarm goes off."""

    def to(self, device: torch.device) -> Own:
        if self.x[0, 0] == 8:
            signal.raise_signal(signal.SIGUSR1)
        return super().to(device)


def as_rings(samples: list[tuple[torch.Tensor, str]]) -> Own:
    return Rings(torch.stack([x for x, _ in samples]))


def in_time(number: int, frame: Any) -> None:
    raise TimeoutError("the alarm")


def test_an_alarm_that_falls_into_what_is_drawn_ahead_is_raised_at_once() -> None:
    """And not by the next next(), which the user's alarm was not set for."""
    before = signal.signal(signal.SIGUSR1, in_time)
    try:
        with antifreeze.DataLoader(Rows(), batch_size=4, num_workers=2, collate_fn=as_rings, device="meta") as loader:
            batches = iter(loader)
            next(batches)
            while not batches._next_is_ready() or batches._flights.ready() < 2:  # type: ignore[attr-defined]
                time.sleep(0.01)
            with pytest.raises(TimeoutError, match="the alarm"):
                next(batches)
                pytest.fail("it was kept for later")
            state = loader.state_dict()
    finally:
        signal.signal(signal.SIGUSR1, before)
    with antifreeze.DataLoader(Rows(), batch_size=4, num_workers=0, device="meta") as loader:
        loader.load_state_dict(state)
        assert [names[0] for _, names in loader] == ["4", "8", "12", "16", "20"]


class Full(Own):
    """One that finds no room on the device."""

    def to(self, device: torch.device) -> Own:
        raise MemoryError("no room")


def own_batch(samples: list[Any]) -> Own:
    x = torch.stack([sample[0] for sample in samples])
    return Full(x) if int(x[0, 0]) == 8 else Own(x)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_does_not_get_to_the_device_takes_no_other_one_along(workers: int) -> None:
    came: list[Any] = []
    with antifreeze.DataLoader(Rows(), batch_size=4, num_workers=workers, collate_fn=own_batch, device="meta") as loader:
        batches = iter(loader)
        while True:
            try:
                came.append(tuple(next(batches).x.shape))
            except MemoryError:
                came.append("no room")
            except StopIteration:
                break
            time.sleep(0.02)
    assert came == [(4, 3)] * 2 + ["no room"] + [(4, 3)] * 3


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_the_memory_of_a_sparse_tensor_is_that_of_its_parts(layout: torch.layout) -> None:
    parts = sparse_parts(torch.eye(3).to_sparse(layout=layout))
    assert all(part.layout is torch.strided for part in parts)
    assert parts[-1].tolist() == [1, 1, 1]


class Noting:
    """Of the user's own kind, with a `record_stream`."""

    def __init__(self) -> None:
        self.streams: list[Any] = []

    def to(self, device: torch.device) -> Noting:
        return self

    def record_stream(self, stream: Any) -> None:
        self.streams.append(stream)


def test_who_uses_a_batch_is_told_to_whatever_can_be_told() -> None:
    batch = {"a": [Noting(), "text", 3], "b": Pair(Noting(), (Noting(), None))}
    note_use(batch, "stream")
    assert [found.streams for found in (batch["a"][0], batch["b"].left, batch["b"].right[0])] == [["stream"]] * 3  # type: ignore[attr-defined]


def test_with_persistent_workers_every_epoch_is_whole() -> None:
    with antifreeze.DataLoader(Rows(), batch_size=4, num_workers=2, persistent_workers=True, device="meta") as loader:
        next(iter(loader))
        assert [len(list(loader)) for _ in range(2)] == [6, 6]


@pytest.mark.parametrize(("device", "says"), [("nowhere", "expected a torch device"), (3.5, "expected a torch device")])
def test_a_device_that_is_none_is_named(device: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        antifreeze.DataLoader(Rows(), device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one here")
def test_a_device_that_is_not_here_is_named() -> None:
    with pytest.raises(OptionError, match="torch sees no CUDA device here"):
        antifreeze.DataLoader(Rows(), device="cuda")


@pytest.mark.skipif(not hasattr(torch, "xpu") or torch.xpu.is_available(), reason="there is one")
def test_another_accelerator_that_is_not_here() -> None:
    with pytest.raises(OptionError, match=r"device='xpu': torch sees no XPU device here"):
        antifreeze.DataLoader(Rows(), device="xpu")


class _Twice(namedtuple("_Twice", ("left", "right"))):
    __slots__ = ()

    def __new__(cls, one: Any) -> _Twice:
        return super().__new__(cls, one, one)


def test_containers_with_ways_of_their_own_stay_what_they_are() -> None:
    twice = moved(_Twice(torch.ones(1)), META)
    assert type(twice) is _Twice and twice.left.is_meta and twice.right.is_meta
    given = defaultdict(list, {"x": torch.ones(1)})
    arrived = moved(given, META)
    assert arrived["x"].is_meta and arrived["y"] == []
    assert not given["x"].is_meta and list(given) == ["x"]
    last = moved(deque([torch.ones(1)] * 2, maxlen=2), META)
    assert last.maxlen == 2 and [tensor.is_meta for tensor in last] == [True, True]
    assert moved(array("d", [1, 2]), META) == array("d", [1, 2])


@pytest.mark.parametrize("kind", [int, Own, torch.Tensor, torch.nn.Linear])
def test_a_class_in_a_batch_stays_what_it_is(kind: Any) -> None:
    assert moved({"kind": kind}, META) == {"kind": kind}
    note_use({"kind": kind}, None)
