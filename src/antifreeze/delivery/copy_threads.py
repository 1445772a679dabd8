"""Whether all of torch's threads make the loop's own copies, where it loads without workers (num_workers=0): large rows into a slot, and
default_collate's stack of large tensors.

1. The user's code (data set, collate function, loop) has as many threads as he gave it, and nobody sees another number: torch's setting is
   left alone. In one thread means: copied by numpy, with the same bits.
2. Threads that wait for each other are quick only while each has a core: beside other programs on two cores a row of 0.6 MB took 2 ms
   instead of 0.1. So what a batch takes is measured with one thread first, and where all of them take longer there is one again, for a
   while (OneOrAll in thread_use.py).
3. The whole batch counts, not its copies alone: where the data set has torch's threads busy too, those that rest meanwhile come late to it.
   Pictures that are cloned by the data set came three times as slowly beside others when only our copies were judged.
4. Of tensors that torch copies in one thread anyway, all this would tell nothing: they are left to it, and looked at again later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from antifreeze.delivery.thread_use import OneOrAll
from antifreeze.torch_private import SHARED_AMONG_THREADS

LOOK_AFTER_NS = 20_000_000
ASLEEP_LOOKS = 50
COPIES_MATTER_NS = 20_000
"""Less than that per batch is not looked at."""


class CopyThreads:
    def __init__(self) -> None:
        self.alone = True  # what is copied next is copied in one thread
        self._contest = OneOrAll()
        self._asleep = 0  # looks
        self._batches, self._loaded_ns = 0, 0

    def __repr__(self) -> str:
        state = f"nothing large, for {self._asleep} looks" if self._asleep else repr(self._contest)
        return f"<CopyThreads: {state}>"

    def nothing_large(self) -> None:
        """There was nothing that torch would copy in several threads."""
        self.alone, self._asleep = False, ASLEEP_LOOKS

    def add(self, loaded_ns: int) -> None:
        """One more batch, and what it took."""
        self._batches += 1
        self._loaded_ns += loaded_ns
        if self._loaded_ns >= LOOK_AFTER_NS:
            self._look()

    def _look(self) -> None:
        if self._asleep:
            self._asleep -= 1
        else:
            self._contest.look(self._loaded_ns / self._batches)
        self.alone = not self._asleep and not self._contest.has_all
        self._batches, self._loaded_ns = 0, 0


def has_large(samples: Any) -> bool:
    """Whether the first of them has a part that torch would copy in several threads, as far as containers that torch collates lead."""
    part = samples[0] if isinstance(samples, (list, tuple)) and samples else None
    if isinstance(part, torch.Tensor):
        return part.numel() >= SHARED_AMONG_THREADS
    if isinstance(part, np.ndarray):
        return part.size >= SHARED_AMONG_THREADS
    if isinstance(part, Mapping):
        return any(has_large((value,)) for value in part.values())
    return isinstance(part, (list, tuple)) and any(has_large((value,)) for value in part)
