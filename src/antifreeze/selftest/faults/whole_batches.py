"""One sick sample among those that are fetched or collated in one call: it is found and blamed by itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from antifreeze.selftest.fault import SICK, Sickness, sample_fault
from antifreeze.selftest.trial import Sick, Trial

SOON = {"sample_timeout_s": 0.3}


class InOneCall(Sick):
    """Asked for whole batches."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def in_one_call(trial: Trial, sickness: Sickness) -> Any:
    return trial.loader(InOneCall(trial.folder, sickness))


def together(name: str, what: str, error: str, cause: str, **rest: Any) -> Callable[[Sickness], Sickness]:
    return sample_fault(name, what, "issue 3 Bad samples", error=error, cause=cause, make=in_one_call, options=SOON, **rest)


@together("getitems-raises", "`__getitems__` raises because of one sample of its batch", "ValueError", "picture is torn")
def raises(_: Path) -> NoReturn:
    raise ValueError(f"the picture is torn (sample {SICK})")


@together("getitems-kills", "`__getitems__` is killed because of one sample of its batch", "LoadingError", "SIGKILL")
def kills(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@together("getitems-crashes", "`__getitems__` leaves the process because of one sample of its batch", "LoadingError", "exit code 3")
def leaves(_: Path) -> None:
    os._exit(3)


@together("getitems-hangs", "`__getitems__` never returns because of one sample of its batch", "LoadingError", r"whole_batches\.py|hangs")
def hangs(_: Path) -> None:
    time.sleep(3600)


class GivesNone(InOneCall):
    def __getitem__(self, index: int) -> Any:
        return None if index == SICK else super().__getitem__(index)


@sample_fault(
    "getitems-gives-none",
    "`__getitems__` gives None for one sample of its batch",
    "issue 3 Bad samples",
    error="TypeError",
    cause="None",
    make=lambda trial, sickness: trial.loader(GivesNone(trial.folder, sickness)),
)
def gives_none(_: Path) -> None:
    """It is not asked."""


def with_collate(collate: Callable[[list[Any]], Any]) -> Callable[[Trial, Sickness], Any]:
    return lambda trial, sickness: trial.loader(trial.numbers(), collate_fn=collate)


def leaves_while_collating(samples: list[torch.Tensor]) -> torch.Tensor:
    if any(int(sample[0]) == SICK for sample in samples):
        os._exit(3)
    return torch.stack(samples)


@sample_fault(
    "collate-crashes-on-one-sample",
    "the collate function leaves the process because of one sample of its batch",
    "issue 3 Bad samples",
    error="LoadingError",
    cause="exit code 3",
    make=with_collate(leaves_while_collating),
)
def healthy(_: Path) -> None:
    """The data set is well."""
