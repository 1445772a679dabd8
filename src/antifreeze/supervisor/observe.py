"""What the system tells about a worker from outside, whatever state it is in: read-only looks into /proc and the cgroup."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_READS = {0: "read", 17: "pread64", 19: "readv", 45: "recvfrom", 47: "recvmsg", 1: "write", 73: "flock", 72: "fcntl", 257: "openat"}
_OTHER_CALLS = {
    202: "futex",
    35: "nanosleep",
    230: "clock_nanosleep",
    7: "poll",
    23: "select",
    232: "epoll_wait",
    281: "epoll_pwait",
    61: "wait4",
}


def process_state(pid: int) -> str:
    """One letter: R running, S sleeping, D uninterruptible, T stopped, Z ended; '?' where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"


def system_call(pid: int) -> str | None:
    """The system call it is in, with the file behind its descriptor; None while it computes."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:
        return None
    if not words or words[0] in ("running", "-1"):
        return None
    number = int(words[0])
    if number in _READS:
        return f"{_READS[number]}() on {_file_of(pid, int(words[1], 16))}"
    return f"{_OTHER_CALLS[number]}()" if number in _OTHER_CALLS else f"system call {number}"


@dataclass(frozen=True)
class Memory:
    """`own_bytes`: anonymous pages, by share where they are shared; `pss_bytes`: the same with files and shared memory."""

    own_bytes: int
    pss_bytes: int


def memory_of(pid: int) -> Memory | None:
    """None where it is gone, or not ours to look at."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    found = {name: int(kilobytes) * 1024 for name, kilobytes in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    if "Pss" not in found:
        return None
    return Memory(found.get("Pss_Anon", found.get("Private_Dirty", 0)), found["Pss"])


def busy_threads(pid: int) -> int:
    """Threads that compute: those with a twentieth or more of the busiest one's CPU time."""
    times = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 1
    for thread in threads if len(threads) > 1 else ():
        try:
            words = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
            times.append(int(words[11]) + int(words[12]))
        except (OSError, IndexError, ValueError):
            continue
    return max(1, sum(time >= max(times) / 20 and time > 1 for time in times))


def open_files(pid: int, most: int = 3) -> list[str]:
    """Regular files that the process has open and this one has not: what it reads right now, most likely."""
    here = set(_files_of(os.getpid()))
    return [file for file in dict.fromkeys(_files_of(pid)) if file not in here][:most]


def _files_of(pid: int) -> list[str]:
    files = []
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("/") and not target.startswith(("/memfd:", "/dev/", "/proc/")) and os.path.isfile(target):
                files.append(target)
        except OSError:
            continue
    return files


def private_bytes(pid: int) -> int:
    """What the process holds alone, about: resident pages less the shared ones; 0 where it is gone."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def oom_kills() -> int:
    """How often the kernel's out-of-memory killer struck here: in this process's cgroup where it counts, else on the machine."""
    count = 0
    for file in (_cgroup_file("memory.events"), Path("/proc/vmstat")):
        try:
            match = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE) if file else None
        except OSError:
            match = None
        count += int(match.group(1)) if match else 0
    return count


def available_memory_bytes() -> int | None:
    """What may still be used: the machine's, or the cgroup's where that is less."""
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    amounts = [int(match.group(1)) * 1024] if match else []
    limit, used = _number(_cgroup_file("memory.max")), _number(_cgroup_file("memory.current"))
    if limit is not None and used is not None:
        amounts.append(max(0, limit - used))
    return min(amounts, default=None)


def _cgroup_file(name: str) -> Path | None:
    try:
        line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    folder = Path("/sys/fs/cgroup") / line[3:].strip().lstrip("/")
    return folder / name if (folder / name).exists() else None


def _number(file: Path | None) -> int | None:
    try:
        return int(file.read_text()) if file else None
    except (OSError, ValueError):
        return None


def _file_of(pid: int, descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return f"descriptor {descriptor}"
