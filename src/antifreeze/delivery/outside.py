"""Whether workers may see, through memory they share with this process, what the user changes after they were started.

    multiprocessing.Value, shared tensors, SharedMemory, writable maps of files ──▶ a line `rw-s` in /proc/self/maps
    managers                                                                     ──▶ a proxy among the data set's attributes

That is how scripts tell persistent workers about a new epoch. What lies in files, in databases or behind a network cannot be seen here.
Drivers of devices have such memory, too, which no data set sees: without a name ("/dev/zero"), like that of Python's own mmap(-1, …).
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from antifreeze.delivery.traps import walk

_MAPS = Path("/proc/self/maps")
_OURS = "/memfd:antifreeze-"
_SHM = "/dev/shm/"
_NO_DATA = ("sem.", "nccl-", "cuda.shm", "cuda-")
"""Semaphores, and what libraries of devices share among themselves."""
_NAMELESS = "/dev/zero"
_NO_DEVICES = (_SHM, _NAMELESS)
_FROZEN_BY_PYTHON = 10_000
"""At its start Python itself freezes some hundreds of objects. Where the user has frozen some, too, an mmap may be among them, and what is
frozen is not listed."""


def whose_nameless() -> dict[str, bool]:
    """Beside a device's driver, the places of memory without a name, as far as can be told: whether it is an mmap of Python's. Goes
    through all objects there are, which with a GPU's libraries loaded takes some ten milliseconds: best done while the loop waits."""
    try:
        shared = _shared()
    except OSError:
        return {}
    places = [place for place, name in shared.items() if name == _NAMELESS]
    if not places or not any(map(_is_device, shared.values())) or gc.get_freeze_count() > _FROZEN_BY_PYTHON:
        return {}
    pythons = _maps_of_python()
    return {place: any(at in _range(place) for at in pythons) for place in places}


def shares_memory(dataset: Any, looked: dict[str, bool] | None = None) -> str:
    """With whom, in words; empty where no such memory is found. `looked`: what whose_nameless() said before."""
    managers: Any = sys.modules.get("multiprocessing.managers")  # not imported: nobody has a proxy
    for path, part in walk(dataset, "dataset") if managers else ():
        if isinstance(part, managers.BaseProxy):
            return f"{path} ({type(part).__name__}) is shared with a manager"
    try:
        shared = _shared()
    except OSError:
        return "what this process shares with others cannot be read"
    nameless = {place for place, name in shared.items() if name == _NAMELESS}
    pythons = looked if looked is not None and looked.keys() >= nameless else whose_nameless()
    for place, name in shared.items():
        if not _is_device(name) and (name != _NAMELESS or pythons.get(place, True)):
            return f"this process shares memory with others ({name}), and they may change it between two epochs"
    return ""


def _shared() -> dict[str, str]:
    """What is written to and shared, by its place."""
    lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    return dict(filter(None, map(_written_to, lines)))


def _written_to(line: str) -> tuple[str, str] | None:
    """The place and the name of a mapping that is written to and shared, and may hold data; None for all others."""
    parts = line.split(maxsplit=5)
    if len(parts) < 6 or parts[1] != "rw-s":
        return None
    name = parts[5].removesuffix(" (deleted)")
    holds_none = name.startswith((_OURS, "anon_inode:")) or (name.startswith(_SHM) and name[len(_SHM) :].startswith(_NO_DATA))
    return None if holds_none else (parts[0], name)


def _is_device(name: str) -> bool:
    return name.startswith("/dev/") and not name.startswith(_NO_DEVICES)


def _range(place: str) -> range:
    return range(*(int(address, 16) for address in place.split("-")))


def _maps_of_python() -> list[int]:
    """Where the mmap objects lie that are written to. Every object refers to its type, so one pass in C finds them."""
    found = []
    each: Any
    for each in gc.get_referrers(*_and_subclasses(mmap.mmap)):
        if issubclass(type(each), mmap.mmap):
            with suppress(TypeError, ValueError):  # it is not written to, or closed
                found.append(ctypes.addressof(ctypes.c_char.from_buffer(each)))
    return found


def _and_subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _and_subclasses(each)
