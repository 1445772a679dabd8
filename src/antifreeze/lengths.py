"""`lengths_of`: how long every sample of a data set is, measured once by loading them, for BatchesByLength.

1. Samples are loaded and measured in workers; only numbers come back. What hangs, dies or raises there is dealt with as in any loader.
2. Every sample has its length at its place, or there is none at all: a bad sample is an error here, also under `antifreeze run`.
3. Long work is told about every few seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from antifreeze.batching.fields import bad_row, length_of
from antifreeze.errors import OptionError
from antifreeze.loader import DataLoader
from antifreeze.options import OnBadSample
from antifreeze.saying import say
from antifreeze.signals import came_from_signal

_TOLD_EVERY_S = 10.0
_AT_A_TIME = 256
_EVERY_SAMPLE: dict[str, Any] = {"on_bad_sample": OnBadSample.RAISE, "quarantine": os.devnull, "uneven_ranks": "ignore"}
"""Whatever `antifreeze run` chose for loaders that say what is the default anyway; one rank may measure for all."""
_NOT_CHOSEN = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "collate_fn", *_EVERY_SAMPLE)


def lengths_of(
    dataset: Any, length: Callable[[Any], int] | str | int | None = None, *, num_workers: int | str = "auto", **options: Any
) -> Any:
    """An array with the length of every sample, in the order of the data set; keep it (`numpy.save`) if loading takes long.

    length       a function that gives a sample's length, or the name of the field whose size it is; default: its first array
    num_workers, options   as for DataLoader (`sample_timeout_s`, `memory_budget` …)
    """
    if isinstance(dataset, IterableDataset):
        raise OptionError("lengths_of: an iterable data set cannot be measured beforehand; StreamByLength makes batches of it as it comes")
    refused = [name for name in _NOT_CHOSEN if name in options]
    if refused:
        raise OptionError(
            f"lengths_of: {', '.join(refused)} cannot be chosen: every sample is measured once, in the order of the data set\n"
            "  what to do: leave it out; a sample that is bad must not be in the data set (torch.utils.data.Subset), or has no length"
        )
    measure = partial(_measured, length=length)
    found: list[Any] = []
    began_s = told_s = time.monotonic()
    with DataLoader(dataset, batch_size=_AT_A_TIME, num_workers=num_workers, collate_fn=measure, **_EVERY_SAMPLE, **options) as loader:
        for batch in loader:
            found.append(batch.numpy().copy())
            now_s = time.monotonic()
            if now_s - told_s > _TOLD_EVERY_S:
                told_s = now_s
                say(_progress(sum(map(len, found)), len(dataset), now_s - began_s))
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _measured(samples: list[Any], length: Callable[[Any], int] | str | int | None) -> torch.Tensor:
    found = torch.empty(len(samples), dtype=torch.int64)
    for row, sample in enumerate(samples):
        try:
            found[row] = length_of(sample, length)
        except Exception as error:
            if came_from_signal(error) or (isinstance(error, OptionError) and not row):  # then it is no sample's fault
                raise
            raise bad_row(row, f"its length cannot be told: {type(error).__name__}: {error}") from error
    return found


def _progress(done: int, samples: int, took_s: float) -> str:
    return f"lengths of {done:,} of {samples:,} samples are known, {took_s / done * (samples - done):,.0f} s to go"
