"""Every way to stop: bounded, one traceback, and nothing left behind one second later."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch

from antifreeze.selftest.fault import SAMPLES, Expectation, Outcome, fault
from antifreeze.selftest.trial import Numbers, Trial, row

KILLED = Expectation((Outcome.DIED,), exit_codes=(-signal.SIGKILL,))
INTERRUPTED = Expectation((Outcome.DIED,), exit_codes=(-signal.SIGINT, 130, 1), tracebacks=1)


class Blocks(Numbers):
    """From sample 8 on nothing comes any more."""

    def __getitem__(self, index: int) -> Any:
        if index >= 8:
            time.sleep(3600)
        return row(index)


class BlocksDeaf(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index >= 8:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(3600)
        return row(index)


class Steady(Numbers):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return row(index)


def four_megabytes(samples: list[torch.Tensor]) -> Any:
    return [int(one[0]) for one in samples], "x" * 2**22


@fault("break", "the loop breaks mid-epoch", "FIELD 1.13, issue 3 Stopping")
def breaks(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(200)), range(200), batches=3)


@fault("break-with-hung-workers", "the loop breaks while four workers hang", "FIELD 5: torch 20 s")
def breaks_hung(trial: Trial) -> None:
    trial.epoch(trial.loader(Blocks(trial.folder), num_workers=4), batches=2)


@fault("break-persistent", "break and begin again, three times, with persistent_workers", "FIELD 1.13")
def breaks_persistent(trial: Trial) -> None:
    loader = trial.loader(trial.numbers(), persistent_workers=True)
    for _ in range(3):
        trial.epoch(loader, batches=2)
    trial.epoch(loader)


class Mine(Exception):
    pass


@fault(
    "exception-in-loop",
    "the loop itself raises while the iterator lives",
    "FIELD 6: exception in loop body",
    Expectation((Outcome.ERROR,), "Mine", "loss is nan"),
)
def raises_in_loop(trial: Trial) -> None:
    trial.plan(range(SAMPLES))
    for batch in trial.loader(trial.numbers()):
        trial.got(batch)
        raise Mine("loss is nan")


@fault("ctrl-c", "Ctrl-C while the loop waits for a batch", "pt#22924, FIELD 1.30", INTERRUPTED, uncaught=True)
def ctrl_c(trial: Trial) -> None:
    trial.ask_signal(signal.SIGINT, 0.7, group=True)
    trial.epoch(trial.loader(Blocks(trial.folder)))


@fault("ctrl-c-while-computing", "Ctrl-C while the loop computes and workers are busy", "pt#22924", INTERRUPTED, uncaught=True)
def ctrl_c_computing(trial: Trial) -> None:
    trial.ask_signal(signal.SIGINT, 0.7, group=True)
    trial.plan(range(200))
    for batch in trial.loader(Steady(trial.folder, 200)):
        trial.got(batch)
        time.sleep(0.2)


@fault(
    "ctrl-c-twice", "Ctrl-C, and again while the loader stops; workers hang and ignore SIGTERM", "FIELD 1.30", INTERRUPTED, uncaught=True
)
def ctrl_c_twice(trial: Trial) -> None:
    trial.ask_signal(signal.SIGINT, 0.7, group=True)
    trial.ask_signal(signal.SIGINT, 0.9, group=True)
    trial.epoch(trial.loader(BlocksDeaf(trial.folder)))


@fault(
    "ctrl-c-while-stopping",
    "the loop has broken off, and Ctrl-C comes while workers that hang and ignore SIGTERM are ended",
    "issue 3 Stopping",
    INTERRUPTED,
    uncaught=True,
)
def ctrl_c_stopping(trial: Trial) -> None:
    trial.plan(range(8))
    for batch in trial.loader(BlocksDeaf(trial.folder)):
        trial.got(batch)
        if int(batch[0, 0]) >= 4:
            time.sleep(0.5)  # until both workers hang
            trial.ask_signal(signal.SIGINT, 0.3, group=True)
            break
    time.sleep(5)


@fault("ctrl-c-without-group", "SIGINT to the parent alone, as a notebook sends it", "FIELD 1.30", INTERRUPTED, uncaught=True)
def ctrl_c_alone(trial: Trial) -> None:
    trial.ask_signal(signal.SIGINT, 0.7)
    trial.epoch(trial.loader(Blocks(trial.folder)))


@fault(
    "sigterm-to-parent",
    "the scheduler ends the parent with SIGTERM",
    "issue 3 Stopping",
    Expectation((Outcome.DIED,), exit_codes=(-signal.SIGTERM,)),
    uncaught=True,
)
def sigterm(trial: Trial) -> None:
    trial.ask_signal(signal.SIGTERM, 0.7)
    trial.epoch(trial.loader(Blocks(trial.folder)))


@fault(
    "sigterm-with-handler",
    "SIGTERM with the user's own handler, which raises SystemExit",
    "issue 3 Stopping",
    Expectation((Outcome.DIED,), exit_codes=(7,)),
    uncaught=True,
)
def sigterm_handler(trial: Trial) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    trial.ask_signal(signal.SIGTERM, 0.7)
    trial.epoch(trial.loader(Blocks(trial.folder)))


@fault("parent-killed-workers-sleep", "the parent is SIGKILLed while workers sleep", "FIELD 1.15, pt#6606", KILLED, uncaught=True)
def killed_sleeping(trial: Trial) -> None:
    trial.ask_signal(signal.SIGKILL, 0.7)
    trial.epoch(trial.loader(Blocks(trial.folder)))


@fault("parent-killed-workers-deaf", "the same, and workers ignore SIGTERM", "FIELD 1.15", KILLED, uncaught=True)
def killed_deaf(trial: Trial) -> None:
    trial.ask_signal(signal.SIGKILL, 0.7)
    trial.epoch(trial.loader(BlocksDeaf(trial.folder)))


@fault(
    "parent-killed-workers-send",
    "the parent is SIGKILLed while workers have large batches to send",
    "FIELD 6: EgoVerse#682",
    KILLED,
    uncaught=True,
)
def killed_sending(trial: Trial) -> None:
    loader = trial.loader(trial.numbers(2000), collate_fn=four_megabytes, prefetch_factor=4)
    trial.epoch(loader, range(2000), batches=1, read=lambda batch: list(batch[0]))
    iterator = iter(loader)
    next(iterator)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


@fault("parent-killed-workers-stopped", "the parent is SIGKILLed while a worker is stopped", "FIELD 1.15", KILLED, uncaught=True)
def killed_stopped(trial: Trial) -> None:
    iterator = iter(trial.loader(Steady(trial.folder, 200)))
    trial.plan(range(8))
    trial.drain(iterator, 2)
    for worker in trial.workers():
        os.kill(worker, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)


@fault(
    "parent-leaves-by-_exit",
    "the parent calls os._exit mid-epoch",
    "FIELD 1.15",
    Expectation((Outcome.DIED,), exit_codes=(5,)),
    uncaught=True,
)
def leaves(trial: Trial) -> None:
    iterator = iter(trial.loader(Blocks(trial.folder)))
    trial.plan(range(8))
    trial.drain(iterator, 2)
    os._exit(5)


@fault("exit-with-live-iterator", "the interpreter ends while an iterator is alive", "FIELD 6: pt#48666")
def live_at_exit(trial: Trial) -> None:
    iterator = iter(trial.loader(trial.numbers(200)))
    trial.kept.append(iterator)
    trial.plan(range(8))
    trial.drain(iterator, 2)


@fault("exit-with-hung-workers", "the same, and all workers hang and ignore SIGTERM", "FIELD 5: torch frozen at exit")
def hung_at_exit(trial: Trial) -> None:
    iterator = iter(trial.loader(BlocksDeaf(trial.folder), num_workers=4))
    trial.kept.append(iterator)
    trial.plan(range(8))
    trial.drain(iterator, 2)


@fault("exit-with-kept-batches", "the interpreter ends while batches and loader are alive", "FIELD 1.13")
def batches_at_exit(trial: Trial) -> None:
    loader = trial.loader(trial.numbers())
    trial.kept.extend([loader, *loader])
    trial.plan(())


@fault("iterator-in-cycle", "an abandoned iterator that only the garbage collector can find", "FIELD 1.13")
def in_cycle(trial: Trial) -> None:
    iterator = iter(trial.loader(trial.numbers(200)))
    trial.plan(range(4))
    trial.drain(iterator, 1)
    circle: list[Any] = [iterator]
    circle.append(circle)


@fault("loader-deleted-first", "the loader goes before its iterator", "FIELD 1.13")
def loader_first(trial: Trial) -> None:
    trial.plan(range(SAMPLES))
    trial.drain(iter(trial.loader(trial.numbers())))


@fault("sys-exit-in-loop", "the loop calls sys.exit", "FIELD 1.13", Expectation((Outcome.DIED,), exit_codes=(4,)), uncaught=True)
def exits_in_loop(trial: Trial) -> None:
    trial.plan(range(SAMPLES))
    for batch in trial.loader(trial.numbers()):
        trial.got(batch)
        sys.exit(4)


@fault("break-with-stopped-workers", "the loop breaks while all workers are stopped", "FIELD 6: kill -STOP")
def breaks_stopped(trial: Trial) -> None:
    iterator = iter(trial.loader(Steady(trial.folder, 200)))
    trial.plan(range(8))
    trial.drain(iterator, 2)
    for worker in trial.workers():
        os.kill(worker, signal.SIGSTOP)
    trial.mark()
