"""An epoch's order as whole arrays: what torch's own samplers give one number at a time, at no cost per sample.

1. `order_of` knows RandomSampler (without replacement) and SequentialSampler, exactly these types; it draws what they draw, in the
   same order, and leaves a generator of the user's as they leave it. Once per process that is shown against torch's own code:
   where it does not hold (another torch), and for every other sampler, the sampler itself is asked.
2. An ArrayOrder is an iterator like the sampler's, which can also give and pass over many indices at once.
"""

from __future__ import annotations

import array
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler, SequentialSampler

_SEQUENTIAL_PIECE = 1 << 16


class ArrayOrder(Iterator[int]):
    def __init__(self, pieces: Iterator[Any]) -> None:
        self._pieces = pieces
        self._piece: Any = np.empty(0, dtype=np.int64)
        self._at = 0

    def take(self, count: int) -> array.array[int]:
        """The next `count` indices; fewer at the end."""
        taken = array.array("q", self._piece[self._at : self._at + count].tobytes())
        self._at += len(taken)
        count -= len(taken)
        while count and self._next_piece():
            part = self._piece[:count]
            taken.frombytes(part.tobytes())
            self._at = len(part)
            count -= len(part)
        return taken

    def skip(self, count: int) -> None:
        while count:
            step = min(count, len(self._piece) - self._at)
            self._at += step
            count -= step
            if count and not self._next_piece():
                return

    def __next__(self) -> int:
        taken = self.take(1)
        if not taken:
            raise StopIteration
        return taken[0]

    def _next_piece(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._piece, self._at = piece, 0
        return True


def order_of(sampler: Any) -> ArrayOrder | None:
    """The order this sampler would give now; None where only the sampler itself can tell."""
    if type(sampler) is SequentialSampler:
        return ArrayOrder(_sequential(sampler))
    if type(sampler) is RandomSampler and not sampler.replacement and _draws_as_torch():
        return ArrayOrder(_random(sampler))
    return None


def _sequential(sampler: Any) -> Iterator[Any]:
    samples = len(sampler.data_source)
    for first in range(0, samples, _SEQUENTIAL_PIECE):
        yield np.arange(first, min(first + _SEQUENTIAL_PIECE, samples), dtype=np.int64)


def _random(sampler: Any) -> Iterator[Any]:
    samples, generator = len(sampler.data_source), sampler.generator
    if generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        generator = torch.Generator().manual_seed(seed)
    for _ in range(sampler.num_samples // samples):
        yield torch.randperm(samples, generator=generator).numpy()
    rest = sampler.num_samples % samples
    if rest or sampler.generator is not None:  # torch draws one more permutation: a generator of the user's is moved by it
        yield torch.randperm(samples, generator=generator).numpy()[:rest]


@lru_cache(maxsize=1)
def _draws_as_torch() -> bool:
    for asked in (5, 12):
        theirs, ours = torch.Generator().manual_seed(asked), torch.Generator().manual_seed(asked)
        expected = list(RandomSampler(range(5), num_samples=asked, generator=theirs))
        drawn = list(ArrayOrder(_random(RandomSampler(range(5), num_samples=asked, generator=ours))))
        if drawn != expected or not torch.equal(theirs.get_state(), ours.get_state()):
            return False
    state = torch.default_generator.get_state()
    expected = list(RandomSampler(range(9)))
    moved = torch.default_generator.get_state()
    torch.default_generator.set_state(state)
    drawn = list(ArrayOrder(_random(RandomSampler(range(9)))))
    agree = drawn == expected and torch.equal(moved, torch.default_generator.get_state())
    torch.default_generator.set_state(state)
    return agree
