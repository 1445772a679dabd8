"""What the loop does with batches and iterators: keep all, go on after an error, mix loaders, start again."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antifreeze.selftest.fault import BATCH, SAMPLES, SICK, Expectation, Outcome, Sickness, fault
from antifreeze.selftest.trial import Numbers, Sick, Trial, row

FAILED_BATCH = range(SICK // BATCH * BATCH, SICK // BATCH * BATCH + BATCH)


@fault("all-batches-kept", "`list(loader)`: every batch is kept, and checked again at the end", "FIELD 1.4, pt#11201")
def all_kept(trial: Trial) -> None:
    trial.plan(range(400))
    for batch in list(trial.loader(trial.numbers(400))):
        trial.got(batch)


@fault("kept-across-epochs", "batches of the first epoch are kept through the second, and changed", "F8")
def kept_across(trial: Trial) -> None:
    loader = trial.loader(trial.numbers())
    first = list(loader)
    for batch in loader:
        batch.zero_()
    trial.plan(range(SAMPLES))
    for batch in first:
        trial.got(batch)


@fault("kept-after-loader-is-gone", "batches outlive their loader", "F8")
def outlive(trial: Trial) -> None:
    kept = list(trial.loader(trial.numbers()))
    time.sleep(0.2)
    trial.plan(range(SAMPLES))
    for batch in kept:
        trial.got(batch)


def go_on(trial: Trial, loader: Any, failed: range = FAILED_BATCH) -> None:
    """Catch the error and call next again: only the failed batch may be missing, and the error names what it held."""
    trial.plan(range(SAMPLES))
    iterator = iter(loader)
    errors = 0
    while errors < 3:
        try:
            batch = next(iterator)
        except StopIteration:
            break
        except Exception as error:
            trial.caught(error, failed)
            errors += 1
            continue
        trial.got(batch)
    trial.report(loader)


def torn(_: Path) -> Any:
    raise ValueError("the picture is torn")


def killing(_: Path) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def sleeping(_: Path) -> Any:
    time.sleep(3600)


def going_on(name: str, what: str, source: str, sickness: Sickness) -> None:
    def program(trial: Trial) -> None:
        go_on(trial, trial.loader(Sick(trial.folder, sickness)))

    said = r"\b(sample|index|samples|indices)\b[^\n]{0,40}?\b13\b"
    fault(name, what, source, Expectation(said=said), options={"sample_timeout_s": 0.8})(program)


going_on("next-after-exception", "the loop catches the exception and calls next again", "issue 3 Carrying on", torn)
going_on("next-after-death", "the loop catches the worker's death and calls next again", "FIELD 5: torch lost 2 of 32 silently", killing)
going_on("next-after-timeout", "the loop catches the timeout and calls next again", "issue 3 Carrying on", sleeping)


@fault("two-loaders-interleaved", "two loaders, one batch of each in turn", "FIELD 1.1b")
def interleaved(trial: Trial) -> None:
    trial.plan([*range(SAMPLES), *range(SAMPLES)])
    for one, other in zip(trial.loader(trial.numbers()), trial.loader(trial.numbers()), strict=True):
        trial.got(one)
        trial.got(other)


@fault("two-iterators-of-one-loader", "two iterators of one loader at once", "F7")
def two_iterators(trial: Trial) -> None:
    loader = trial.loader(trial.numbers())
    trial.plan([*range(SAMPLES), *range(SAMPLES)])
    for one, other in zip(loader, loader, strict=True):
        trial.got(one)
        trial.got(other)


@fault("loader-within-loop", "a validation loader runs in full inside the training loop", "FIELD 1.1b, FIELD 1.25")
def nested_loops(trial: Trial) -> None:
    validation = trial.loader(trial.numbers(8))
    trial.plan([*range(SAMPLES), *list(range(8)) * 2])
    for number, batch in enumerate(trial.loader(trial.numbers())):
        trial.got(batch)
        if number % 3 == 1:
            trial.drain(iter(validation))


@fault("second-training", "a second loader in the same process after a broken first one", "FIELD 6: ultralytics#18697")
def second_training(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers()), batches=1)
    trial.epoch(trial.loader(trial.numbers()))


@fault("next-after-the-end", "next() after the epoch's end: StopIteration again, at once", "F7")
def after_the_end(trial: Trial) -> None:
    iterator = iter(trial.loader(trial.numbers()))
    trial.plan(range(SAMPLES))
    trial.drain(iterator)
    for _ in range(3):
        trial.drain(iterator)


class Jitters(Numbers):
    """A numpy Generator made before the fork: every worker has the same."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.generator = np.random.default_rng(7)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, int(self.generator.integers(2**40))])


@fault(
    "generator-made-before-fork",
    "a numpy Generator made before the fork gives every worker the same numbers",
    "B3, pt#5059",
    Expectation(said="generator|random"),
)
def generator_before_fork(trial: Trial) -> None:
    seen: list[int] = []

    def read(batch: torch.Tensor) -> list[int]:
        seen.extend(batch[:, 1].tolist())
        return [int(one) for one in batch[:, 0]]

    trial.epoch(trial.loader(Jitters(trial.folder)), read=read)
    if len(set(seen)) == len(seen):
        print("the random numbers differ")


class Words(Numbers):
    def __getitem__(self, index: int) -> Any:
        return {"name": f"word {index}", "row": row(index)}


@fault("strings-and-tensors", "samples with strings, which no fixed row can hold: the control for the parcel path", "P4")
def strings(trial: Trial) -> None:
    def read(batch: dict[str, Any]) -> list[int]:
        found = trial.samples_in(batch["row"])
        if batch["name"] != [f"word {index}" for index in found]:
            trial.wrong(f"{batch['name']} came with {found}")
        return found

    trial.epoch(trial.loader(Words(trial.folder)), read=read)


@fault("healthy", "no fault at all: the control", "every row needs one")
def healthy(trial: Trial) -> None:
    loader = trial.loader(trial.numbers())
    for _ in range(2):
        trial.epoch(loader)


@fault(
    "loader-timeout",
    "torch's own `timeout` with a sample that hangs: the error says which worker and sample",
    "pt#43502, pt#165832",
    Expectation((Outcome.ERROR,), "LoaderTimeout", "sleeping", names_sample=True),
)
def loader_timeout(trial: Trial) -> None:
    trial.epoch(trial.loader(Sick(trial.folder, sleeping), timeout=1))


@fault("abandoned-iterators", "twenty iterators begun and dropped", "FIELD 1.13, pt#39869")
def abandoned(trial: Trial) -> None:
    for _ in range(20):
        loader = trial.loader(trial.numbers())
        trial.plan(range(BATCH))
        for batch in itertools.islice(loader, 1):
            trial.got(batch)


@fault(
    "drop-last-with-skip",
    "a bad sample is skipped, and drop_last forbids short batches: the last sample takes its place, and what is left is dropped",
    "issue 3 Bad samples",
    Expectation(said="sample 13"),
    options={"on_bad_sample": "skip"},
)
def drop_last(trial: Trial) -> None:
    trial.epoch(trial.loader(Sick(trial.folder, torn), drop_last=True), [*range(SICK), *range(SICK + 1, 20), SAMPLES - 1])
