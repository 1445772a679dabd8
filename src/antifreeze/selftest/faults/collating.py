"""The collate function is sick. It runs in the worker, so the error names the batch and the samples it was given."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

from antifreeze.selftest.fault import SICK, Expectation, Outcome, fault
from antifreeze.selftest.trial import Trial

SOON = {"sample_timeout_s": 0.8}


def is_sick(samples: list[torch.Tensor]) -> bool:
    return any(int(one[0]) == SICK for one in samples)


def collating(
    name: str, what: str, source: str, expected: Expectation, **rest: Any
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def register(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def program(trial: Trial) -> None:
            trial.epoch(trial.loader(trial.numbers(), collate_fn=collate))

        fault(name, what, source, expected, **rest)(program)
        return collate

    return register


@collating("collate-raises", "collate raises", "B2", Expectation((Outcome.ERROR,), "ValueError", "do not fit", names_sample=True))
def raises(samples: list[torch.Tensor]) -> Any:
    if is_sick(samples):
        raise ValueError("these do not fit")
    return torch.stack(samples)


@collating(
    "collate-hangs",
    "collate never returns",
    "F2",
    Expectation((Outcome.ERROR,), "LoadingError", "collat", names_sample=True),
    options=SOON,
)
def hangs(samples: list[torch.Tensor]) -> Any:
    while is_sick(samples):
        time.sleep(3600)
    return torch.stack(samples)


@collating("collate-kills", "collate kills the worker", "F4", Expectation((Outcome.ERROR,), "LoadingError", "SIGKILL|killed|signal 9"))
def kills(samples: list[torch.Tensor]) -> Any:
    if is_sick(samples):
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.stack(samples)


def nothing(samples: list[torch.Tensor]) -> None:
    return None


def counts(samples: list[torch.Tensor]) -> int:
    return len(samples)


@fault("collate-returns-none", "collate returns None: the loop gets its six Nones, the epoch does not end early", "F7")
def returns_none(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(), collate_fn=nothing), [None] * 6, read=lambda batch: [batch])


@fault("collate-returns-number", "collate returns a number", "F7")
def returns_number(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(), collate_fn=counts), [4] * 6, read=lambda batch: [batch])


def lazily(samples: list[torch.Tensor]) -> Any:
    return (one for one in samples)


@fault(
    "collate-returns-generator",
    "collate returns a generator, which does not pickle",
    "FIELD 6: pt#142884",
    Expectation((Outcome.ERROR,), "BatchNotPicklable|TypeError", "generator"),
)
def returns_generator(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(), collate_fn=lazily), read=list)
