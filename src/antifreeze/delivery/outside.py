"""Whether workers may see, through memory they share with this process, what the user changes after they were started.

    multiprocessing.Value, shared tensors, SharedMemory, writable maps of files ──▶ a line `rw-s` in /proc/self/maps
    managers                                                                     ──▶ a proxy among the data set's attributes

That is how scripts tell persistent workers about a new epoch. What lies in files, in databases or behind a network cannot be seen here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from antifreeze.delivery.traps import walk

_MAPS = Path("/proc/self/maps")
_OURS = "/memfd:antifreeze-"
_SHM = "/dev/shm/"
_NO_DATA = ("sem.", "nccl-", "cuda.shm", "cuda-")
"""Semaphores, and what libraries of devices share among themselves."""


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
    shared = next(filter(None, map(_shared_by, lines)), None)
    return "" if shared is None else f"this process shares memory with others ({shared}), and they may change it between two epochs"


def _shared_by(line: str) -> str | None:
    """The name of a mapping that is written to and shared; None for all others."""
    parts = line.split(maxsplit=5)
    if len(parts) < 6 or parts[1] != "rw-s":
        return None
    name = parts[5].removesuffix(" (deleted)")
    if name.startswith(_OURS) or (name.startswith(_SHM) and name[len(_SHM) :].startswith(_NO_DATA)):
        return None
    is_device = name.startswith("/dev/") and not name.startswith((_SHM, "/dev/zero"))
    return None if is_device or name.startswith("anon_inode:") else name
