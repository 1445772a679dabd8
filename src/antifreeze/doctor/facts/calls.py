"""/proc/PID/task/TID/syscall, made readable: the call's name, the descriptors and paths behind its arguments, how long it may wait."""

from __future__ import annotations

import platform
import struct
import time
from collections.abc import Callable

from antifreeze.doctor.facts.model import Call, Futex
from antifreeze.doctor.facts.proc import Mapping, find_mapping

ReadMemory = Callable[[int, int], "bytes | None"]
"""(address, size) -> the patient's bytes, or None."""

X86_64 = (
    "read:0 write:1 open:2 close:3 stat:4 fstat:5 lstat:6 poll:7 lseek:8 mmap:9 mprotect:10 munmap:11 brk:12 ioctl:16 pread64:17 "
    "pwrite64:18 readv:19 writev:20 access:21 select:23 sched_yield:24 msync:26 madvise:28 pause:34 nanosleep:35 sendfile:40 "
    "connect:42 accept:43 sendto:44 recvfrom:45 sendmsg:46 recvmsg:47 clone:56 fork:57 vfork:58 execve:59 wait4:61 semop:65 msgrcv:70 "
    "fcntl:72 flock:73 fsync:74 fdatasync:75 truncate:76 ftruncate:77 getdents:78 rename:82 mkdir:83 rmdir:84 unlink:87 readlink:89 "
    "ptrace:101 rt_sigtimedwait:128 rt_sigsuspend:130 futex:202 io_getevents:208 getdents64:217 restart_syscall:219 semtimedop:220 "
    "clock_nanosleep:230 exit_group:231 epoll_wait:232 mq_timedreceive:243 waitid:247 openat:257 mkdirat:258 newfstatat:262 "
    "unlinkat:263 renameat:264 readlinkat:267 faccessat:269 pselect6:270 ppoll:271 splice:275 sync_file_range:277 epoll_pwait:281 "
    "fallocate:285 accept4:288 preadv:295 pwritev:296 recvmmsg:299 sendmmsg:307 renameat2:316 getrandom:318 userfaultfd:323 "
    "copy_file_range:326 preadv2:327 statx:332 io_uring_enter:426 openat2:437 faccessat2:439 epoll_pwait2:441 futex_waitv:449 "
    "futex_wait:455"
)
GENERIC = (
    "io_getevents:4 epoll_pwait:22 fcntl:25 ioctl:29 flock:32 mkdirat:34 unlinkat:35 renameat:38 truncate:45 ftruncate:46 "
    "fallocate:47 faccessat:48 openat:56 close:57 getdents64:61 lseek:62 read:63 write:64 readv:65 writev:66 pread64:67 pwrite64:68 "
    "preadv:69 pwritev:70 sendfile:71 pselect6:72 ppoll:73 splice:76 readlinkat:78 newfstatat:79 fstat:80 fsync:82 fdatasync:83 "
    "sync_file_range:84 exit_group:94 waitid:95 futex:98 nanosleep:101 clock_nanosleep:115 ptrace:117 sched_yield:124 "
    "restart_syscall:128 rt_sigsuspend:133 rt_sigtimedwait:137 mq_timedreceive:183 msgrcv:188 semtimedop:192 semop:193 accept:202 "
    "connect:203 sendto:206 recvfrom:207 sendmsg:211 recvmsg:212 brk:214 munmap:215 clone:220 execve:221 mmap:222 mprotect:226 "
    "msync:227 madvise:233 accept4:242 recvmmsg:243 wait4:260 sendmmsg:269 renameat2:276 getrandom:278 userfaultfd:282 "
    "copy_file_range:285 preadv2:286 statx:291 io_uring_enter:426 openat2:437 faccessat2:439 epoll_pwait2:441 futex_waitv:449 "
    "futex_wait:455"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FIRST_IS_DESCRIPTOR = _words(
    "read write pread64 pwrite64 readv writev preadv pwritev preadv2 recvfrom recvmsg recvmmsg sendto sendmsg sendmmsg accept accept4 "
    "connect flock fcntl fsync fdatasync ftruncate fallocate ioctl getdents getdents64 lseek fstat close epoll_wait epoll_pwait "
    "epoll_pwait2 sync_file_range splice"
)
SECOND_IS_DESCRIPTOR = _words("sendfile")
PATH_IS_FIRST = _words("open stat lstat access rename mkdir rmdir unlink readlink truncate execve")
PATH_IS_SECOND = _words("openat openat2 newfstatat statx faccessat faccessat2 unlinkat mkdirat renameat renameat2 readlinkat")
FUTEX_COMMAND, FUTEX_PRIVATE, FUTEX_REALTIME, FUTEX_WAIT_BITSET = 0x7F, 0x80, 0x100, 9


def call_names(machine: str) -> dict[int, str]:
    table = X86_64 if machine in ("x86_64", "AMD64") else GENERIC
    return {int(number): name for name, _, number in (entry.partition(":") for entry in table.split())}


NAMES = call_names(platform.machine())


def decode_call(text: str, read_memory: ReadMemory, mappings: list[Mapping], names: dict[int, str] = NAMES) -> Call | None:
    """None where the thread is running, or where the kernel keeps it from us."""
    words = text.split()
    if len(words) < 9 or words[0] == "-1":
        return None
    arguments = [int(word, 16) for word in words[1:7]]
    name = names.get(int(words[0]), f"system call {words[0]}")
    return Call(
        name=name,
        descriptors=_descriptors(name, arguments, read_memory),
        path=_path(name, arguments, read_memory),
        futex=_futex(name, arguments, mappings),
        limit_s=_limit_s(name, arguments, read_memory),
        stack_pointer=int(words[7], 16),
    )


def _descriptors(name: str, arguments: list[int], read_memory: ReadMemory) -> tuple[int, ...]:
    if name in FIRST_IS_DESCRIPTOR:
        return (arguments[0] & 0xFFFFFFFF,)
    if name in SECOND_IS_DESCRIPTOR:
        return (arguments[1] & 0xFFFFFFFF,)
    if name in ("poll", "ppoll"):
        count = min(arguments[1], 256)
        content = read_memory(arguments[0], 8 * count) or b""
        return tuple(number for number, _events in struct.iter_unpack("=iI", content[: len(content) // 8 * 8]) if number >= 0)
    if name in ("select", "pselect6"):
        return _select_set(arguments[0], read_memory(arguments[1], 128) if arguments[1] else None)
    return ()


def _select_set(count: int, content: bytes | None) -> tuple[int, ...]:
    bits = int.from_bytes(content or b"", "little")
    return tuple(number for number in range(min(count, 1024)) if bits >> number & 1)


def _path(name: str, arguments: list[int], read_memory: ReadMemory) -> str | None:
    if name in PATH_IS_FIRST:
        address = arguments[0]
    elif name in PATH_IS_SECOND:
        address = arguments[1]
    else:
        return None
    # A path may end just before a page that is not there: read up to the end of its page, then beyond.
    content = read_memory(address, 4096 - address % 4096) or b""
    if content and b"\0" not in content:
        content += read_memory(address + len(content), 4096) or b""
    return content.split(b"\0")[0].decode(errors="replace") or None


def _futex(name: str, arguments: list[int], mappings: list[Mapping]) -> Futex | None:
    if name != "futex":
        return None
    place = find_mapping(mappings, arguments[0])
    return Futex(
        address=arguments[0],
        private=bool(arguments[1] & FUTEX_PRIVATE) or (place is not None and not place.shared),
        mapping=place.path if place else "",
        inode=place.inode if place else 0,
    )


def _limit_s(name: str, arguments: list[int], read_memory: ReadMemory) -> float | None:
    """How long it may still wait, at most."""
    if name == "poll":
        return _milliseconds(arguments[2])
    if name in ("epoll_wait", "epoll_pwait"):
        return _milliseconds(arguments[3])
    if name == "nanosleep":
        return _timespec_s(arguments[0], read_memory)
    if name == "ppoll":
        return _timespec_s(arguments[2], read_memory)
    if name == "clock_nanosleep":
        until_s = _timespec_s(arguments[2], read_memory)
        return _remaining_s(until_s, realtime=arguments[0] == 0) if arguments[1] & 1 else until_s
    if name == "futex":
        until_s = _timespec_s(arguments[3], read_memory)
        waits_until = arguments[1] & FUTEX_COMMAND == FUTEX_WAIT_BITSET
        return _remaining_s(until_s, realtime=bool(arguments[1] & FUTEX_REALTIME)) if waits_until else until_s
    return None


def _milliseconds(argument: int) -> float | None:
    value = argument & 0xFFFFFFFF
    return None if value >= 0x80000000 else value / 1000


def _timespec_s(address: int, read_memory: ReadMemory) -> float | None:
    content = read_memory(address, 16) if address else None
    if content is None or len(content) < 16:
        return None
    seconds, nanoseconds = struct.unpack("=qq", content)
    return float(seconds + nanoseconds / 1e9)


def _remaining_s(until_s: float | None, *, realtime: bool) -> float | None:
    clock = time.CLOCK_REALTIME if realtime else time.CLOCK_MONOTONIC
    return None if until_s is None else max(0.0, until_s - time.clock_gettime(clock))
