"""The data set does to its worker what no loader would: threads, children, forks, signals, descriptors."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antifreeze.selftest.fault import SICK, Expectation, fault
from antifreeze.selftest.trial import Numbers, Trial, row


class Does(Numbers):
    """Does something at the sick sample, and delivers it all the same."""

    def __init__(self, folder: Path, what: Callable[[], Any]) -> None:
        super().__init__(folder)
        self.what = what

    def __getitem__(self, index: int) -> Any:
        if index == SICK:
            self.what()
        return row(index)


def odd(name: str, what: str, source: str, **rest: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(action: Callable[[], Any]) -> Callable[[], Any]:
        def program(trial: Trial) -> None:
            trial.epoch(trial.loader(Does(trial.folder, action)))

        fault(name, what, source, **rest)(program)
        return action

    return register


@odd("thread-never-ends", "a worker starts a thread that never ends", "FIELD 1.34")
def thread() -> None:
    threading.Thread(target=time.sleep, args=(3600,)).start()


@odd("child-never-ends", "a worker starts a program that never ends", "FIELD 1.15")
def child() -> None:
    subprocess.Popen(["sleep", "3600"])


@odd("worker-starts-process", "a worker starts a multiprocessing.Process", "pt#15950, FIELD 1.28")
def process() -> None:
    context = multiprocessing.get_context("fork")
    inner = context.Process(target=int)
    inner.start()
    inner.join(5)


@odd("data-set-forks", "`__getitem__` forks, and the child lives on", "F4")
def forks() -> None:
    if os.fork() == 0:
        time.sleep(3600)
        os._exit(0)


@odd("forked-child-returns", "`__getitem__` forks, and the child returns into the loader as well", "F4")
def child_returns() -> None:
    os.fork()


@odd("forked-child-exits", "`__getitem__` forks, and the child leaves through the loader by SystemExit", "F4")
def child_exits() -> None:
    if os.fork() == 0:
        raise SystemExit(0)


@odd("closes-standard-streams", "a worker closes stdin, stdout and stderr", "F6")
def closes_streams() -> None:
    os.closerange(0, 3)


@odd("new-session", "a worker leaves the process group", "F6")
def new_session() -> None:
    if os.getpgid(0) == os.getpid():
        os.setpgid(0, os.getpgid(os.getppid()))


@odd("folder-changed", "a worker changes its folder", "F6")
def changes_folder() -> None:
    os.chdir("/")


def deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


class DeafAndSlow(Numbers):
    def __getitem__(self, index: int) -> Any:
        deaf()
        if index >= 8:
            time.sleep(3600)
        return row(index)


@odd("deaf-worker", "a worker ignores every signal that can be ignored", "FIELD 5: torch 40 s")
def deaf_worker() -> None:
    deaf()


@fault(
    "deaf-workers-hang-at-break",
    "workers hang and ignore SIGTERM while the loop breaks",
    "FIELD 5: torch 40 s, then frozen at exit",
    Expectation(stop_s=3.0),
)
def deaf_at_break(trial: Trial) -> None:
    trial.epoch(trial.loader(DeafAndSlow(trial.folder), num_workers=4), batches=2)
