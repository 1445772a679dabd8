"""An epoch's order as whole arrays: what torch's own samplers give one number at a time, at no cost per sample.

1. `order_of` knows RandomSampler (without replacement), SequentialSampler and DistributedSampler, exactly these types; it draws what
   they draw, in the same order, and leaves a generator of the user's as they leave it. Once per process that is shown against torch's
   own code: where it does not hold (another torch), and for every other sampler, the sampler itself is asked.
2. An ArrayOrder is an iterator like the sampler's, which can also give and pass over many indices at once.
3. A permutation that was drawn ahead (foresight.py) is drawn once: whoever draws from the same state gets it, and the state after it.
"""

from __future__ import annotations

import array
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

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

    def take_list(self, count: int) -> list[int]:
        taken: list[int] = self._piece[self._at : self._at + count].tolist()
        self._at += len(taken)
        return taken if len(taken) == count else taken + self.take(count - len(taken)).tolist()

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


class Drawn:
    """Permutations that were drawn ahead; each is handed out once."""

    def __init__(self) -> None:
        self._known: list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]] = []  # samples, state before, permutation, state after
        self.keeps = False  # while somebody draws ahead

    def permutation(self, samples: int, generator: torch.Generator) -> Any:
        before = generator.get_state() if self._known or self.keeps else None
        for number, (known_samples, known_before, permutation, after) in enumerate(self._known):
            if known_samples == samples and before is not None and torch.equal(known_before, before):
                generator.set_state(after)
                if not self.keeps:
                    del self._known[number]
                return permutation.numpy()
        permutation = torch.randperm(samples, generator=generator)
        if self.keeps and before is not None:
            self._known.append((samples, before, permutation, generator.get_state()))
        return permutation.numpy()

    def forget(self) -> None:
        self._known.clear()


def order_of(sampler: Any, drawn: Drawn | None = None) -> ArrayOrder | None:
    """The order this sampler would give now; None where only the sampler itself can tell."""
    drawn = Drawn() if drawn is None else drawn
    if type(sampler) is SequentialSampler:
        return ArrayOrder(_sequential(sampler))
    if type(sampler) is RandomSampler and not sampler.replacement and _draws_as_torch():
        return ArrayOrder(_random(sampler, drawn))
    if type(sampler) is DistributedSampler and _splits_as_torch():
        return _distributed(sampler, drawn)
    return None


def draws_from_torch_alone(sampler: Any) -> bool:
    """Or from a generator of its own, or not at all."""
    return type(sampler) in (SequentialSampler, RandomSampler, DistributedSampler)


def _sequential(sampler: Any) -> Iterator[Any]:
    samples = len(sampler.data_source)
    for first in range(0, samples, _SEQUENTIAL_PIECE):
        yield np.arange(first, min(first + _SEQUENTIAL_PIECE, samples), dtype=np.int64)


def _random(sampler: Any, drawn: Drawn) -> Iterator[Any]:
    samples, generator = len(sampler.data_source), sampler.generator
    if generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        generator = torch.Generator().manual_seed(seed)
    for _ in range(sampler.num_samples // samples):
        yield drawn.permutation(samples, generator)
    rest = sampler.num_samples % samples
    if rest or sampler.generator is not None:  # torch draws one more permutation: a generator of the user's is moved by it
        yield drawn.permutation(samples, generator)[:rest]


def _distributed(sampler: Any, drawn: Drawn) -> ArrayOrder | None:
    """This rank's share; None where torch's own code would refuse."""
    samples, total = len(sampler.dataset), sampler.total_size
    if samples < total if sampler.drop_last else not 0 < samples <= total:
        return None
    order = np.arange(samples, dtype=np.int64)
    if sampler.shuffle:
        order = drawn.permutation(samples, torch.Generator().manual_seed(sampler.seed + sampler.epoch))
    order = np.resize(order, total)  # without drop_last the first ones once more, until every rank has as many
    share = np.ascontiguousarray(order[sampler.rank : total : sampler.num_replicas])
    return ArrayOrder(iter([share])) if len(share) == sampler.num_samples else None


@lru_cache(maxsize=1)
def _draws_as_torch() -> bool:
    for asked in (5, 12):
        theirs, ours = torch.Generator().manual_seed(asked), torch.Generator().manual_seed(asked)
        expected = list(RandomSampler(range(5), num_samples=asked, generator=theirs))
        drawn = list(ArrayOrder(_random(RandomSampler(range(5), num_samples=asked, generator=ours), Drawn())))
        if drawn != expected or not torch.equal(theirs.get_state(), ours.get_state()):
            return False
    state = torch.default_generator.get_state()
    expected = list(RandomSampler(range(9)))
    moved = torch.default_generator.get_state()
    torch.default_generator.set_state(state)
    drawn = list(ArrayOrder(_random(RandomSampler(range(9)), Drawn())))
    agree = drawn == expected and torch.equal(moved, torch.default_generator.get_state())
    torch.default_generator.set_state(state)
    return agree


@lru_cache(maxsize=1)
def _splits_as_torch() -> bool:
    for samples, replicas, drop_last, shuffle in ((7, 3, False, True), (8, 3, True, True), (2, 5, False, True), (7, 2, False, False)):
        for rank in range(replicas):
            sampler: Any = DistributedSampler(range(samples), replicas, rank, shuffle, seed=3, drop_last=drop_last)  # type: ignore[arg-type]
            sampler.set_epoch(2)
            ours = _distributed(sampler, Drawn())
            if ours is None or list(ours) != list(sampler):
                return False
    return True
