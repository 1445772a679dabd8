"""The memory cgroup of this process, of version 1 or 2: what may still be used, and whether the out-of-memory killer struck.

1. A limit may stand at any level above the process: the tightest counts.
2. What files are cached in memory is given up before anybody is killed: it is not in use.
3. Evidence of a kill, the best first: the kernel's log names the process; the cgroup counted a kill; the machine did.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")

_V1_NO_LIMIT = 1 << 60
_MOST_LOG_RECORDS = 50_000


def available_memory_bytes() -> int | None:
    """What may still be used: the machine's, or the cgroup's where that is less."""
    machine = re.search(r"^MemAvailable:\s+(\d+) kB$", _text(Path("/proc/meminfo")), re.MULTILINE)
    amounts = [int(machine.group(1)) * 1024] if machine else []
    return min([*amounts, *(max(0, limit - used) for limit, used in limits_and_use())], default=None)


def limits_and_use(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> list[tuple[int, int]]:
    """(limit, used) in bytes of each cgroup from this process's own to the root, where it has a limit."""
    found = []
    for folder in _folders(root, own):
        new = (folder / "memory.max").exists()
        limit = _number(_text(folder / ("memory.max" if new else "memory.limit_in_bytes")))
        used = _number(_text(folder / ("memory.current" if new else "memory.usage_in_bytes")))
        if limit is None or used is None or limit >= _V1_NO_LIMIT:
            continue
        cached = re.findall(r"^(?:total_)?(?:in)?active_file (\d+)$", _stat(folder), re.MULTILINE)
        found.append((limit, max(0, used - sum(map(int, cached)))))
    return found


def _stat(folder: Path) -> str:
    """Of it and all below it: version 1 has both that and its own."""
    lines = _text(folder / "memory.stat").splitlines()
    totals = [line for line in lines if line.startswith("total_")]
    return "\n".join(totals or lines)


def _folders(root: Path, own: Path) -> list[Path]:
    """This process's own first. In a container the path is often the host's, while the mount shows the container's own as its root."""
    lines = [line.split(":", 2) for line in _text(own).splitlines()]
    path = next((line[2] for line in lines if len(line) == 3 and "memory" in line[1].split(",")), None)
    mount = root / "memory"
    if path is None or not mount.is_dir():
        path, mount = next((line[2] for line in lines if len(line) == 3 and not line[1]), ""), root
    folder = mount / path.strip().lstrip("/")
    if not folder.is_dir() or ".." in path:
        return [mount]
    return [folder, *(parent for parent in folder.parents if parent == mount or mount in parent.parents)]


@dataclass(frozen=True)
class Kills:
    """By the out-of-memory killer, so far."""

    cgroup: int
    machine: int


def count_kills(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> Kills:
    folder = _folders(root, own)[0]
    return Kills(_kills(folder / "memory.events") or _kills(folder / "memory.oom_control"), _kills(Path("/proc/vmstat")))


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


def _kills(file: Path) -> int:
    match = re.search(r"^oom_kill (\d+)$", _text(file), re.MULTILINE)
    return int(match.group(1)) if match else 0


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None
