"""A process that was just born settles in: what it has of its parent, and what ends it.

1. It ends with its parent: the lifeline is a pipe only the parent holds open, and the kernel kills this process the moment it closes,
   whatever the process is blocked on.
2. It keeps no descriptor of the parent's accelerator, and has a position of its own in files that the parent reads.
3. A worker has a process group of its own, so that what a data set starts ends with it; it ignores Ctrl-C, which is the parent's affair;
   and where memory runs out it goes first.

The clean server, the nursery and children that are asked a question (checks) use some of it, too.
"""

from __future__ import annotations

import os
import signal
import stat

import torch

from antifreeze.linux import fcntl, keep_freed_memory, wake_on_time
from antifreeze.torch_private import stack_without_shared_memory

_F_SETSIG = 10
_KEEP_FREED_BYTES = 1 << 30
_GPU_DEVICES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")


def settle_in() -> None:
    try:
        os.setpgid(0, 0)  # what a data set starts ends with its worker
    except PermissionError:
        pass  # a session leader has its own group already
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    part_descriptors()
    name_process("af_worker")
    _be_the_first_to_go()
    torch.set_num_threads(1)
    stack_without_shared_memory()
    _keep_freed_memory()
    wake_on_time()


def die_with_parent(lifeline: int) -> None:
    """The kernel sends SIGKILL to us and our group when the parent's end of the lifeline closes. (A parent-death signal would also
    fire when only the thread that started us ends.)"""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid() if os.getpgid(0) == os.getpid() else os.getpid())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    try:
        gone = os.read(lifeline, 1) == b""  # it may have closed before we asked for the signal
    except BlockingIOError:
        gone = False
    if gone:
        os._exit(0)


def part_descriptors() -> None:
    """No descriptor of the parent's accelerator stays open; and a file that the parent had open for reading is opened anew under the
    same number, so that workers do not move each other's position in it."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target, number = os.readlink(f"/proc/self/fd/{name}"), int(name)
            if target.startswith(_GPU_DEVICES):
                os.close(number)
            elif stat.S_ISREG(os.fstat(number).st_mode) and not target.startswith("/memfd:"):
                _open_anew(number)
        except OSError:
            continue


def _open_anew(number: int) -> None:
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
        return
    position, inheritable = os.lseek(number, 0, os.SEEK_CUR), os.get_inheritable(number)
    anew = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(anew, number, inheritable)
    os.close(anew)
    os.lseek(number, position, os.SEEK_SET)


def _be_the_first_to_go() -> None:
    """Where memory runs out, the kernel shall end a worker, which is replaced and named in an error, and not the training."""
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass  # a sandbox without it


def _keep_freed_memory() -> None:
    """glibc by itself raises its limits with what is freed, but still gives the top of the heap back where nothing small lies there: after
    every expression of numpy's, say, at a sixth of the speed (benchmarks/faults.py)."""
    keep_freed_memory(_KEEP_FREED_BYTES)


def name_process(name: str) -> None:
    try:
        with open("/proc/self/comm", "w") as comm:
            comm.write(name)
    except OSError:
        pass  # a name is a kindness to whoever looks at the process list
