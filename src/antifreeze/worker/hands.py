"""The words that a generator is dealt before a sample: a hand of them, which is a hash of the sample's seed.

1. Where samples draw more than a hand, the generator is seeded in full before each, with the hand on top: the numbers are the same.
2. Where tasks follow one another, hands are made for many samples at once: a call of numpy's between samples costs 5 µs, whose code
   and data are no longer in the caches by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from antifreeze.worker.twister import HAND, HAND_BYTES, Generator

AHEAD = 1024  # samples
_UNSTIRRED = b"as dealt"
"""The stock of one that is dealt hands: whatever a sample seeds it with, even if it was the same before, shows."""
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


class Dealer:
    """Deals the hands of one generator."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self.in_full = generator.stock is None
        self._stock: bytes | None = None
        self._hands: Iterator[None] = iter(())
        self._last: tuple[int, int] | None = None  # key, and position after the last sample of the last task
        self._made = (0, range(0), b"")  # key, positions, and their hands

    def deal(self, key: int, positions: Sequence[int]) -> Iterator[None]:
        """With each `next` the generator is that of the sample at the next position."""
        self.watch()
        if self.in_full:
            self._hands = _in_full(self._generator, seeds_at(key, positions))
        else:
            assert self._generator.stock is not None
            self._generator.stock[:] = self._stock = _UNSTIRRED
            self._hands = self._generator.dealing(self._hands_of(key, positions))
        return self._hands

    def watch(self) -> None:
        """Up to `drew_beyond`; one hand was dealt by somebody else, or many are now."""
        generator = self._generator
        generator.seal()
        self._stock = None if generator.stock is None else bytes(generator.stock)
        self.in_full |= self._stock is None
        self._hands, generator.beyond = iter(()), False

    def drew_beyond(self) -> bool:
        """Whether a sample of the last task has drawn what it was not dealt; from now on the generator is seeded in full."""
        if self.in_full:
            return False
        next(self._hands, None)  # it looks at what the last sample has drawn
        self.in_full = self._generator.beyond or self._generator.stock != self._stock or not self._generator.is_sealed()
        return self.in_full

    def _hands_of(self, key: int, positions: Sequence[int]) -> bytes:
        if not isinstance(positions, range):
            return hands_of(seeds_at(key, positions), self._generator)
        follows, self._last = self._last == (key, positions.start), (key, positions.stop)
        of_key, made, hands = self._made
        if of_key != key or positions.start < made.start or positions.stop > made.stop:
            made = range(positions.start, max(positions.start + AHEAD, positions.stop)) if follows else positions
            hands = hands_of(seeds_at(key, made), self._generator)
            self._made = (key, made, hands)
        return hands[HAND_BYTES * (positions.start - made.start) : HAND_BYTES * (positions.stop - made.start)]


def _in_full(generator: Generator, seeds: Any) -> Iterator[None]:
    for seed in seeds.tolist():
        seed_for_sample(generator, seed)
        yield


def seed_for_sample(generator: Generator, seed: int) -> None:
    """As before a sample with this seed, whatever it may draw."""
    generator.seed(seed)
    generator.deal(hands_of(np.array([seed], dtype=np.uint64), generator))


def hands_of(seeds: Any, generator: Generator) -> bytes:
    """What the generator is dealt before each of the samples with these seeds."""
    hands: bytes = _mixed((seeds ^ np.uint64(generator.salt))[:, None] + _steps(HAND // 2)).tobytes()
    return hands


def seed_at(key: int, position: int) -> int:
    return mix((key + position * _GOLDEN) & _MASK)


def seeds_at(key: int, positions: Sequence[int]) -> Any:
    """`seed_at` of all of them."""
    if isinstance(positions, range):
        first = np.uint64((key + positions.start * _GOLDEN) & _MASK)
        return _mixed(_steps(len(positions)) + first)
    return _mixed(np.asarray(positions, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key & _MASK))


def mix(value: int) -> int:
    """splitmix64's finalizer: neighbouring numbers become unrelated ones."""
    value = (value + _GOLDEN) & _MASK
    for shift, factor in _MIX:
        value = ((value ^ (value >> shift)) * factor) & _MASK
    return value ^ (value >> _LAST_SHIFT)


_ADDED, _LAST = np.uint64(_GOLDEN), np.uint64(_LAST_SHIFT)
_MIXED = [(np.uint64(shift), np.uint64(factor)) for shift, factor in _MIX]


def _mixed(values: Any) -> Any:
    """`mix` of a whole array, which is overwritten."""
    values += _ADDED
    for shift, factor in _MIXED:
        values ^= values >> shift
        values *= factor
    values ^= values >> _LAST
    return values


@lru_cache(8)
def _steps(count: int) -> Any:
    """0, _GOLDEN, 2 * _GOLDEN …"""
    return np.arange(count, dtype=np.uint64) * _ADDED
