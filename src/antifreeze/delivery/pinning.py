"""Slots as page-locked memory: the device copies from the very pages the workers wrote.

    lend ──▶ lock the slot's pages, once ──▶ the user's copies run ──▶ last tensor dies ──▶ mark ──▶ done? ──▶ free

1. A copy may still run when the last tensor over a slot is gone. So a slot that comes home gets a mark: an event of the driver's
   that stands behind everything queued so far on *all* streams of every device in use. The slot is free when the mark is reached.
2. Locking costs milliseconds, and locked memory is scarce: a slot is locked once and unlocked before its memory goes. Where the
   system refuses, nothing is locked from then on, `refused` says why, and batches are copied to pinned memory as torch does it.
3. A forked child never talks to the device: it forgets what its parent locked.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

Mark = list[tuple[int, ctypes.c_void_p]]
"""An event in each context that was in use."""

_PORTABLE = 1  # pinned for every device, not only the current one
_NO_TIMING = 2
_DONE = 0


class PageLock:
    """What a Ring asks about slots that a device may read from."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._locked: dict[int, tuple[int, int]] = {}
        self.refused: str | None = None

    def lock(self, slot: int, mapped: Any) -> None:
        """Before the slot's tensors are handed out."""
        if slot in self._locked or self.refused is not None:
            return
        address, size = ctypes.addressof(mapped), len(mapped)
        error = int(_runtime().cudaHostRegister(address, size, _PORTABLE))
        if error:
            _forget_last_error()
            self.refused = f"{size:,} bytes cannot be page-locked (CUDA error {error})"
            return
        self._locked[slot] = (address, size)

    def unlock(self, slot: int) -> None:
        """Before the slot's mapping changes or goes; its copies are done."""
        address, _ = self._locked.pop(slot, (0, 0))
        if address:
            _runtime().cudaHostUnregister(address)

    def mark(self, slot: int) -> Any:
        """Something that is done when every copy issued until now is; None where nothing can be under way."""
        return self._driver.record() if slot in self._locked else None

    def is_done(self, mark: Any) -> bool:
        return self._driver.is_done(mark)

    @property
    def locked_bytes(self) -> int:
        return sum(size for _, size in self._locked.values())

    def close(self) -> None:
        """Everything is unlocked, after the last copy. May be called twice."""
        try:
            if self._locked:
                self._driver.wait(self._driver.record())
        finally:
            for slot in list(self._locked):
                self.unlock(slot)

    def forget(self) -> None:
        """In a forked child: the device is the parent's."""
        self._locked.clear()
        self.refused = "this process was forked"


def page_lock() -> PageLock | None:
    """None where there is no CUDA device, or no driver that can mark all streams at once."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return None
    driver = _driver()
    return None if driver is None else PageLock(driver)


class Driver:
    """Events over all streams of a context; torch's own events know one stream only."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._spare: dict[int, list[ctypes.c_void_p]] = {}  # by context: an event is of one context for ever

    def record(self) -> Mark:
        mark: Mark = []
        try:
            for context in self._contexts():
                mark.append((context, self._record_in(context)))
        except RuntimeError:
            self._keep(mark)
            raise
        return mark

    def is_done(self, mark: Mark) -> bool:
        """In every context. (What cannot be asked is not done: also while a graph is captured.)"""
        if any(self._library.cuEventQuery(event) != _DONE for _, event in mark):
            return False
        self._keep(mark)
        return True

    def wait(self, mark: Mark) -> None:
        for _, event in mark:
            self._library.cuEventSynchronize(event)
        self._keep(mark)

    def _keep(self, mark: Mark) -> None:
        for context, event in mark:
            self._spare.setdefault(context, []).append(event)

    def _record_in(self, context: int) -> ctypes.c_void_p:
        spare = self._spare.get(context)
        event = spare.pop() if spare else self._new_event(context)
        error = self._library.cuCtxRecordEvent(ctypes.c_void_p(context), event)
        if error:
            self._keep([(context, event)])
        self._check(error)
        return event

    def _new_event(self, context: int) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._check(self._library.cuCtxPushCurrent_v2(ctypes.c_void_p(context)))
        try:
            self._check(self._library.cuEventCreate(ctypes.byref(event), _NO_TIMING))
        finally:  # else the user's next call would be in a context that he did not choose
            self._check(self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))
        return event

    def _contexts(self) -> list[int]:
        """Of the devices that are in use."""
        found = []
        for device in range(torch.cuda.device_count()):
            flags, active = ctypes.c_uint(), ctypes.c_int()
            self._check(self._library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)))
            if active.value:
                found.append(self._context(device))
        return found

    @cache  # noqa: B019 - one driver per process
    def _context(self, device: int) -> int:
        context = ctypes.c_void_p()
        self._check(self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        return context.value or 0

    def _check(self, error: int) -> None:
        if error:
            raise RuntimeError(f"the CUDA driver refused to mark the streams (error {error})")


@cache
def _driver() -> Driver | None:
    try:
        library = ctypes.CDLL("libcuda.so.1")
        needed = ("cuCtxRecordEvent", "cuEventQuery", "cuEventCreate", "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxRetain")
        for name in needed:
            getattr(library, name)
    except (OSError, AttributeError):
        return None
    return Driver(library)


def _forget_last_error() -> None:
    """The runtime keeps the error of a call for whoever asks next, and torch asks after every kernel: the user's would be blamed."""
    try:
        ctypes.CDLL(None).cudaGetLastError()
    except AttributeError:
        pass  # a torch that has the runtime within itself


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
