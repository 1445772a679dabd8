"""A batch as the user's batch sampler gave it, where that is no list: `__getitems__` is asked with the very thing, as torch asks it.

    batch_sampler ──▶ ndarray, tensor, range, slice … ──▶ Given: the samples one by one, and what they came as ──▶ __getitems__

1. Whoever looks at single samples sees a list. Once one of them is replaced, or moved elsewhere, it is only that.
2. What the sampler may change afterwards is copied: a list that it fills anew for every batch is as good as new ones.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from antifreeze.signals import raise_if_of_signal


class Given(list[Any]):
    """The samples of a batch; `given` is what the batch sampler gave."""

    def __init__(self, samples: Iterable[Any], given: Any) -> None:
        super().__init__(samples)
        self.given = given

    def __setitem__(self, key: Any, sample: Any) -> None:
        super().__setitem__(key, sample)
        self.given = list(self)

    def pop(self, *where: Any) -> Any:
        last = super().pop(*where)
        self.given = list(self)
        return last

    def __reduce__(self) -> Any:
        return Given, (list(self), self.given)


def taken(batch: Any) -> Any:
    """Of a batch sampler: a list of its own, a Given, or, where it is no batch at all, itself: whoever asks the data set says so."""
    if type(batch) is list:
        return batch.copy()
    if isinstance(batch, tuple) or not isinstance(batch, Iterable):
        return batch
    if isinstance(batch, Iterator):
        return list(batch)
    try:
        own = copy.deepcopy(batch)
    except Exception as error:  # what cannot be copied is used as it is
        raise_if_of_signal(error)
        own = batch
    return Given(own, own)


def as_given(indices: Any) -> Any:
    return indices.given if type(indices) is Given else indices
