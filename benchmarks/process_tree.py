"""What a process and all it started cost: CPU, page faults, memory. Read from /proc, so Linux only.

A measurement runs in a session of its own, and a process belongs to it if it is in that session: a worker counts whoever
its parent is. Processes that have ended are in their parent's sums once it has waited for them.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    cpu_s: float
    faults: int

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(self.cpu_s - earlier.cpu_s, self.faults - earlier.faults)

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.cpu_s + other.cpu_s, self.faults + other.faults)


def own_usage() -> Usage:
    """Of this process, of those in its session, and of those that ended and were waited for."""
    total = Usage(0.0, 0)
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += Usage(used.ru_utime + used.ru_stime, used.ru_minflt + used.ru_majflt)
    for pid in in_session(os.getsid(0)):
        if pid != os.getpid():
            total += _usage_of(pid)
    return total


def machine_cpu_s() -> float:
    """Of everybody, since the machine started; the waits of the hypervisor for a core of its own (steal) are in it."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) * TICK_S


def in_session(session: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields and int(fields[3]) == session:
                found.append(int(entry))
    return found


@dataclass(frozen=True)
class Memory:
    pss_bytes: int
    """Proportional set size: shared pages are divided among those who map them, so the sum counts each once."""
    held_bytes: int
    """That, and shared memory which somebody holds by a descriptor while nobody maps it: batches in a queue, for one."""


def memory_of(session: int) -> Memory:
    pids = in_session(session)
    pss = sum(_pss_of(pid) for pid in pids)
    mapped = set().union(*(_mapped_shared_files(pid) for pid in pids))
    held = {inode: size for pid in pids for inode, size in _open_shared_files(pid).items() if inode not in mapped}
    return Memory(pss, pss + sum(held.values()))


def _pss_of(pid: int) -> int:
    for line in _lines(pid, "smaps_rollup"):
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _mapped_shared_files(pid: int) -> set[int]:
    """Inodes of shared memory; a line of maps is: range, rights, offset, device, inode, path."""
    return {int(line.split(None, 5)[4]) for line in _lines(pid, "maps") if "/dev/shm/" in line or "/memfd:" in line}


def _open_shared_files(pid: int) -> dict[int, int]:
    """Inode and bytes in use of each."""
    found = {}
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            if os.readlink(entry.path).startswith(("/dev/shm/", "/memfd:")):
                file = os.stat(entry.path)
                found[file.st_ino] = file.st_blocks * 512
    except OSError:  # the process, or its descriptor, is gone
        pass
    return found


def _lines(pid: int, name: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{name}").read_text().splitlines()
    except OSError:  # it ended meanwhile
        return []


def _usage_of(pid: int) -> Usage:
    """utime, stime, cutime and cstime, minflt, cminflt, majflt and cmajflt."""
    fields = _stat(pid)
    if fields is None:
        return Usage(0.0, 0)
    return Usage(sum(int(field) for field in fields[11:15]) * TICK_S, sum(int(field) for field in fields[7:11]))


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may hold spaces: state, ppid, pgrp, session, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
