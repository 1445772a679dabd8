"""Where this process's cgroups are, of version 1 and 2, and what their files say.

    /proc/self/cgroup ──▶ folders from its own cgroup up to the mount's root: a limit may stand at any of them

1. Inside a container the path is often the host's, while the mount shows the container's own as its root: then that is all there is.
2. Where a cgroup is does not change as a rule: folders are looked for once for each content of /proc/self/cgroup, files are read anew.
"""

from __future__ import annotations

import os
from functools import lru_cache

ROOT = "/sys/fs/cgroup"
OWN = "/proc/self/cgroup"


def folders_v2(root: str = ROOT, own: str = OWN) -> tuple[str, ...]:
    """This process's own first; the root at least."""
    return _upwards(root, _paths(text(own)).get("", "/"))


def folders_v1(controller: str, root: str = ROOT, own: str = OWN) -> tuple[str, ...]:
    """This process's own first; none where this controller is not one of version 1."""
    path = _paths(text(own)).get(controller)
    mounts = () if path is None else _mounts_v1(root, controller)
    return tuple(folder for mount in mounts for folder in _upwards(mount, path or "/"))


def text(file: str) -> str:
    """Empty where there is none, or none for us."""
    try:
        with open(file, "rb", buffering=0) as opened:
            return opened.read().decode(errors="replace")
    except OSError:
        return ""


def number(words: str) -> int | None:
    """A count; None for "max", "-1" and whatever else is none."""
    return int(words) if words.strip().isdigit() else None


@lru_cache(maxsize=8)
def _paths(told: str) -> dict[str, str]:
    """By controller; that of version 2 has no name."""
    found: dict[str, str] = {}
    for line in told.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            found |= dict.fromkeys(parts[1].split(","), parts[2])
    return found


@lru_cache(maxsize=32)
def _mounts_v1(root: str, controller: str) -> tuple[str, ...]:
    """`cpu`, or several controllers in one, `cpu,cpuacct`."""
    try:
        return tuple(os.path.join(root, name) for name in sorted(os.listdir(root)) if controller in name.split(","))
    except OSError:
        return ()


@lru_cache(maxsize=32)
def _upwards(mount: str, path: str) -> tuple[str, ...]:
    folder = os.path.join(mount, path.strip("/ "))
    if ".." in path or not os.path.isdir(folder):
        return (mount,)
    names = [name for name in path.strip().split("/") if name]
    return tuple(os.path.join(mount, *names[:depth]) for depth in range(len(names), -1, -1))
