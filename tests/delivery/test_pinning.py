"""Page-locked slots with two CUDA devices: the driver's calls, against a driver of our own. (benchmarks/gpu.py asks a real one.)"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from antifreeze.delivery import handing_over, pinning
from antifreeze.delivery.handing_over import HandOver
from antifreeze.delivery.ledger import Ledger
from antifreeze.delivery.pinning import Driver, PageLock
from antifreeze.slots.ring import Ring

NOT_READY, OUT_OF_MEMORY, CAPTURING, WRONG_CONTEXT = 600, 2, 900, 201
USERS_CONTEXT = 77


class FakeCuda:
    """libcuda as far as it is called, with two devices: work is queued on a device by `issue` and done by `finish`."""

    def __init__(self) -> None:
        self.active = [True, True]
        self.issued = [0, 0]
        self.done = [0, 0]
        self.events: list[tuple[int, int] | int] = []  # context where it was made; (context, behind how much) once it is recorded
        self.stack = [USERS_CONTEXT]
        self.retained = [0, 0]
        self.fails: dict[str, tuple[int, int | None]] = {}  # the error of a call, in one context alone or in each

    def issue(self, device: int) -> None:
        self.issued[device] += 1

    def finish(self, device: int) -> None:
        self.done[device] = self.issued[device]

    def _error(self, call: str, context: int | None = None) -> int:
        error, only_in = self.fails.get(call, (0, None))
        return error if only_in in (None, context) else 0

    def cuDevicePrimaryCtxGetState(self, device: int, flags: Any, active: Any) -> int:
        active._obj.value = self.active[device]
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        self.retained[device] += 1
        context._obj.value = 100 + device
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.stack.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        context._obj.value = self.stack.pop()
        return 0

    def cuEventCreate(self, event: Any, flags: int) -> int:
        if error := self._error("cuEventCreate", self.stack[-1]):
            return error
        self.events.append(self.stack[-1])
        event._obj.value = len(self.events)
        return 0

    def cuCtxRecordEvent(self, context: Any, event: Any) -> int:
        if error := self._error("cuCtxRecordEvent", context.value):
            return error
        was = self.events[event.value - 1]
        if (was if isinstance(was, int) else was[0]) != context.value:
            return WRONG_CONTEXT
        self.events[event.value - 1] = (context.value, self.issued[context.value - 100])
        return 0

    def cuEventQuery(self, event: Any) -> int:
        recorded = self.events[event.value - 1]
        assert isinstance(recorded, tuple)
        context, behind = recorded
        return self._error("cuEventQuery", context) or (0 if self.done[context - 100] >= behind else NOT_READY)

    def cuEventSynchronize(self, event: Any) -> int:
        recorded = self.events[event.value - 1]
        assert isinstance(recorded, tuple)
        self.finish(recorded[0] - 100)
        return 0


class FakeRuntime:
    """The runtime, as torch gives it: what is locked, by its address."""

    def __init__(self, most: int = 99) -> None:
        self.locked: dict[int, int] = {}
        self.most = most

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert flags == 1, "for every device"
        if len(self.locked) >= self.most:
            return OUT_OF_MEMORY
        self.locked[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime()
    monkeypatch.setattr(pinning, "_runtime", lambda: fake)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return fake


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


def ring_of(cuda: FakeCuda) -> Ring:
    ring = Ring()
    ring.keeper = PageLock(Driver(cuda))
    return ring


def lent(ring: Ring) -> tuple[int, Any]:
    slot = ring.take()
    return slot, ring.lend(slot, 4096)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slot_comes_home_when_both_devices_are_done_with_it(cuda: FakeCuda, runtime: FakeRuntime, slow: int) -> None:
    ring = ring_of(cuda)
    slot, tensors = lent(ring)
    cuda.issue(0)
    cuda.issue(1)
    del tensors
    assert ring.take() != slot
    cuda.finish(1 - slow)
    assert ring.take() != slot
    cuda.issue(slow)  # later work is nobody's concern, but it is behind the copy, and so is its end
    cuda.finish(slow)
    assert ring.take() == slot
    ring.close()


def test_work_that_is_issued_after_a_slot_came_home_does_not_keep_it(cuda: FakeCuda, runtime: FakeRuntime) -> None:
    ring = ring_of(cuda)
    slot, tensors = lent(ring)
    del tensors
    assert not ring.crowded  # it is looked at
    cuda.issue(0)
    assert ring.take() == slot
    ring.close()


def test_a_device_that_comes_into_use_later_is_waited_for_too(cuda: FakeCuda, runtime: FakeRuntime) -> None:
    cuda.active[1] = False
    ring = ring_of(cuda)
    slot, tensors = lent(ring)
    del tensors
    assert ring.take() == slot
    assert cuda.retained == [1, 0], "a device that nobody uses is left alone"
    tensors = ring.lend(slot, 4096)
    cuda.active[1] = True
    cuda.issue(1)
    del tensors
    assert ring.take() != slot
    cuda.finish(1)
    assert ring.take() == slot
    assert cuda.retained == [1, 1], "once each"
    ring.close()


def test_events_are_used_again_in_their_own_context(cuda: FakeCuda, runtime: FakeRuntime) -> None:
    driver = Driver(cuda)
    for _ in range(5):
        first, second = driver.record(), driver.record()
        assert driver.is_done(first) and driver.is_done(second)
        cuda.active.reverse()
    assert len(cuda.events) == 4
    assert cuda.stack == [USERS_CONTEXT]


def test_an_event_that_is_not_reached_is_not_used_again(cuda: FakeCuda, runtime: FakeRuntime) -> None:
    driver = Driver(cuda)
    cuda.issue(1)
    first = driver.record()
    assert not driver.is_done(first)
    assert not {event.value for _, event in first} & {event.value for _, event in driver.record()}


@pytest.mark.parametrize("context", [100, 101])
def test_the_users_context_is_current_after_an_error(cuda: FakeCuda, runtime: FakeRuntime, context: int) -> None:
    driver = Driver(cuda)
    cuda.fails["cuEventCreate"] = OUT_OF_MEMORY, context
    with pytest.raises(RuntimeError, match=r"refused to mark the streams \(error 2\)"):
        driver.record()
    assert cuda.stack == [USERS_CONTEXT]


def test_an_error_of_one_device_costs_no_events(cuda: FakeCuda, runtime: FakeRuntime) -> None:
    driver = Driver(cuda)
    cuda.fails["cuCtxRecordEvent"] = CAPTURING, 101
    for _ in range(3):
        with pytest.raises(RuntimeError, match="error 900"):
            driver.record()
    assert len(cuda.events) == 2
    cuda.fails.clear()
    assert driver.is_done(driver.record())
    assert len(cuda.events) == 2


def test_a_slot_that_cannot_be_marked_is_not_lost_and_not_used(cuda: FakeCuda, runtime: FakeRuntime) -> None:
    ring = ring_of(cuda)
    slot, tensors = lent(ring)
    cuda.issue(1)
    del tensors
    cuda.fails["cuCtxRecordEvent"] = CAPTURING, 101
    with pytest.raises(RuntimeError):
        ring.take()
    cuda.fails.clear()
    assert ring.take() != slot
    cuda.finish(1)
    assert ring.take() == slot
    ring.close()


def test_a_device_that_cannot_be_asked_is_not_done(cuda: FakeCuda, runtime: FakeRuntime) -> None:
    driver = Driver(cuda)
    mark = driver.record()
    cuda.fails["cuEventQuery"] = CAPTURING, 101
    assert not driver.is_done(mark)
    cuda.fails.clear()
    assert driver.is_done(mark)


def test_the_end_waits_for_both_devices_and_unlocks_everything(cuda: FakeCuda, runtime: FakeRuntime) -> None:
    ring = ring_of(cuda)
    _, tensors = lent(ring)
    cuda.issue(0)
    cuda.issue(1)
    assert list(runtime.locked.values()) == [len(tensors)]
    ring.close()
    assert cuda.done == cuda.issued == [1, 1]
    assert not runtime.locked


def test_the_end_unlocks_everything_though_a_device_fails(cuda: FakeCuda, runtime: FakeRuntime) -> None:
    lock = PageLock(Driver(cuda))
    lock.lock(0, (ctypes.c_char * 64)())
    cuda.fails["cuCtxRecordEvent"] = 700, 101
    with pytest.raises(RuntimeError, match="error 700"):
        lock.close()
    assert not runtime.locked


def test_where_locking_is_refused_nothing_is_locked_from_then_on_and_no_error_is_left_for_the_user(
    cuda: FakeCuda, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[bool] = []
    monkeypatch.setattr(pinning, "_forget_last_error", lambda: forgotten.append(True))
    runtime.most = 1
    lock = PageLock(Driver(cuda))
    for slot in range(3):
        lock.lock(slot, (ctypes.c_char * 64)())
    assert lock.refused == "64 bytes cannot be page-locked (CUDA error 2)"
    assert forgotten == [True]
    assert [lock.mark(slot) is None for slot in range(3)] == [False, True, True]
    lock.close()


@pytest.mark.parametrize("pins", [True, False])
def test_copies_into_pinned_memory_are_counted_where_slots_are_not_locked(
    cuda: FakeCuda, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch, pins: bool
) -> None:
    monkeypatch.setattr(handing_over, "pin_batch", lambda data, device: data)
    book, traps = Ledger(), SimpleNamespace(say=lambda *_: None)
    hands: Any = {"collates": True, "pins": pins, "pin_device": None, "feeds_from_pinned": not pins}
    hand_over = HandOver(book, traps, None, None, None, **hands)  # type: ignore[arg-type]
    lock = PageLock(Driver(cuda))
    hand_over._pinned(torch.zeros(1), lock)
    assert book.costs.copies.pinned == 0
    hand_over._pinned(torch.zeros(1), None)
    lock.refused = "there is no more"
    hand_over._pinned(torch.zeros(1), lock)
    assert book.costs.copies.pinned == 2
