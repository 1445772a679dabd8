"""Batches on an accelerator of two devices whose copies run later (later.cpp): what ../test_accelerator.py runs.

The loop of `wrong_batches` does what hurts: it reads each batch on a stream that is busy, lets go of it at once, and looks at what was
read when all is over. A copy from memory that was used again, a batch that was read before it was there, and device memory that was given
to the next batch too early: each shows. The last cases switch one protection off after another, so that they can be seen to be needed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import Dataset

import antifreeze
from antifreeze.delivery import device as device_module
from antifreeze.delivery.device import DeviceFeed, tensors_within
from antifreeze.delivery.side_stream import SideStream, side_stream, with_index
from antifreeze.errors import AntifreezeWarning
from delivery.accelerator.later import registered

LATER = registered(Path(os.environ["LATER_LIBRARY"]))
BATCHES, ROWS, WIDTH = 24, 4, 2048
COPY_US, STEP_US = 2_000, 6_000
"""A batch is two copies: the loop's stream falls behind."""


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Copies take 2 ms, and pinned memory is used again as soon as it is free, whatever copies from it: nobody helps us."""
    LATER.set_delay_us(COPY_US)
    LATER.set_remembers_pinned_copies(False)
    yield
    LATER.set_pins(True)
    LATER.set_has_streams(True)
    torch.accelerator.set_device_index(0)
    for number in range(2):
        torch.accelerator.synchronize(number)


class Numbered(Dataset[Any]):
    """Every value of a sample is its index; with a list beside it there are no rows, and a batch is a parcel."""

    def __init__(self, parcels: bool = False, bad: int | None = None) -> None:
        self.parcels = parcels
        self.bad = bad

    def __len__(self) -> int:
        return BATCHES * ROWS

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise LookupError(f"no {index}")
        x = torch.full((WIDTH,), float(index))
        return (x, torch.tensor(index), {"none": None}) if self.parcels else (x, torch.tensor(index))


def together(samples: list[Any]) -> Any:
    return torch.stack([sample[0] for sample in samples]), torch.stack([sample[1] for sample in samples]), [None, "text"]


def loader_of(parcels: bool = False, bad: int | None = None, **given: Any) -> Any:
    more = {"collate_fn": together} if parcels else {}
    return antifreeze.DataLoader(Numbered(parcels, bad), **{"batch_size": ROWS, "num_workers": 2, "device": "later", **more, **given})


class Reader:
    """What a training loop does, as far as memory goes: reads on the current stream, later."""

    def __init__(self) -> None:
        self.read: list[tuple[torch.Tensor, torch.Tensor]] = []

    def take(self, x: torch.Tensor, indices: torch.Tensor) -> None:
        LATER.keep_busy_us(x.device.index, STEP_US)
        self.read.append((x.clone(), indices.clone()))

    def wrong(self, leaves_out: int | None = None) -> int:
        """How many batches are not what they should be by their place. (A slot that was used again has another batch, whole.)"""
        expected = [number for number in range(BATCHES) if number != leaves_out]
        assert len(self.read) == len(expected)
        found = [(x.cpu(), indices.cpu()) for x, indices in self.read]
        return sum(not is_batch(number, *batch) for number, batch in zip(expected, found, strict=True))


def is_batch(number: int, x: torch.Tensor, indices: torch.Tensor) -> bool:
    rows = torch.arange(ROWS) + number * ROWS
    return torch.equal(indices, rows) and torch.equal(x, rows[:, None].float().expand_as(x))


def wrong_batches(batches: Iterable[Any], on: int) -> int:
    reader = Reader()
    for x, indices, *_ in batches:
        assert x.device == indices.device == torch.device("later", on)
        reader.take(x, indices)
        del x, indices, _
    return reader.wrong()


def wrong_at_once(batches: Iterator[Any]) -> int:
    """Of three batches that are read as soon as they come, while copies take long."""
    LATER.set_delay_us(20 * COPY_US)
    came = [[part.cpu() for part in next(batches)] for _ in range(3)]
    return sum(not is_batch(number, *batch) for number, batch in enumerate(came))


# --- right ---


def test_the_device_is_what_it_says() -> None:
    """Else nothing below shows anything: a copy runs later, from whatever is there then."""
    x = torch.ones(3)
    copied = x.to("later:1", non_blocking=True)
    x.zero_()
    assert copied.cpu().tolist() == [0, 0, 0]
    assert torch.accelerator.device_count() == 2


@pytest.mark.parametrize("parcels", [False, True], ids=["rows", "parcels"])
@pytest.mark.parametrize("workers", [0, 2, "auto"])
@pytest.mark.parametrize("device", [0, 1])
def test_every_batch_is_right(device: int, workers: Any, parcels: bool) -> None:
    with loader_of(parcels, num_workers=workers, device=f"later:{device}") as loader:
        assert wrong_batches(loader, device) == 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("parcels", [False, True], ids=["rows", "parcels"])
def test_where_pinning_is_refused_the_copy_is_from_the_slot_itself_and_a_finding_says_so(parcels: bool, workers: int) -> None:
    LATER.set_pins(False)
    with loader_of(parcels, num_workers=workers, device="later:1") as loader:
        with pytest.warns(AntifreezeWarning, match="not page-locked, which is slower: no page-locked memory is left") as said:
            assert wrong_batches(loader, 1) == 0
        assert [warning.category for warning in said].count(AntifreezeWarning) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is said once per epoch at most
            assert wrong_batches(loader, 1) == 0


def with_a_class(samples: list[Any]) -> Any:
    return (*together(samples)[:2], torch.Tensor)


@pytest.mark.filterwarnings("ignore:.*not page-locked")
def test_what_torch_cannot_pin_is_no_error_where_nobody_asked_for_it() -> None:
    """A class that has a method of that name, say."""
    with loader_of(collate_fn=with_a_class, device="later:1") as loader:
        assert wrong_batches(loader, 1) == 0


def test_with_threads_as_workers() -> None:
    with loader_of(workers="thread", device="later:1") as loader:
        assert wrong_batches(loader, 1) == 0


def test_with_persistent_workers_every_epoch_is_right() -> None:
    with loader_of(persistent_workers=True, device="later:1") as loader:
        next(iter(loader))
        assert [wrong_batches(loader, 1) for _ in range(3)] == [0, 0, 0]


def test_two_devices_at_once() -> None:
    readers = Reader(), Reader()
    with loader_of(device="later:0") as first, loader_of(device="later:1", parcels=True) as second:
        for (x, indices), (y, numbers, _) in zip(first, second, strict=True):
            assert (x.device.index, y.device.index) == (0, 1)
            readers[0].take(x, indices)
            readers[1].take(y, numbers)
            del x, indices, y, numbers
    assert [reader.wrong() for reader in readers] == [0, 0]


@pytest.mark.parametrize("at_first", [0, 1])
def test_a_device_without_an_index_is_the_one_that_was_current_when_the_epoch_began(at_first: int) -> None:
    """Whichever is current between batches; and that one stays current."""
    reader, current = Reader(), at_first
    torch.accelerator.set_device_index(at_first)
    with loader_of(device="later") as loader:
        for number, (x, indices) in enumerate(loader):
            assert x.device == torch.device("later", at_first)
            assert torch.accelerator.current_device_index() == current
            reader.take(x, indices)
            del x, indices
            current = (number + 1) % 2
            torch.accelerator.set_device_index(current)
    assert reader.wrong() == 0


@pytest.mark.parametrize("current", [0, 1])
def test_a_loop_on_a_stream_of_its_own(current: int) -> None:
    """The batch is ready there, its memory is known to be used there, and neither the stream nor the device is another one after next()."""
    torch.accelerator.set_device_index(current)
    stream, reader = torch.Stream("later:1"), Reader()
    with loader_of(device="later:1") as loader, stream:
        for x, indices in loader:
            assert torch.accelerator.current_stream(1) == stream
            assert torch.accelerator.current_device_index() == 1
            reader.take(x, indices)
            del x, indices
        assert reader.wrong() == 0
    assert torch.accelerator.current_device_index() == current


def test_the_next_batch_is_on_its_way_while_the_loop_computes() -> None:
    LATER.set_delay_us(100_000)
    with loader_of() as loader:
        batches, under_way = iter(loader), 0
        for _ in range(4):
            x, _ = next(batches)
            x.cpu()  # this one is there
            time.sleep(0.02)  # and the next one is loaded
            began = time.perf_counter()
            x, _ = next(batches)
            under_way += LATER.copies_under_way() > 0
            assert time.perf_counter() - began < 0.1, "next() waits for no copy"
            x.cpu()
    assert under_way == 4


def test_a_batch_is_there_for_whoever_reads_it_at_once() -> None:
    with loader_of(device="later:1") as loader:
        assert wrong_at_once(iter(loader)) == 0


# --- what moves ---


class Pair(NamedTuple):
    left: Any
    right: Any


class Graph:
    """A batch of the user's own kind; where its tensors are is its own affair."""

    __slots__ = ("edges", "held")

    def __init__(self, x: torch.Tensor, indices: torch.Tensor) -> None:
        self.edges = [{"x": x}]
        self.held = {"indices": indices}

    def to(self, device: torch.device) -> Graph:
        return Graph(self.edges[0]["x"].to(device, non_blocking=True), self.held["indices"].to(device, non_blocking=True))


class Telling(Graph):
    """One that can be told itself where it is used."""

    told: list[Any] = []  # noqa: RUF012 - of all of them

    def to(self, device: torch.device) -> Telling:
        moved = super().to(device)
        return Telling(moved.edges[0]["x"], moved.held["indices"])

    def record_stream(self, stream: Any) -> None:
        Telling.told.append(stream)
        self.edges[0]["x"].record_stream(stream)
        self.held["indices"].record_stream(stream)


def nested(samples: list[Any]) -> Any:
    x, indices, _ = together(samples)
    return {"pair": Pair(x, ["text", 7, None, (indices,)]), "packed": pack_sequence([x[0, :3], x[1, :2]]), "raw": b"bytes"}


@pytest.mark.parametrize("workers", [0, 2])
def test_nested_batches_and_what_is_no_tensor(workers: int) -> None:
    reader = Reader()
    with loader_of(num_workers=workers, device="later:1", collate_fn=nested) as loader:
        for batch in loader:
            assert type(batch["pair"]) is Pair
            assert batch["pair"].right[:3] == ["text", 7, None] and batch["raw"] == b"bytes"
            packed = batch["packed"].data.clone()
            x, (indices,) = batch["pair"].left, batch["pair"].right[3]
            reader.take(x, indices)
            del batch, x
            first = float(indices[0])
            assert sorted(packed.cpu().tolist()) == [first] * 3 + [first + 1] * 2
            del indices
    assert reader.wrong() == 0


def graph(samples: list[Any]) -> Graph:
    return Graph(*together(samples)[:2])


def telling(samples: list[Any]) -> Telling:
    return Telling(*together(samples)[:2])


def wrong_graphs(collate: Any) -> int:
    reader = Reader()
    with loader_of(device="later:1", collate_fn=collate) as loader:
        for batch in loader:
            reader.take(batch.edges[0]["x"], batch.held["indices"])
            del batch
    return reader.wrong()


def test_what_has_a_to_of_its_own_has_tensors_that_the_allocator_is_told_of() -> None:
    assert wrong_graphs(graph) == 0


def test_what_has_a_record_stream_of_its_own_is_asked() -> None:
    Telling.told.clear()
    assert wrong_graphs(telling) == 0
    assert Telling.told == [torch.accelerator.current_stream(1)] * BATCHES


def test_tensors_are_found_within_an_object_but_nothing_beyond_it() -> None:
    x = torch.ones(1)
    held = graph([(x, x), (x, x)])
    held.edges.append({"code": nested, "class": Graph, "again": held})  # type: ignore[dict-item]
    assert [tensor.shape for tensor in tensors_within(held)] == [(2, 1), (2, 1)]


# --- ends, errors, states ---


@pytest.mark.parametrize("way", ["close", "break"])
@pytest.mark.parametrize("pins", [True, False], ids=["pinned", "from slots"])
@pytest.mark.filterwarnings("ignore:.*not page-locked")
def test_an_end_in_the_middle_waits_for_the_copies_under_way(way: str, pins: bool) -> None:
    """Before the memory they read from goes."""
    LATER.set_pins(pins)
    LATER.set_delay_us(50_000)
    loader = loader_of(device="later:1")
    batches = iter(loader)
    for _ in range(3):
        x, _ = next(batches)
    assert LATER.copies_under_way() > 0
    if way == "close":
        loader.close()
    else:
        del batches
        gc.collect()
    assert LATER.copies_under_way() == 0
    loader.close()
    del x


def test_an_epoch_that_was_left_early_does_not_disturb_the_next_one() -> None:
    with loader_of(device="later:1", persistent_workers=True) as loader:
        for x, indices in loader:
            del x, indices
            break
        assert wrong_batches(loader, 1) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_comes_when_its_batch_does(workers: int) -> None:
    reader, came = Reader(), []
    with loader_of(num_workers=workers, bad=2 * ROWS + 1, device="later:1") as loader:
        batches = iter(loader)
        while True:
            try:
                x, indices = next(batches)
            except LookupError:
                came.append("error")
                continue
            except StopIteration:
                break
            came.append("batch")
            reader.take(x, indices)
            del x, indices
    assert came == ["batch"] * 2 + ["error"] + ["batch"] * (BATCHES - 3)
    assert reader.wrong(leaves_out=2) == 0


class Immovable(Graph):
    """The third batch finds no room on the device, after half of it was copied."""

    def to(self, device: torch.device) -> Graph:
        moved = super().to(device)
        if int(self.held["indices"][0]) == 2 * ROWS:
            raise MemoryError("no room on the device")
        return moved


def immovable(samples: list[Any]) -> Graph:
    return Immovable(*together(samples)[:2])


def test_a_batch_that_does_not_get_to_the_device_does_not_take_another_one_with_it() -> None:
    came: list[Any] = []
    with loader_of(device="later:1", collate_fn=immovable) as loader:
        batches = iter(loader)
        while True:
            try:
                came.append(int(next(batches).held["indices"][0]))
            except MemoryError:
                came.append("no room")
            except StopIteration:
                break
            time.sleep(0.005)  # the next one is there, and drawn ahead
    assert came == [0, ROWS, "no room", *range(3 * ROWS, BATCHES * ROWS, ROWS)]


def test_a_batch_that_fails_half_way_is_held_until_that_half_is_copied() -> None:
    feed, x = DeviceFeed(torch.device("later:1")), torch.ones(3)
    with pytest.raises(MemoryError):
        feed.send([x, Immovable(x, torch.tensor([2 * ROWS]))])
    assert LATER.copies_under_way() > 0 and len(feed._pending) == 1
    feed.close()
    assert LATER.copies_under_way() == 0 and not feed._pending


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_speaks_of_what_the_loop_has_got(workers: int) -> None:
    with loader_of(num_workers=workers, device="later:1") as loader:
        batches, reader = iter(loader), Reader()
        for _ in range(5):
            reader.take(*next(batches))
        state = loader.state_dict()
    with loader_of(num_workers=2 - workers, device="later:0") as loader:
        loader.load_state_dict(state)
        for x, indices in loader:
            reader.take(x, indices)
            del x, indices
    assert reader.wrong() == 0


# --- pinned alone, and devices that can less ---


def test_pinned_batches_that_the_loop_copies_on_a_stream_of_its_own() -> None:
    """Over torch's own pinned memory, which remembers what copies from it."""
    LATER.set_remembers_pinned_copies(True)
    side, reader = torch.Stream("later:1"), Reader()
    with loader_of(device=None, pin_memory=True) as loader, side:
        for x, indices in loader:
            assert x.is_pinned() and indices.is_pinned()
            LATER.keep_busy_us(1, STEP_US)
            reader.take(x.to("later:1", non_blocking=True), indices.to("later:1", non_blocking=True))
            del x, indices
        assert reader.wrong() == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_where_a_device_has_no_streams_every_copy_is_waited_for(workers: int) -> None:
    LATER.set_has_streams(False)
    assert side_stream(torch.device("later:1")) is None
    with loader_of(num_workers=workers, device="later:1") as loader:
        assert wrong_batches(loader, 1) == 0


def test_where_a_device_has_no_streams_nothing_is_under_way_when_a_batch_comes() -> None:
    LATER.set_has_streams(False)
    with loader_of(device="later:1") as loader:
        for _ in loader:
            assert LATER.copies_under_way() == 0


def test_an_index_is_resolved_once() -> None:
    torch.accelerator.set_device_index(1)
    assert with_index(torch.device("later")) == torch.device("later:1")
    assert with_index(torch.device("later:0")) == torch.device("later:0")


# --- each protection switched off: the checks above can fail ---


@contextlib.contextmanager
def without_hold() -> Iterator[None]:
    """Nobody holds the host batch until its copy is done."""
    original = DeviceFeed.__init__

    def holds_nothing(self: DeviceFeed, device: torch.device) -> None:
        original(self, device)
        self._pending = deque(maxlen=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceFeed, "__init__", holds_nothing)
        yield


@contextlib.contextmanager
def without_note() -> Iterator[None]:
    """The allocator is not told who uses a batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_module, "note_use", lambda part, stream: None)
        yield


@contextlib.contextmanager
def without_wait() -> Iterator[None]:
    """The loop's stream does not wait for the copy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceFeed, "hand_out", lambda self, sent: sent.batch)
        yield


@pytest.mark.parametrize("pins", [True, False], ids=["pinned", "from slots"])
@pytest.mark.filterwarnings("ignore:.*not page-locked")
def test_without_the_hold_batches_are_wrong(pins: bool) -> None:
    LATER.set_pins(pins)
    LATER.set_delay_us(5 * COPY_US)
    with without_hold(), loader_of(device="later:1") as loader:
        assert wrong_batches(loader, 1) > 0


def test_without_the_note_batches_are_wrong() -> None:
    with without_note(), loader_of(device="later:1") as loader:
        assert wrong_batches(loader, 1) > 0
    with without_note():
        assert wrong_graphs(graph) > 0


def test_without_the_wait_batches_are_wrong() -> None:
    with without_wait(), loader_of(device="later:1") as loader:
        assert wrong_at_once(iter(loader)) > 0


def test_with_the_stream_of_another_device_batches_are_wrong() -> None:
    """What a device without an index led to."""

    def current_of_whatever_is_current(device: torch.device) -> Any:
        return torch.accelerator.current_stream()

    torch.accelerator.set_device_index(1)
    with pytest.MonkeyPatch.context() as patch, loader_of(device="later") as loader:
        batches = iter(loader)
        feed = batches._queue.feed
        patch.setattr(feed, "_side", SideStream(feed._side.stream, feed._side.chosen, current_of_whatever_is_current))
        torch.accelerator.set_device_index(0)
        assert wrong_at_once(batches) > 0
