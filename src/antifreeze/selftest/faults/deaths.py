"""A worker that dies. Seen at once, whatever the exit code; its work goes to another; the sample that kills again is named."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antifreeze.selftest.fault import SICK, Expectation, Outcome, Sickness, fault, sample_fault
from antifreeze.selftest.trial import Numbers, Trial, first_time, row


def death(name: str, what: str, source: str, cause: str) -> Callable[[Sickness], Sickness]:
    return sample_fault(name, what, source, error="SampleLost", cause=cause)


@death("sigkill", "the sample kills its worker, as the OOM killer does", "F4, pt#8976", cause="SIGKILL|killed|signal 9")
def sigkill(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@death("sigsegv", "native code reads address 0", "F4, pt#5301", cause="SIGSEGV|segmentation|signal 11")
def sigsegv(_: Path) -> None:
    ctypes.string_at(0)


@death("sigbus", "reads a mapped file that became shorter", "F4, pt#5040", cause="SIGBUS|bus error|signal 7")
def sigbus(folder: Path) -> None:
    with open(folder / "short", "wb+") as file:
        file.truncate(8192)
        page = mmap.mmap(file.fileno(), 8192)
        file.truncate(0)
        page[5000]


@death("sigabrt", "native code aborts", "F4", cause="SIGABRT|abort|signal 6")
def sigabrt(_: Path) -> None:
    os.abort()


@death("exit-0", "`os._exit(0)` in `__getitem__`", "F4, FIELD 5", cause=r"exit.{0,20}\b0\b")
def exit_0(_: Path) -> None:
    os._exit(0)


@death("exit-3", "`os._exit(3)` in `__getitem__`", "F4", cause=r"exit.{0,20}\b3\b")
def exit_3(_: Path) -> None:
    os._exit(3)


@sample_fault(
    "sys-exit", "`sys.exit()` in `__getitem__`", "F4, FIELD 5", error="LoadingError|RuntimeError", cause="SystemExit|sys.exit|exit"
)
def sys_exit(_: Path) -> None:
    sys.exit()


@sample_fault("out-of-memory", "an allocation fails under RLIMIT_AS", "F4, pt#5902", error="MemoryError|RuntimeError", cause="memory|alloc")
def out_of_memory(_: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**30, limits[1]))
    try:
        np.ones(2**40, dtype=np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@death("closes-all-descriptors", "the sample closes every descriptor of its worker", "F7", cause="sample 13|descriptor|channel|closed|exit")
def closes_all_descriptors(_: Path) -> None:
    os.closerange(3, 4096)


class DiesOnce(Numbers):
    """The worker's end is nobody's fault: the second try is healthy."""

    def __init__(self, folder: Path, how: Callable[[], Any], samples: tuple[int, ...] = (SICK,)) -> None:
        super().__init__(folder)
        self.how, self.samples = how, samples

    def __getitem__(self, index: int) -> Any:
        if index in self.samples and first_time(self.folder, f"once-{index}"):
            self.how()
        return row(index)


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave_quietly() -> None:
    os._exit(0)


@fault("killed-once", "a worker is killed once, in the middle of a sample", "F4, pt#59451")
def killed_once(trial: Trial) -> None:
    trial.epoch(trial.loader(DiesOnce(trial.folder, kill_me)))


@fault("left-quietly-once", "a worker leaves once with exit code 0", "F4, FIELD 5")
def left_once(trial: Trial) -> None:
    trial.epoch(trial.loader(DiesOnce(trial.folder, leave_quietly)))


@fault("killed-at-first-sample", "both workers are killed at their first sample", "F4")
def killed_at_first(trial: Trial) -> None:
    trial.epoch(trial.loader(DiesOnce(trial.folder, kill_me, (0, 4))))


@fault("killed-between-batches", "all workers are killed from outside while the loop computes", "F4, nnUNet#1887")
def killed_between(trial: Trial) -> None:
    loader = trial.loader(trial.numbers(64))
    trial.plan(range(64))
    for number, batch in enumerate(loader):
        trial.got(batch)
        if number == 3:
            for worker in trial.workers():
                os.kill(worker, signal.SIGKILL)
    trial.report(loader)


def big(samples: list[torch.Tensor]) -> Any:
    """Eight megabytes that must be sent; the alarm ends the worker somewhere on the way."""
    numbers = [int(one[0]) for one in samples]
    folder = Path(os.environ["TMPDIR"]).parent
    for number, after_s in ((4, 0.0005), (8, 0.002), (12, 0.005), (16, 0.01)):
        if number in numbers and first_time(folder, f"sent-{number}"):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, after_s)
    return {"numbers": numbers, "load": "x" * 2**23}


@fault("killed-while-sending", "workers are killed while they send a large batch", "FIELD 6: birdnet#73, FIELD 1.14")
def killed_while_sending(trial: Trial) -> None:
    loader = trial.loader(trial.numbers(), collate_fn=big)
    trial.epoch(loader, read=lambda batch: batch["numbers"])


class KillsAlways(Numbers):
    def __getitem__(self, index: int) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


@fault(
    "every-sample-kills",
    "every sample kills its worker: giving up is a designed end",
    "issue 3 Deaths",
    Expectation((Outcome.ERROR,), "LoaderGaveUp", "SIGKILL|killed|signal 9"),
    options={"max_restarts_per_minute": 6, "on_bad_sample": "skip"},
)
def every_sample_kills(trial: Trial) -> None:
    trial.epoch(trial.loader(KillsAlways(trial.folder)))


class DiesWaiting(Numbers):
    """Sleeps long enough to be killed in the middle of it."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return row(index)


@fault(
    "killed-again-and-again",
    "a worker is killed from outside after every batch",
    "F4, issue 3 chaos run",
    options={"max_restarts_per_minute": 100},
)
def killed_again(trial: Trial) -> None:
    loader = trial.loader(DiesWaiting(trial.folder))
    trial.plan(range(24))
    for batch in loader:
        trial.got(batch)
        for worker in trial.workers()[:1]:
            os.kill(worker, signal.SIGKILL)
    trial.report(loader)


class LosesBoth(Numbers):
    """Row 5 and the sick one: two different workers go at once."""

    def __getitem__(self, index: int) -> Any:
        if index in (5, SICK) and first_time(self.folder, f"once-{index}"):
            kill_me()
        return row(index)


@fault("killed-persistent-worker", "a persistent worker is killed; two more epochs follow", "F4")
def killed_persistent(trial: Trial) -> None:
    loader = trial.loader(LosesBoth(trial.folder), persistent_workers=True)
    for _ in range(3):
        trial.epoch(loader)


@fault("killed-at-start", "all workers are killed the moment they exist", "issue 3: kills at the worst moments")
def killed_at_start(trial: Trial) -> None:
    trial.plan(range(24))
    iterator = iter(trial.loader(trial.numbers()))
    kill_workers(trial)
    trial.drain(iterator)


@fault("killed-at-the-end", "all workers are killed when the last batch has come", "issue 3: kills at the worst moments")
def killed_at_end(trial: Trial) -> None:
    trial.plan(range(24))
    iterator = iter(trial.loader(trial.numbers()))
    trial.drain(iterator, 6)
    kill_workers(trial)
    trial.drain(iterator)


@fault("killed-between-epochs", "all persistent workers are killed between two epochs", "F4")
def killed_between_epochs(trial: Trial) -> None:
    loader = trial.loader(trial.numbers(), persistent_workers=True)
    trial.epoch(loader)
    kill_workers(trial)
    trial.epoch(loader)


def kill_workers(trial: Trial) -> None:
    for worker in trial.workers():
        os.kill(worker, signal.SIGKILL)


@fault("killed-out-of-order", "a worker is killed once while batches may come in any order", "F4")
def killed_out_of_order(trial: Trial) -> None:
    trial.epoch(trial.loader(DiesOnce(trial.folder, kill_me, (3, SICK)), in_order=False))


@fault("killed-without-batching", "a worker is killed once, with batch_size=None", "F4")
def killed_without_batching(trial: Trial) -> None:
    trial.epoch(trial.loader(DiesOnce(trial.folder, kill_me), batch_size=None), read=lambda one: trial.samples_in(one.unsqueeze(0)))


@fault("children-reaped-by-user", "the user's SIGCHLD handler takes every exit code, and a worker is killed once", "F4")
def reaped_by_user(trial: Trial) -> None:
    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    signal.signal(signal.SIGCHLD, reap)
    trial.epoch(trial.loader(DiesOnce(trial.folder, kill_me)))


@fault("sigchld-ignored", "the parent ignores SIGCHLD, so nobody gets an exit code, and a worker is killed once", "F4")
def sigchld_ignored(trial: Trial) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    trial.epoch(trial.loader(DiesOnce(trial.folder, kill_me)))
