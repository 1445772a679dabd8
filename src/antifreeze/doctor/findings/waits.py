"""What a thread waits for, told from its state, its system call and the kernel function it sleeps in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from antifreeze.doctor.facts.model import Call, Descriptor, Futex, Process, Thread, ThreadSample
from antifreeze.doctor.facts.names import is_remote


class WaitKind(Enum):
    NOTHING = "runs"
    LOCK = "a lock of its own process"
    SHARED_LOCK = "a lock shared between processes"
    FILE_LOCK = "a file lock"
    FIFO = "a named pipe"
    PIPE = "a pipe"
    FULL_PIPE = "a full pipe"
    SOCKET = "a socket"
    EVENT_LOOP = "news in its own event loop"
    TERMINAL = "a terminal or device"
    REMOTE_FILE = "a network file system"
    DISK = "a disk"
    SLEEP = "the end of its own sleep"
    CHILD = "a child process"
    STOPPED = "a signal to continue"
    OTHER = "something"


@dataclass(frozen=True)
class Wait:
    kind: WaitKind
    call: str = ""
    descriptor: Descriptor | None = None
    path: str | None = None
    futex: Futex | None = None
    limit_s: float | None = None

    @property
    def file(self) -> str | None:
        return self.descriptor.target if self.descriptor else self.path


SLEEPS_IN = {
    "request_wait_answer": WaitKind.REMOTE_FILE,
    "fuse_": WaitKind.REMOTE_FILE,
    "rpc_wait_bit": WaitKind.REMOTE_FILE,
    "nfs": WaitKind.REMOTE_FILE,
    "cifs": WaitKind.REMOTE_FILE,
    "wait_for_response": WaitKind.REMOTE_FILE,
    "p9_client": WaitKind.REMOTE_FILE,
    "ceph": WaitKind.REMOTE_FILE,
    "cl_sync_io": WaitKind.REMOTE_FILE,
    "flock": WaitKind.FILE_LOCK,
    "locks_lock_inode": WaitKind.FILE_LOCK,
    "posix_lock": WaitKind.FILE_LOCK,
    "fcntl_setlk": WaitKind.FILE_LOCK,
    "wait_for_partner": WaitKind.FIFO,
    "fifo_open": WaitKind.FIFO,
    "futex": WaitKind.LOCK,
    "anon_pipe_read": WaitKind.PIPE,
    "fifo_pipe_read": WaitKind.FIFO,
    "pipe_read": WaitKind.PIPE,
    "anon_pipe_write": WaitKind.FULL_PIPE,
    "fifo_pipe_write": WaitKind.FULL_PIPE,
    "pipe_write": WaitKind.FULL_PIPE,
    "unix_stream": WaitKind.SOCKET,
    "__skb_wait": WaitKind.SOCKET,
    "sk_wait_data": WaitKind.SOCKET,
    "tcp_": WaitKind.SOCKET,
    "wait_woken": WaitKind.SOCKET,
    "inet_csk_accept": WaitKind.SOCKET,
    "hrtimer_nanosleep": WaitKind.SLEEP,
    "do_nanosleep": WaitKind.SLEEP,
    "do_wait": WaitKind.CHILD,
    "do_signal_stop": WaitKind.STOPPED,
    "ptrace_stop": WaitKind.STOPPED,
    "do_freezer_trap": WaitKind.STOPPED,
    "refrigerator": WaitKind.STOPPED,
    "io_schedule": WaitKind.DISK,
    "folio_wait": WaitKind.DISK,
    "wait_on_page": WaitKind.DISK,
    "blk_": WaitKind.DISK,
    "n_tty_read": WaitKind.TERMINAL,
}
BY_CALL = {
    "flock": WaitKind.FILE_LOCK,
    "fcntl": WaitKind.FILE_LOCK,
    "nanosleep": WaitKind.SLEEP,
    "clock_nanosleep": WaitKind.SLEEP,
    "wait4": WaitKind.CHILD,
    "waitid": WaitKind.CHILD,
}
BY_DESCRIPTOR = {"pipe": WaitKind.PIPE, "fifo": WaitKind.FIFO, "socket": WaitKind.SOCKET, "device": WaitKind.TERMINAL}
SELECTS = frozenset(("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"))
WRITES = frozenset(("write", "writev", "pwrite64", "pwritev"))


def wait_of(process: Process, thread: Thread | None) -> Wait:
    sample = thread.last if thread else None
    if sample is None:
        return Wait(WaitKind.OTHER)
    if sample.state in ("T", "t"):
        return Wait(WaitKind.STOPPED)
    if sample.state == "R":
        return Wait(WaitKind.NOTHING)
    return _wait_in_call(process, sample, sample.call) if sample.call else Wait(kind_by_kernel_function(sample))


def kind_by_kernel_function(sample: ThreadSample) -> WaitKind:
    """All there is where the kernel does not show system calls; a page fault shows no call either."""
    known = next((kind for prefix, kind in SLEEPS_IN.items() if sample.wchan.lstrip("_").startswith(prefix.lstrip("_"))), None)
    return known or (WaitKind.DISK if sample.state == "D" else WaitKind.OTHER)


def _wait_in_call(process: Process, sample: ThreadSample, call: Call) -> Wait:
    known = [each for number in call.descriptors if (each := process.descriptor(number)) is not None]
    outside = [each for each in known if not _is_own_pair(process, each)]
    if known and not outside and call.name in SELECTS:
        return Wait(WaitKind.EVENT_LOOP, call.name, limit_s=call.limit_s)
    descriptor = next(iter(outside or known), None)
    return Wait(_kind(sample, call, descriptor), call.name, descriptor, call.path, call.futex, call.limit_s)


def _is_own_pair(process: Process, descriptor: Descriptor) -> bool:
    """Both ends are its own: what asyncio wakes itself with."""
    peer = descriptor.socket.remote_inode if descriptor.socket else 0
    return peer != 0 and any(each.inode == peer for each in process.descriptors)


def _kind(sample: ThreadSample, call: Call, descriptor: Descriptor | None) -> WaitKind:
    by_kernel = kind_by_kernel_function(sample)
    if call.futex is not None:
        return WaitKind.LOCK if call.futex.private else WaitKind.SHARED_LOCK
    if call.name == "fcntl" and by_kernel is not WaitKind.OTHER:
        return by_kernel
    if call.name in BY_CALL:
        return BY_CALL[call.name]
    if call.name in ("select", "pselect6") and not call.descriptors:
        return WaitKind.SLEEP  # time.sleep() before Python 3.11
    if is_remote(call.filesystem) or (descriptor is not None and is_remote(descriptor.filesystem)):
        return WaitKind.REMOTE_FILE
    if descriptor is not None and descriptor.kind in BY_DESCRIPTOR:
        return WaitKind.FULL_PIPE if call.name in WRITES and descriptor.kind in ("pipe", "fifo") else BY_DESCRIPTOR[descriptor.kind]
    return by_kernel
