"""What the system tells about a worker from outside, whatever state it is in: read-only looks into /proc."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

_X86_64 = (
    "read:0 write:1 pread64:17 pwrite64:18 readv:19 connect:42 accept:43 recvfrom:45 recvmsg:47 fcntl:72 flock:73 fsync:74 openat:257 "
    "newfstatat:262 statx:332 futex:202 nanosleep:35 clock_nanosleep:230 poll:7 ppoll:271 select:23 pselect6:270 epoll_wait:232 "
    "epoll_pwait:281 wait4:61 waitid:247 kill:62 tgkill:234 pause:34 ioctl:16 close:3"
)
_GENERIC = (
    "read:63 write:64 pread64:67 pwrite64:68 readv:65 connect:203 accept:202 recvfrom:207 recvmsg:212 fcntl:25 flock:32 fsync:82 openat:56 "
    "newfstatat:79 statx:291 futex:98 nanosleep:101 clock_nanosleep:115 ppoll:73 pselect6:72 epoll_pwait:22 wait4:260 waitid:95 "
    "kill:129 tgkill:131 ioctl:29 close:57"
)
_TABLE = _X86_64 if platform.machine() in ("x86_64", "AMD64") else _GENERIC
_CALLS = {int(number): name for name, _, number in (entry.partition(":") for entry in _TABLE.split())}
_OF_DESCRIPTOR = frozenset(
    ["read", "write", "pread64", "pwrite64", "readv", "connect", "accept", "recvfrom", "recvmsg", "fcntl", "flock", "fsync"]
)
_OF_PATH = frozenset(["openat", "newfstatat", "statx"])  # their second argument
_PAGE = 4096
_FUTEX_PRIVATE = 128


def process_state(pid: int) -> str:
    """One letter: R running, S sleeping, D uninterruptible, T stopped, Z ended; '?' where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for this signal: otherwise it might end it."""
    return _is_in_mask(f"/proc/{pid}/status", number, "SigCgt")


def kept_from(pid: int, number: int) -> set[str]:
    """The threads that this signal waits for, or is held back from: as it is while its handler runs. Some threads never let it in."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return set()
    return {thread for thread in threads if _is_in_mask(f"/proc/{pid}/task/{thread}/status", number, "SigPnd|ShdPnd|SigBlk")}


def _is_in_mask(status: str, number: int, masks: str) -> bool:
    try:
        found = re.findall(rf"^(?:{masks}):\s*([0-9a-f]+)$", Path(status).read_text(), re.MULTILINE)
    except OSError:
        return False
    return any(int(mask, 16) >> (number - 1) & 1 for mask in found)


def system_call(pid: int) -> str | None:
    """The system call it is in, with the file behind its descriptor; None while it computes."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:
        return None
    if not words or words[0] in ("running", "-1"):
        return None
    name = _CALLS.get(int(words[0]))
    if name in _OF_DESCRIPTOR:
        return f"{name}() on {_file_of(pid, int(words[1], 16))}"
    path = _path_at(pid, int(words[2], 16)) if name in _OF_PATH else None
    if path is not None:
        return f"{name}() on {path}"
    return f"number {words[0]}" if name is None else f"{name}()"


def waits_for_own_lock(pid: int, alone: bool = False) -> bool:
    """Whether it sleeps until a lock of its own, which no other process can open, is opened. `alone`: and for ever, because it has no
    other thread that could."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return False
    if len(words) < 5 or not words[0].isdigit() or _CALLS.get(int(words[0])) != "futex":
        return False
    operation, ends_at = int(words[2], 16), int(words[4], 16)
    return bool(operation & _FUTEX_PRIVATE) and not (alone and (threads > 1 or ends_at))


def kernel_function(pid: int) -> str | None:
    """What it waits in inside the kernel, where the kernel tells: of one that cannot run, it is all there is to know."""
    try:
        name = Path(f"/proc/{pid}/wchan").read_text().strip()
    except OSError:
        return None
    return name if name not in ("", "0") else None


def lock_holder(pid: int) -> int | None:
    """The process that has the file lock this one waits for."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    holder: int | None = None
    for line in lines:  # "7: POSIX ADVISORY WRITE 4711 08:01:42 0 EOF"; who waits for it follows: "7: -> POSIX ADVISORY WRITE 4712 …"
        words = line.split()
        waits = "->" in words
        try:
            owner = int(words[5 if waits else 4])
        except (IndexError, ValueError):
            continue
        if not waits:
            holder = owner
        elif owner == pid:
            return holder
    return None


@dataclass(frozen=True)
class Memory:
    """`own_bytes`: anonymous pages, by share where they are shared; `pss_bytes`: the same with files and shared memory;
    `private_bytes`: what it alone has, and what its end gives back: what a fork shares with its parent is not in it."""

    own_bytes: int
    pss_bytes: int
    private_bytes: int = 0


def memory_of(pid: int) -> Memory | None:
    """None where it is gone, or not ours to look at; or in uninterruptible sleep: who reads that might wait with it."""
    if process_state(pid) == "D":
        return None
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    found = {name: int(kilobytes) * 1024 for name, kilobytes in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    if "Pss" not in found:
        return None
    private = found.get("Private_Dirty", 0)
    return Memory(found.get("Pss_Anon", private), found["Pss"], private)


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


def resident_bytes(pid: int) -> int:
    """Resident memory that is not of files; what a fork shares with its parent is in it. Quick: a microsecond or ten, whatever the
    size. 0 where it is gone."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _file_of(pid: int, descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return f"descriptor {descriptor}"


def _path_at(pid: int, address: int) -> str | None:
    """The text at this address of the process; None where it is not ours to read."""
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.pread(memory, _PAGE - address % _PAGE, address)
        if b"\0" not in text:
            text += os.pread(memory, _PAGE, address + len(text))
        return os.fsdecode(text.partition(b"\0")[0]) or None
    except (OSError, OverflowError):
        return None
    finally:
        os.close(memory)
