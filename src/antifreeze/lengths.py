"""`lengths_of`: how long every sample of a data set is, measured once by loading them, for BatchesByLength.

1. Samples are loaded and measured in workers; only numbers come back. What hangs, dies or raises there is dealt with as in any loader.
2. Long work is told about every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from antifreeze.batching.fields import length_of
from antifreeze.errors import OptionError
from antifreeze.loader import DataLoader
from antifreeze.saying import say

_TOLD_EVERY_S = 10.0
_AT_A_TIME = 256


def lengths_of(
    dataset: Any, length: Callable[[Any], int] | str | int | None = None, *, num_workers: int | str = "auto", **options: Any
) -> Any:
    """An array with the length of every sample, in the order of the data set; keep it (`numpy.save`) if loading takes long.

    length       a function that gives a sample's length, or the name of the field whose size it is; default: its first array
    num_workers, options   as for DataLoader (`sample_timeout_s`, `memory_budget` …)
    """
    if isinstance(dataset, IterableDataset):
        raise OptionError("lengths_of: an iterable data set cannot be measured beforehand; StreamByLength makes batches of it as it comes")
    measure = partial(_measured, length=length)
    found: list[Any] = []
    began_s = told_s = time.monotonic()
    with DataLoader(dataset, batch_size=_AT_A_TIME, num_workers=num_workers, collate_fn=measure, **options) as loader:
        for batch in loader:
            found.append(batch.numpy().copy())
            now_s = time.monotonic()
            if now_s - told_s > _TOLD_EVERY_S:
                told_s = now_s
                say(_progress(len(found) * _AT_A_TIME, len(dataset), now_s - began_s))
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _measured(samples: list[Any], length: Callable[[Any], int] | str | int | None) -> torch.Tensor:
    return torch.tensor([length_of(sample, length) for sample in samples], dtype=torch.int64)


def _progress(done: int, samples: int, took_s: float) -> str:
    return f"lengths of {done:,} of {samples:,} samples are known, {took_s / done * (samples - done):,.0f} s to go"
