"""What only Linux (or only Unix) has, so that every module can be imported anywhere; whether it may be used, `missing` says.

`import antifreeze` works on every system: where something is missing, the DataLoader goes through torch's own iterators.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None  # type: ignore[assignment]

__all__ = [
    "ANCILLARY_CLOEXEC",
    "LAST_SIGNAL",
    "NO_WAIT",
    "PAST_CACHES_BYTES",
    "fcntl",
    "fresh_page_ns",
    "give_free_memory_back",
    "interrupt_soon",
    "keep_freed_memory",
    "keep_standard_descriptors",
    "libc",
    "missing",
    "on_fork",
    "past_caches",
    "resource",
    "rights_space",
    "wake_on_time",
]

LAST_SIGNAL: int = getattr(signal, "SIGRTMAX", 64)
NO_WAIT = int(getattr(socket, "MSG_DONTWAIT", 0))
ANCILLARY_CLOEXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))


@cache
def libc() -> Any:
    found = ctypes.CDLL(None, use_errno=True)
    found.mmap.restype = ctypes.c_void_p
    found.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong)
    found.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    found.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


def give_free_memory_back() -> None:
    """What the allocator holds and nobody uses: children would inherit it, and copy what they write to."""
    if hasattr(libc(), "malloc_trim"):
        libc().malloc_trim(0)


_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_LARGEST_ON_HEAP_BYTES = 1 << 25  # glibc refuses more


def keep_freed_memory(most_bytes: int) -> bool:
    """Freed memory stays in the allocator of this process, for good, up to so much of it: a fresh page costs more than what is written to
    it. Whether there is an allocator that can be told."""
    if not hasattr(libc(), "mallopt"):
        return False
    kept = libc().mallopt(_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP_BYTES), libc().mallopt(_M_TRIM_THRESHOLD, most_bytes)
    return all(kept)


PAST_CACHES_BYTES = 1 << 18
_PAST_CACHES = "glibc.cpu.x86_non_temporal_threshold"


def past_caches() -> str:
    """What must stand in the environment, before the program starts, for copies of PAST_CACHES_BYTES and more to go past the caches; empty
    where it stands there, or where nothing is known to be gained: with Intel's processors much was (docs/benchmarks.md), with AMD's not."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if _PAST_CACHES in tunables or not _has_tunable():
        return ""
    return f"GLIBC_TUNABLES={tunables and tunables + ':'}{_PAST_CACHES}={PAST_CACHES_BYTES}"


@cache
def _has_tunable() -> bool:
    try:
        with open("/proc/cpuinfo") as processors:
            intel = "GenuineIntel" in processors.read(4096)
        library, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (OSError, ValueError, AttributeError):
        return False
    return intel and library == "glibc" and tuple(map(int, version.split(".")[:2])) >= (2, 29)


_PR_SET_TIMERSLACK, _SLACK_NS = 29, 1000


def wake_on_time() -> None:
    """What waits in this thread, for a time or for something outside with a limit, is woken then: the kernel by itself lets timers of
    50 µs come together. (A sleep of 10 ms took 10.05 ms instead of 10.10.)"""
    if hasattr(libc(), "prctl"):
        libc().prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)


@cache
def fresh_page_ns() -> float:
    """What the first touch of a page costs here, above any later one: the best of a few tries, which take some milliseconds."""
    return max(0.0, min(_first_touch_ns() for _ in range(5)))


def _first_touch_ns(pages: int = 512) -> float:
    flags = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    with mmap.mmap(-1, pages * mmap.PAGESIZE, flags=flags) as fresh:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            with suppress(OSError):  # a kernel without large pages
                fresh.madvise(mmap.MADV_NOHUGEPAGE)
        took_ns = []
        for _ in range(2):
            began_ns = time.perf_counter_ns()
            fresh[:: mmap.PAGESIZE] = bytes(pages)
            took_ns.append(time.perf_counter_ns() - began_ns)
    return (took_ns[0] - took_ns[1]) / pages


def rights_space(descriptors: int) -> int:
    """Bytes of ancillary data that so many descriptors take."""
    return socket.CMSG_SPACE(descriptors * ctypes.sizeof(ctypes.c_int)) if hasattr(socket, "CMSG_SPACE") else 0


def on_fork(*, parent: Callable[[], None] | None = None, child: Callable[[], None]) -> None:
    """What to do after this process has forked."""
    if hasattr(os, "register_at_fork"):
        more: dict[str, Any] = {} if parent is None else {"after_in_parent": parent}
        os.register_at_fork(after_in_child=child, **more)


class _SignalEvent(ctypes.Structure):
    _fields_ = (("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("how", ctypes.c_int), ("unused", ctypes.c_char * 48))


def interrupt_soon(after_s: float = 0.01) -> None:
    """As if Ctrl-C were pressed in a moment (a timer of the kernel's): for code whose exceptions Python only prints, as finalizers."""
    timer = ctypes.c_void_p()
    event = _SignalEvent(signal=signal.SIGINT, how=0)  # SIGEV_SIGNAL
    once = (ctypes.c_long * 4)(0, 0, int(after_s), int(after_s % 1 * 1e9))
    try:
        if libc().timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0:  # CLOCK_MONOTONIC
            libc().timer_settime(timer, 0, once, None)
            return
    except AttributeError:
        pass
    signal.raise_signal(signal.SIGINT)


def keep_standard_descriptors() -> Callable[[], None]:
    """A process whose stdin, stdout or stderr is closed (a daemon's) has /dev/null there until whoever asked calls what is returned:
    otherwise the next thing opened takes that number, a batch's memory say, and whatever anybody prints is written into it."""
    _keepers.append(os.getpid())
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened == number:
                os.set_inheritable(number, True)
                _kept.add(number)
            else:  # another thread was quicker
                os.close(opened)
    return partial(_let_go_of_standard_descriptors, os.getpid())


def _let_go_of_standard_descriptors(keeper: int) -> None:
    if keeper != os.getpid():
        return  # a child prints as well
    _keepers.remove(keeper)
    if keeper not in _keepers:
        null = os.stat(os.devnull).st_rdev
        while _kept:
            number = _kept.pop()
            if os.fstat(number).st_rdev == null:  # else somebody has put something else there
                os.close(number)


_keepers: list[int] = []
_kept: set[int] = set()


def missing() -> str:
    """What antifreeze needs and this system does not have; empty on Linux."""
    needed = {"memfd_create": os, "pidfd_open": os, "register_at_fork": os, "send_fds": socket, "SOCK_SEQPACKET": socket}
    lacking = [name for name, module in needed.items() if not hasattr(module, name)]
    return f"{sys.platform} has no {', '.join(lacking)}" if lacking else ""
