"""Run as a program: this system without what another system does not have, then a loader on it.

python elsewhere.py macos|windows
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import warnings

import numpy as np  # noqa: F401 - these look for what they need while it is still there
import torch
import torch.utils.data

GONE = {
    "macos": {
        os: ["memfd_create", "pidfd_open", "sched_getaffinity", "sched_setaffinity", "eventfd"],
        select: ["epoll", "EPOLLIN", "EPOLLHUP"],
        socket: ["MSG_CMSG_CLOEXEC"],
        signal: ["SIGRTMAX", "SIGRTMIN", "sigtimedwait"],
    },
}
GONE["windows"] = {
    os: [
        *GONE["macos"][os],
        *("fork", "register_at_fork", "setpgid", "getpgid", "killpg", "waitid", "P_PIDFD", "WEXITED", "sysconf", "O_CLOEXEC", "getuid"),
        *("O_NONBLOCK", "O_ASYNC", "WNOHANG", "WNOWAIT", "geteuid", "set_blocking", "posix_spawn", "sched_yield", "setsid", "mkfifo"),
    ],
    select: [*GONE["macos"][select], "poll", "POLLIN", "POLLHUP"],
    socket: [
        "AF_UNIX",
        "SOCK_SEQPACKET",
        "SCM_RIGHTS",
        "CMSG_SPACE",
        "CMSG_LEN",
        "MSG_DONTWAIT",
        "MSG_CMSG_CLOEXEC",
        "send_fds",
        "recv_fds",
    ],
    signal: [
        *("SIGRTMAX", "SIGRTMIN", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGHUP", "SIGBUS", "SIGALRM"),
        *("pthread_sigmask", "SIG_UNBLOCK", "SIG_BLOCK", "SIG_SETMASK", "sigtimedwait", "setitimer", "alarm"),
    ],
}
NO_MODULES = {"macos": [], "windows": ["fcntl", "resource", "grp", "pwd", "termios"]}


class Squares(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor(index * index), index

    def __len__(self) -> int:
        return 10


class Counting(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(range(6))


def main(system: str) -> None:
    for module, names in GONE[system].items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in NO_MODULES[system]:
        sys.modules[name] = None  # type: ignore[assignment]
    import antifreeze

    for name in antifreeze.__all__:
        getattr(antifreeze, name)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for workers in (0, 2) if system == "macos" else (0,):
            for dataset in (Squares(), Counting()):
                ours = list(antifreeze.DataLoader(dataset, batch_size=4, num_workers=workers))
                theirs = list(torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=workers))
                assert repr(ours) == repr(theirs), (ours, theirs)
        workers = "auto" if system == "macos" else 0
        with antifreeze.DataLoader(Squares(), batch_size=4, num_workers=workers, on_bad_sample="skip") as loader:
            list(loader)
            print(repr(loader), loader.report())
            try:
                loader.state_dict()
            except antifreeze.StateMismatch as error:
                print("refused:", error)
        loader.close()
    for warning in said:
        print("warned:", warning.message)


if __name__ == "__main__":
    main(sys.argv[1])
