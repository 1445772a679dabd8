"""Who, outside the patient's tree, has what somebody in it waits for: file locks, the writing ends of pipes, the other ends of sockets."""

from __future__ import annotations

import os
from dataclasses import dataclass

from antifreeze.doctor.facts.look import main_frames
from antifreeze.doctor.facts.model import Call, Descriptor, FileLock, Holder, Process
from antifreeze.doctor.facts.proc import all_pids, read_command, read_text


def read_file_locks() -> tuple[FileLock, ...]:
    return parse_file_locks(read_text("/proc/locks", 1 << 24) or "")


def parse_file_locks(text: str) -> tuple[FileLock, ...]:
    """ "3: -> FLOCK  ADVISORY  WRITE 4711 08:02:2146508 0 EOF" """
    locks = []
    for line in text.splitlines():
        words = line.replace("->", " -> ").split()
        waiting = "->" in words
        words = [word for word in words if word != "->"]
        if len(words) < 6 or words[5].count(":") != 2:
            continue
        major, minor, inode = words[5].split(":")
        device = os.makedev(int(major, 16), int(minor, 16))
        locks.append(FileLock(int(words[0].rstrip(":")), words[1], int(words[4]), device, int(inode), waiting))
    return tuple(locks)


def locks_that_matter(locks: tuple[FileLock, ...], pids: set[int]) -> tuple[FileLock, ...]:
    """Locks somebody in the tree waits for, and those who stand before and beside him."""
    wanted = {lock.number for lock in locks if lock.waiting and lock.pid in pids}
    return tuple(lock for lock in locks if lock.number in wanted)


def find_holders(processes: tuple[Process, ...], locks: tuple[FileLock, ...], py_spy: str | None) -> tuple[Holder, ...]:
    inside = {process.pid for process in processes}
    lockers = {lock.pid for lock in locks if not lock.waiting and lock.pid > 0} - inside
    ends = ends_of(_waited_for(processes), inside)
    nothing = Ends()
    return tuple(
        Holder(pid, read_command(pid), main_frames(py_spy, pid), *(tuple(sorted(each)) for each in ends.get(pid, nothing).both))
        for pid in sorted(lockers | set(ends))
    )


def _waited_for(processes: tuple[Process, ...]) -> list[Descriptor]:
    found: list[Descriptor] = []
    for process in processes:
        calls = [thread.last.call for thread in process.threads if thread.last is not None and thread.last.call is not None]
        found.extend(each for call in calls for each in _descriptors(process, call))
    return [each for each in found if each.kind in ("pipe", "fifo", "socket")]


def _descriptors(process: Process, call: Call) -> list[Descriptor]:
    return [each for number in call.descriptors if (each := process.descriptor(number)) is not None]


@dataclass(frozen=True)
class Ends:
    """Inodes of what a process could write to, and read from."""

    writes: frozenset[int] = frozenset()
    reads: frozenset[int] = frozenset()

    @property
    def both(self) -> tuple[frozenset[int], frozenset[int]]:
        return self.writes, self.reads


def ends_of(waited_for: list[Descriptor], inside: set[int]) -> dict[int, Ends]:
    """By pid, over all processes that we may look at."""
    wanted: dict[str, int] = {}
    for each in waited_for:
        if each.socket is not None and each.socket.remote_inode:
            wanted[f"socket:[{each.socket.remote_inode}]"] = each.socket.remote_inode
        elif each.kind in ("pipe", "fifo"):
            wanted[each.target] = each.inode
    outside = [pid for pid in all_pids() if pid not in inside] if wanted else []
    found = {pid: _open_ends(pid, wanted) for pid in outside}
    return {pid: ends for pid, ends in found.items() if ends.writes or ends.reads}


def _open_ends(pid: int, wanted: dict[str, int]) -> Ends:
    writes: set[int] = set()
    reads: set[int] = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            link = f"/proc/{pid}/fd/{name}"
            target = os.readlink(link)
            if target in wanted:
                mode = os.lstat(link).st_mode
                writes.update({wanted[target]} if mode & 0o200 else ())
                reads.update({wanted[target]} if mode & 0o400 else ())
    except OSError:
        pass
    return Ends(frozenset(writes), frozenset(reads))
