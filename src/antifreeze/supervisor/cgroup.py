"""The memory cgroup of this process, of version 1 or 2: what may still be used, and whether the out-of-memory killer struck.

1. What files are cached in memory is given up before anybody is killed: it is not in use.
2. Evidence of a kill, the best first: the kernel's log names the process; the cgroup counted a kill; the machine did.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from antifreeze import cgroups

_V1_NO_LIMIT = 1 << 60
_MOST_LOG_RECORDS = 50_000
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_KILLED = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_FILES = re.compile(r"^(?:in)?active_file (\d+)$", re.MULTILINE)
_TOTAL_FILES = re.compile(r"^total_(?:in)?active_file (\d+)$", re.MULTILINE)


def available_memory_bytes() -> int | None:
    """What may still be used: the machine's, or the cgroup's where that is less."""
    machine = _AVAILABLE.search(cgroups.text("/proc/meminfo"))
    amounts = [int(machine.group(1)) * 1024] if machine else []
    return min([*amounts, *(max(0, limit - used) for limit, used in limits_and_use())], default=None)


def batch_limit(budget_bytes: int | None) -> tuple[int | None, str]:
    """Bytes that a batch may have, and whose limit that is."""
    if budget_bytes is not None:
        return budget_bytes, "memory_budget"
    return available_memory_bytes(), "the memory that is available"


def limits_and_use(root: str = cgroups.ROOT, own: str = cgroups.OWN) -> list[tuple[int, int]]:
    """(limit, used) in bytes of each cgroup from this process's own to the root, where it has a limit."""
    found = []
    for folder in _folders(root, own):
        new = os.path.exists(f"{folder}/memory.max")
        limit = cgroups.number(cgroups.text(f"{folder}/{'memory.max' if new else 'memory.limit_in_bytes'}"))
        used = cgroups.number(cgroups.text(f"{folder}/{'memory.current' if new else 'memory.usage_in_bytes'}"))
        if limit is None or used is None or limit >= _V1_NO_LIMIT:
            continue
        found.append((limit, max(0, used - _cached(cgroups.text(f"{folder}/memory.stat")))))
    return found


def _cached(stat: str) -> int:
    """By it and all below it: version 1 has both that and its own."""
    return sum(map(int, _TOTAL_FILES.findall(stat) or _FILES.findall(stat)))


def _folders(root: str = cgroups.ROOT, own: str = cgroups.OWN) -> tuple[str, ...]:
    return cgroups.folders_v1("memory", root, own) or cgroups.folders_v2(root, own)


@dataclass(frozen=True)
class Kills:
    """By the out-of-memory killer, so far."""

    cgroup: int
    machine: int


def count_kills(root: str = cgroups.ROOT, own: str = cgroups.OWN) -> Kills:
    folder = _folders(root, own)[0]
    return Kills(_kills(f"{folder}/memory.events") or _kills(f"{folder}/memory.oom_control"), _kills("/proc/vmstat"))


class OomWatch:
    """Whether a worker that was ended by SIGKILL was the out-of-memory killer's."""

    def __init__(self) -> None:
        self._known = self._seen = count_kills()

    def look(self) -> None:
        """Kills that were there at the last look struck nobody of ours: of a later one the death may not have been noticed yet."""
        known, seen = self._known, self._seen
        self._known, self._seen = Kills(max(known.cgroup, seen.cgroup), max(known.machine, seen.machine)), count_kills()

    def evidence(self, pid: int) -> str | None:
        """What tells that it struck `pid`, in words."""
        known, now = self._known, count_kills()
        if now == known:
            return None
        in_cgroup, on_machine = min(now.cgroup, known.cgroup + 1), min(now.machine, known.machine + 1)
        self._known = Kills(in_cgroup, on_machine)  # several may have been struck, each of which is asked about
        told = _told_by_kernel(pid)
        if told is not None:
            return f"the kernel's out-of-memory killer ended it ({told})"
        if now.cgroup > known.cgroup:
            limit = min((limit for limit, _ in limits_and_use()), default=None)
            return "the out-of-memory killer struck in its cgroup" + (f", whose limit is {limit / 2**20:,.0f} MiB" if limit else "")
        return "the kernel's out-of-memory killer struck on this machine in the meantime"


def _told_by_kernel(pid: int) -> str | None:
    """The kernel's own words about the end of this worker, where this user may read its log."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found, pattern = None, re.compile(rf"ut of memory: (Killed process {pid} \(af_worker\)[^\n]*)")
    try:
        for _ in range(_MOST_LOG_RECORDS):
            try:
                match = pattern.search(os.read(log, 8192).decode(errors="replace"))
            except BrokenPipeError:
                continue  # what would have come next was overwritten
            found = match.group(1).split(", UID")[0] if match else found
    except OSError:
        pass  # the end of the log, for now
    finally:
        os.close(log)
    return found


def _kills(file: str) -> int:
    match = _KILLED.search(cgroups.text(file))
    return int(match.group(1)) if match else 0
