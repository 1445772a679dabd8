"""The open files of a process: what each is, which way it goes, and on which file system it lies."""

from __future__ import annotations

import os
import stat

from antifreeze.doctor.facts.model import Descriptor, Socket
from antifreeze.doctor.facts.names import is_remote
from antifreeze.doctor.facts.proc import read_text

MOST = 4096
Mounts = tuple[tuple[str, str], ...]
"""(mount point, file system), longest mount point first."""


def count_descriptors(pid: int) -> int | None:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


def read_descriptors(pid: int, mounts: Mounts, sockets: dict[int, Socket]) -> tuple[Descriptor, ...]:
    try:
        numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return ()
    found = (_read_descriptor(pid, number, mounts, sockets) for number in numbers[:MOST])
    return tuple(each for each in found if each is not None)


def _read_descriptor(pid: int, number: int, mounts: Mounts, sockets: dict[int, Socket]) -> Descriptor | None:
    link = f"/proc/{pid}/fd/{number}"
    try:
        target = os.readlink(link)
        directions = os.lstat(link).st_mode
    except OSError:
        return None
    inode, device, mode = _identity(link, target, mounts)
    return Descriptor(
        number=number,
        target=target,
        kind=kind_of(target, mode),
        inode=inode,
        device=device,
        readable=bool(directions & stat.S_IRUSR),
        writable=bool(directions & stat.S_IWUSR),
        filesystem=filesystem_of(target, mounts),
        socket=sockets.get(inode) if target.startswith("socket:") else None,
    )


def _identity(link: str, target: str, mounts: Mounts) -> tuple[int, int, int]:
    """(inode, device, mode). A stat() on a dead network file system would hang the doctor too, so there it is not asked."""
    name, _, number = target.partition(":[")
    if number and name in ("pipe", "socket"):
        return int(number.rstrip("]")), 0, 0
    if is_remote(filesystem_of(target, mounts)):
        return 0, 0, 0
    try:
        found = os.stat(link)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_dev, found.st_mode


def kind_of(target: str, mode: int) -> str:
    for prefix, kind in (
        ("pipe:", "pipe"),
        ("socket:", "socket"),
        ("anon_inode:[eventpoll]", "epoll"),
        ("anon_inode:", "other"),
        ("/memfd:", "memfd"),
        ("/dev/shm/", "shared memory"),
    ):
        if target.startswith(prefix):
            return kind
    if stat.S_ISFIFO(mode):
        return "fifo"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "device"
    return "file"


def read_mounts(pid: int) -> Mounts:
    return parse_mounts(read_text(f"/proc/{pid}/mounts") or "")


def parse_mounts(text: str) -> Mounts:
    lines = (line.split() for line in text.splitlines())
    mounts = [(words[1].replace("\\040", " "), words[2]) for words in lines if len(words) > 2]
    return tuple(sorted(mounts, key=lambda mount: -len(mount[0])))


def filesystem_of(path: str, mounts: Mounts) -> str:
    if not path.startswith("/"):
        return ""
    for point, kind in mounts:
        if path == point or path.startswith(point.rstrip("/") + "/"):
            return kind
    return ""


def epoll_targets(pid: int, number: int) -> tuple[int, ...]:
    """The descriptors an epoll descriptor watches."""
    lines = (read_text(f"/proc/{pid}/fdinfo/{number}") or "").splitlines()
    return tuple(int(line.split()[1]) for line in lines if line.startswith("tfd:"))


def read_stderr_tail(pid: int, mounts: Mounts, size: int = 32_768) -> str:
    """The end of what the process wrote to its standard error, where that is a plain file."""
    link = f"/proc/{pid}/fd/2"
    try:
        if is_remote(filesystem_of(os.readlink(link), mounts)) or not stat.S_ISREG(os.stat(link).st_mode):
            return ""
        with open(link, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""
