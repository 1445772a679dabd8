"""`cached(…).fill()`: every sample that is missing read once, through our own loader; only what could not be kept comes back."""

from __future__ import annotations

import os
import time
from collections import Counter
from functools import partial
from typing import Any

import torch
from torch.utils.data import Subset

from antifreeze.caching.files import Files
from antifreeze.errors import OptionError
from antifreeze.loader import DataLoader
from antifreeze.options import OnBadSample
from antifreeze.saying import say

_TOLD_EVERY_S = 10.0
_AT_A_TIME = 32
_USUAL: dict[str, Any] = {"on_bad_sample": OnBadSample.RAISE, "quarantine": os.devnull, "uneven_ranks": "ignore"}
_NOT_CHOSEN = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "collate_fn", "generator")


def fill(dataset: Any, files: Files, num_workers: int | str, progress: bool, options: dict[str, Any]) -> int:
    refused = [name for name in _NOT_CHOSEN if name in options]
    if refused:
        raise OptionError(
            f"fill: {', '.join(refused)} cannot be chosen: every sample that is missing is read once\n  what to do: leave it out"
        )
    dataset.take_refused()  # of before
    missing = files.missing()
    told = _Told(len(dataset) - len(missing), len(dataset)) if progress else None
    why: Counter[str] = Counter()
    first: dict[str, int] = {}
    loader = DataLoader(
        Subset(dataset, missing),
        batch_size=_AT_A_TIME,
        num_workers=num_workers,
        collate_fn=partial(_refused, dataset),
        generator=torch.Generator(),  # or the base seed would be drawn from the user's
        **_USUAL | options,
    )
    with loader:
        for done, not_kept in loader:
            for index, reason in not_kept:
                why[reason] += 1
                first[reason] = min(index, first.get(reason, index))
            if told is not None:
                told.go_on(done)
    samples, size = files.held()
    for reason, count in why.most_common():
        say(f"{count:,} samples could not be kept: {reason} (sample {first[reason]}, say)")
    if progress:
        say(f"{samples:,} of {len(dataset):,} samples are in {files.folder}, {size:,} bytes")
    return samples


def _refused(dataset: Any, samples: list[Any]) -> tuple[int, list[tuple[int, str]]]:
    """In the worker, beside the copy of the data set that has just loaded them."""
    return len(samples), dataset.take_refused()


class _Told:
    def __init__(self, there: int, samples: int) -> None:
        self._there, self._samples = there, samples
        self._done = 0
        self._began_s = self._told_s = time.monotonic()

    def go_on(self, done: int) -> None:
        self._done += done
        now_s = time.monotonic()
        if now_s - self._told_s > _TOLD_EVERY_S:
            self._told_s = now_s
            left_s = (now_s - self._began_s) / self._done * (self._samples - self._there - self._done)
            say(f"{self._there + self._done:,} of {self._samples:,} samples are read, {left_s:,.0f} s to go")
