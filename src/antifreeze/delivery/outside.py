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


def shares_memory(dataset: Any) -> str:
    """With whom, in words; empty where no such memory is found."""
    managers: Any = sys.modules.get("multiprocessing.managers")  # not imported: nobody has a proxy
    for path, part in walk(dataset, "dataset") if managers else ():
        if isinstance(part, managers.BaseProxy):
            return f"{path} ({type(part).__name__}) is shared with a manager"
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "what this process shares with others cannot be read"
    shared = dict(filter(None, map(_written_to, lines)))
    names = {place: name for place, name in shared.items() if not _is_device(name)}
    if len(names) < len(shared) and _NAMELESS in names.values() and gc.get_freeze_count() <= _FROZEN_BY_PYTHON:
        pythons = _maps_of_python()
        names = {place: name for place, name in names.items() if name != _NAMELESS or any(at in _range(place) for at in pythons)}
    name = next(iter(names.values()), None)
    return "" if name is None else f"this process shares memory with others ({name}), and they may change it between two epochs"


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
    """Where the mmap objects lie that are written to."""
    found = []
    for each in gc.get_objects():
        if issubclass(type(each), mmap.mmap):
            with suppress(TypeError, ValueError):  # it is not written to, or closed
                found.append(ctypes.addressof(ctypes.c_char.from_buffer(each)))
    return found
