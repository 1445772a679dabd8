"""A sample that never comes. Contained within `sample_timeout_s`, and the error names the line, or the system call and the file."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from antifreeze.selftest.fault import SICK, Expectation, Outcome, Sickness, fault, sample_fault
from antifreeze.selftest.trial import Numbers, Trial, first_time, row

FOREVER_S = 3600
SOON = {"sample_timeout_s": 0.8}


def hang(name: str, what: str, source: str, cause: str, **rest: Any) -> Callable[[Sickness], Sickness]:
    return sample_fault(name, what, source, error="SampleTimeout", cause=cause, options=SOON, **rest)


@hang("infinite-loop", "`while True` in `__getitem__`", "F2", cause="infinite_loop")
def infinite_loop(_: Path) -> None:
    while True:
        pass


@hang("sleep-forever", "a call that never returns", "F2, pt#165832", cause="sleep_forever")
def sleep_forever(_: Path) -> None:
    time.sleep(FOREVER_S)


class LateOnce(Numbers):
    """The first one who takes the sick sample does not come back; the second one gets it at once."""

    def __getitem__(self, index: int) -> Any:
        if index == SICK and first_time(self.folder):
            time.sleep(FOREVER_S)
        return row(index)


@fault(
    "late-sample-hedged",
    "a read that hangs once, and would not hang again: with hedge=True another worker does it",
    "issue 3 Stragglers, pt#105203",
    options={"hedge": True, "sample_timeout_s": None},
)
def late_once(trial: Trial) -> None:
    trial.epoch(trial.loader(LateOnce(trial.folder)))


def late_and(name: str, what: str, then: Callable[[], None]) -> None:
    """Some samples are late the first time; who was late is done after the second run, while the loop is still at it."""

    class Late(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index in (SICK, 31, 52) and first_time(self.folder, str(index)):
                time.sleep(0.5)
                then()
            time.sleep(0.01)
            return row(index)

    def program(trial: Trial) -> None:
        trial.epoch(trial.loader(Late(trial.folder, 120)), range(120))

    fault(name, what, "issue 3 Stragglers", options={"hedge": True})(program)


late_and("hedge-loser-comes-late", "a late sample is run a second time, and the first run ends too, later", lambda: None)
late_and("hedge-loser-dies", "a late sample is run a second time, and the first run's worker dies, later", lambda: os._exit(3))
late_and(
    "hedge-loser-raises", "a late sample is run a second time, and the first run raises, later", lambda: (_ for _ in ()).throw(OSError)
)


@hang("swallows-everything", "never returns, and catches every exception raised into it", "F2", cause="swallows_everything")
def swallows_everything(_: Path) -> None:
    while True:
        try:
            time.sleep(FOREVER_S)
        except BaseException:
            continue


@hang("ignores-sigterm", "never returns, and ignores SIGTERM", "FIELD 5", cause="ignores_sigterm")
def ignores_sigterm(_: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(FOREVER_S)


@hang("gil-held-in-native-code", "native code waits for a lock that it holds, and keeps the GIL", "F2, issue 3 Deadlines", cause="gil_held")
def gil_held(_: Path) -> None:
    mutex = ctypes.create_string_buffer(64)
    for _twice in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


@hang("pathological-regex", "a regular expression that takes centuries", "F2", cause="pathological_regex")
def pathological_regex(_: Path) -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")


@contextmanager
def fifo(trial: Trial, mode: int | None = None) -> Iterator[None]:
    os.mkfifo(trial.folder / "never.fifo")
    held = None if mode is None else os.open(trial.folder / "never.fifo", mode)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


@hang("fifo-read", "opens a FIFO that nobody writes to", "F3", cause=r"never\.fifo|fifo_read", during=fifo)
def fifo_read(folder: Path) -> None:
    (folder / "never.fifo").read_bytes()


def open_fifo(trial: Trial) -> AbstractContextManager[None]:
    return fifo(trial, os.O_RDWR)


@hang(
    "blocked-read", "read() of a file that never delivers", "F3, pt#165832", cause=r"read.*never\.fifo|never\.fifo.*read", during=open_fifo
)
def blocked_read(folder: Path) -> None:
    with open(folder / "never.fifo", "rb", buffering=0) as file:
        file.read(1)


@contextmanager
def locked(trial: Trial) -> Iterator[None]:
    with open(trial.folder / "data.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@hang("flock", "waits for a file lock that another process holds", "F3", cause=r"flock|data\.lock", during=locked)
def flock(folder: Path) -> None:
    with open(folder / "data.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@contextmanager
def listening(trial: Trial) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        (trial.folder / "port").write_text(str(server.getsockname()[1]))
        yield


@hang("socket-read", "waits for a server that never answers", "F3, s3fs#914", cause="socket|recv|socket_read", during=listening)
def socket_read(folder: Path) -> None:
    with socket.create_connection(("127.0.0.1", int((folder / "port").read_text()))) as connection:
        connection.recv(1)


@hang("waits-for-child-process", "waits for a program that never ends", "F2", cause="waits_for_child|wait")
def waits_for_child(_: Path) -> None:
    subprocess.run(["sleep", str(FOREVER_S)], check=False)


@hang("stopped-worker", "the sample stops its worker (SIGSTOP)", "FIELD 6: kill -STOP", cause="stopped|SIGSTOP")
def stopped(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@contextmanager
def stdout_to_pipe(_: Trial) -> Iterator[None]:
    reading, writing = os.pipe()
    before = os.dup(1)
    os.dup2(writing, 1)
    try:
        yield
    finally:
        os.dup2(before, 1)
        for descriptor in (reading, writing, before):
            os.close(descriptor)


@hang("full-stdout", "prints into a pipe that nobody reads", "F3", cause="write|full_stdout", during=stdout_to_pipe)
def full_stdout(_: Path) -> None:
    while True:
        os.write(1, b"x" * 4096)


@hang(
    "blocks-all-signals",
    "never returns, and blocks every signal that would tell where it is",
    "issue 3 Deadlines",
    cause="sleep|system call",
)
def blocks_all_signals(_: Path) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(FOREVER_S)


class TakesLock(Numbers):
    """One worker takes the lock and keeps it; the sick sample waits for it in whichever worker it comes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lock = multiprocessing.get_context("fork").Lock()

    def __getitem__(self, index: int) -> Any:
        if index in (0, SICK):
            self.lock.acquire()
        return row(index)


@fault(
    "lock-held-by-another-worker",
    "waits for a multiprocessing.Lock that another worker keeps",
    "F1, birdnet#73",
    Expectation((Outcome.ERROR,), "SampleTimeout", "hangs.py|acquire|lock", names_sample=True),
    confined=True,
    options=SOON,
)
def lock_of_another_worker(trial: Trial) -> None:
    trial.epoch(trial.loader(TakesLock(trial.folder)))


MODULE_LOCK = threading.Lock()


class UsesModuleLock(Numbers):
    def __getitem__(self, index: int) -> Any:
        with MODULE_LOCK:
            return row(index)


@fault(
    "lock-inherited-by-fork",
    "a thread of the parent holds a module's lock while workers are forked",
    "F1, pt#1355, ultralytics#26085",
    Expectation(said=r"for a lock or another thread in sample \d+ of batch \d+"),
    limit_s=30,
    options=SOON,
)
def lock_inherited(trial: Trial) -> None:
    with held_by_thread(MODULE_LOCK):
        trial.epoch(trial.loader(UsesModuleLock(trial.folder)))


@contextmanager
def held_by_thread(lock: threading.Lock) -> Iterator[None]:
    taken, enough = threading.Event(), threading.Event()

    def keep() -> None:
        with lock:
            taken.set()
            enough.wait(FOREVER_S)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    taken.wait(5)
    try:
        yield
    finally:
        enough.set()
        thread.join(5)


class HasLock(Numbers):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.guard = threading.Lock()

    def __getitem__(self, index: int) -> Any:
        with self.guard:
            return row(index)


@fault(
    "lock-in-data-set-inherited",
    "the same with a lock inside the data set, which no pickle can move",
    "F1, F6, wandb#12079",
    Expectation((Outcome.FINISHED, Outcome.ERROR), cause=r"guard|hangs\.py|lock"),
    options={**SOON, "max_restarts_per_minute": 4},
)
def lock_in_dataset(trial: Trial) -> None:
    dataset = HasLock(trial.folder)
    with held_by_thread(dataset.guard):
        trial.epoch(trial.loader(dataset))


class StopsOnce(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == SICK and first_time(self.folder):
            os.kill(os.getpid(), signal.SIGSTOP)
        return row(index)


@fault(
    "worker-stopped-once",
    "somebody stops one worker; no sample is to blame",
    "FIELD 6: kill -STOP; issue 3 chaos run",
    options={"sample_timeout_s": 0.5},  # sooner than a worker is asked whether it was stopped
)
def worker_stopped_once(trial: Trial) -> None:
    trial.epoch(trial.loader(StopsOnce(trial.folder)))


class Slow(Numbers):
    """The sick sample takes `slow_s`, every other one `fast_s`."""

    def __init__(self, folder: Path, slow_s: float, fast_s: float) -> None:
        super().__init__(folder)
        self.slow_s, self.fast_s = slow_s, fast_s

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.slow_s if index == SICK else self.fast_s)
        return row(index)


@fault("one-slow-sample", "one sample takes a hundred times as long", "pt#105203", options={"sample_timeout_s": 5.0})
def one_slow_sample(trial: Trial) -> None:
    trial.epoch(trial.loader(Slow(trial.folder, 1.0, 0.01)))


@fault(
    "slow-but-honest",
    "one sample takes long; the loop is told which one, and waits for it",
    "pt#43502, issue 3 Deadlines",
    Expectation(said=rf"(sample|index)\D{{0,20}}{SICK}\b"),
    options={"sample_timeout_s": 30.0, "stall_report_s": 0.4},
)
def slow_but_honest(trial: Trial) -> None:
    trial.epoch(trial.loader(Slow(trial.folder, 1.6, 0.0)))


@fault(
    "all-samples-slow",
    "every sample takes longer than the deadline was meant for",
    "issue 3 Deadlines: adapts upward",
    options={"sample_timeout_s": 1.0},
)
def all_slow(trial: Trial) -> None:
    trial.epoch(trial.loader(Slow(trial.folder, 0.3, 0.3)))
