"""Loaders in unusual places: daemonic processes, workers, threads, forked parents, ranks."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from antifreeze.selftest.fault import BATCH, SAMPLES, Expectation, Outcome, fault
from antifreeze.selftest.faults.hangs import Slow
from antifreeze.selftest.faults.iterables import Stream
from antifreeze.selftest.trial import Numbers, Trial, row


def noting_errors(trial: Trial, body: Callable[[], None]) -> Callable[[], None]:
    """For a body that runs in a thread or another process: what it raises is the trial's error."""

    def run() -> None:
        try:
            body()
        except BaseException as error:
            trial.failed(error)

    return run


def in_process(trial: Trial, body: Callable[[], None], daemon: bool) -> None:
    process = multiprocessing.get_context("fork").Process(target=noting_errors(trial, body), daemon=daemon)
    process.start()
    process.join(60)


@fault("in-daemonic-process", "a loader inside a daemonic process", "FIELD 6: pt#15950, FIELD 1.28")
def in_daemon(trial: Trial) -> None:
    in_process(trial, lambda: trial.epoch(trial.loader(trial.numbers())), daemon=True)


class Nested(Numbers):
    """Every sample comes from a loader of its own."""

    def __init__(self, folder: Path, loader_class: Any) -> None:
        super().__init__(folder, 4)
        self.loader_class = loader_class

    def __getitem__(self, index: int) -> Any:
        inner = self.loader_class(Numbers(self.folder), batch_size=None, num_workers=1)
        return row([int(one[0]) for one in inner][index])


@fault("loader-within-worker", "a worker uses a loader with workers", "FIELD 1.28, anomalib#3016")
def nested(trial: Trial) -> None:
    trial.epoch(trial.loader(Nested(trial.folder, trial.loader_class), num_workers=1), range(4))


def in_thread(trial: Trial, body: Callable[[], None]) -> None:
    thread = threading.Thread(target=noting_errors(trial, body))
    thread.start()
    thread.join(60)


@fault("in-thread", "a loader made and used in a thread", "F1")
def in_a_thread(trial: Trial) -> None:
    in_thread(trial, lambda: trial.epoch(trial.loader(trial.numbers())))


@fault(
    "started-by-thread-that-ended",
    "the thread that started the workers ends, and another goes on",
    "FIELD 1.15",
)
def thread_ended(trial: Trial) -> None:
    made: list[Any] = []
    loader = trial.loader(trial.numbers(64))
    trial.plan(range(64))

    def begin() -> None:
        made.append(iter(loader))
        trial.drain(made[0], 2)

    in_thread(trial, begin)
    time.sleep(0.3)
    trial.drain(made[0])


@fault("two-threads-two-loaders", "two threads, each with its loader", "FIELD 1.1b")
def two_threads(trial: Trial) -> None:
    bodies = [noting_errors(trial, lambda: trial.epoch(trial.loader(trial.numbers()))) for _ in range(2)]
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


@fault("parent-forks-mid-epoch", "the user forks the parent mid-epoch; the child must not take or break anything", "issue 3 Stopping")
def forked_parent(trial: Trial) -> None:
    trial.plan(range(64))
    iterator: Any = iter(trial.loader(trial.numbers(64)))
    trial.drain(iterator, 3)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(Exception):
            trial.drain(iterator, 2)
        del iterator
        gc.collect()
        os._exit(0)
    wait_for(child, 10)
    trial.drain(iterator)


def wait_for(child: int, seconds: float) -> None:
    """A child that is not over by then is frozen, and must not freeze this program."""
    deadline_s = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline_s:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError("the forked child hangs in next(), or in dropping the iterator")
        time.sleep(0.02)


@fault(
    "parent-starts-process-mid-epoch",
    "the user starts a multiprocessing.Process mid-epoch, which ends in the usual way",
    "issue 3 Stopping",
)
def starts_process(trial: Trial) -> None:
    trial.plan(range(64))
    iterator = iter(trial.loader(trial.numbers(64)))
    trial.drain(iterator, 3)
    in_process(trial, lambda: print(gc.collect()), daemon=False)
    trial.drain(iterator)


class Torn(Numbers):
    """Has its first four samples bad, and so one full batch less."""

    def __getitem__(self, index: int) -> Any:
        if index < BATCH:
            raise ValueError("the picture is torn")
        return super().__getitem__(index)


def rank(trial: Trial, number: int, dataset: Any, batches: int) -> None:
    """A rank that has one batch less leaves the other one waiting in a collective it never joins. The first batches are counted."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{trial.folder}/store", rank=number, world_size=2)
    loader = trial.loader(dataset, num_workers=1)
    for done, _ in enumerate(loader):
        trial.got(None, lambda _: [f"rank {number}"] if done < batches else [])  # noqa: B023
        torch.distributed.all_reduce(torch.ones(1))
    trial.report(loader)
    (trial.folder / f"done-{number}").touch()
    while not (trial.folder / f"done-{1 - number}").exists():
        time.sleep(0.05)  # what a real rank does: the next epoch's collective
    torch.distributed.destroy_process_group()


def two_ranks(trial: Trial, second: Any, batches: int, first: Any = None) -> None:
    trial.plan([*["rank 0"] * batches, *["rank 1"] * batches])
    context = multiprocessing.get_context("fork")
    bodies = [lambda: rank(trial, 0, trial.numbers(16) if first is None else first, batches), lambda: rank(trial, 1, second, batches)]
    ranks = [context.Process(target=noting_errors(trial, body)) for body in bodies]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(60)


@fault(
    "rank-with-one-batch-less",
    "two ranks with unequal numbers of batches: found before the collective hangs",
    "FIELD 6: pt#141069, FIELD 1.16",
    Expectation((Outcome.FINISHED, Outcome.ERROR), cause="rank", said="rank"),
)
def uneven_ranks(trial: Trial) -> None:
    two_ranks(trial, trial.numbers(12), 3)


@fault(
    "rank-with-one-batch-less-trimmed",
    'the same with uneven_ranks="trim": both ranks end together',
    "FIELD 6: pt#141069, FIELD 1.16",
    Expectation(said="rank"),
    options={"uneven_ranks": "trim"},
)
def trimmed_ranks(trial: Trial) -> None:
    two_ranks(trial, trial.numbers(12), 3)


@fault(
    "rank-with-one-batch-less-padded",
    'the same with uneven_ranks="pad": the shorter one repeats a batch',
    "FIELD 6: pt#141069, FIELD 1.16",
    Expectation((Outcome.FINISHED, Outcome.ERROR), cause="rank", said="rank"),
    options={"uneven_ranks": "pad"},
)
def padded_ranks(trial: Trial) -> None:
    two_ranks(trial, trial.numbers(12), 4)


@fault(
    "streams-of-different-lengths",
    "two ranks with iterable data sets of which one ends earlier: found before the collective hangs",
    "FIELD 1.16, datasets#6623",
    Expectation((Outcome.FINISHED, Outcome.ERROR), cause="rank", said="rank"),
)
def uneven_streams(trial: Trial) -> None:
    two_ranks(trial, Stream(trial.folder, 12), 3, Stream(trial.folder, 16))


@fault(
    "streams-of-different-lengths-trimmed",
    'the same with uneven_ranks="trim": both ranks end together',
    "FIELD 1.16, datasets#6623",
    Expectation(said="rank"),
    options={"uneven_ranks": "trim"},
)
def trimmed_streams(trial: Trial) -> None:
    two_ranks(trial, Stream(trial.folder, 12), 3, Stream(trial.folder, 16))


@fault(
    "streams-of-different-lengths-padded",
    'the same with uneven_ranks="pad": the shorter one repeats a batch',
    "FIELD 1.16, datasets#6623",
    Expectation((Outcome.FINISHED, Outcome.ERROR), cause="rank", said="rank"),
    options={"uneven_ranks": "pad"},
)
def padded_streams(trial: Trial) -> None:
    two_ranks(trial, Stream(trial.folder, 12), 4, Stream(trial.folder, 16))


def validating_rank(trial: Trial, number: int) -> None:
    """Rank 0 goes over a loader of its own while the other one waits for it at a barrier."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{trial.folder}/store", rank=number, world_size=2)
    for _ in range(2):
        if number == 0:
            for _ in trial.loader(trial.numbers(8), num_workers=1):
                trial.got(None, lambda _: ["rank 0"])
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@fault("rank-iterates-alone", "one of two ranks validates while the other one waits for it: nobody waits for ever", "issue 3 Silent traps")
def alone(trial: Trial) -> None:
    trial.plan(["rank 0"] * 4)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=noting_errors(trial, lambda one=one: validating_rank(trial, one))) for one in range(2)]  # type: ignore[misc]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(60)


@fault(
    "rank-with-bad-samples",
    "one of two ranks skips four samples: its batches do not become fewer",
    "issue 3 Bad samples",
    Expectation((Outcome.FINISHED, Outcome.ERROR), cause="rank"),
    options={"on_bad_sample": "skip"},
)
def rank_skips(trial: Trial) -> None:
    two_ranks(trial, Torn(trial.folder, 16), 4)


@fault(
    "without-stderr",
    "stderr is closed (a daemon's), and a stall is reported: what is printed is no part of a batch",
    "F8, issue 3 Deadlines",
    options={"stall_report_s": 0.2},
)
def without_stderr(trial: Trial) -> None:
    kept = os.dup(2)
    os.close(2)
    try:
        trial.plan(range(SAMPLES))
        for batch in list(trial.loader(Slow(trial.folder, 1.0, 0.0))):
            trial.got(batch)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
