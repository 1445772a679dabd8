"""The words that a generator is dealt before a sample: a hash of its seed, and no more of them than samples draw.

1. A hand is HAND words (generators.py). Of these as many are made and written as samples were seen to draw: at first FEWEST, and more
   after a sample that has drawn more, which is loaded again.
2. Where samples draw more than a hand, the generator is seeded in full before each, with the hand on top: the numbers are the same.
3. Where tasks follow one another, hands are made for many samples at once: a call of numpy's between samples costs 5 µs, whose code
   and data are no longer in the caches by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from antifreeze.worker.generators import HAND, Generator

FEWEST = 8
AHEAD = 1024  # samples
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


class Dealer:
    """Deals the hands of one generator."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._words = None if generator.stock is None else FEWEST  # None: seeded in full
        self._stock: memoryview | bytes = b""
        self._hands: Iterator[None] = iter(())
        self._last: tuple[int, int] | None = None  # key, and position after the last sample of the last task
        self._ahead = (0, 0, range(0), b"")  # key, words and positions of what was made, and that

    def deal(self, key: int, positions: Sequence[int]) -> Iterator[None]:
        """With each `next` the generator is that of the sample at the next position."""
        self._generator.seal()
        if self._words is None or self._generator.stock is None:
            self._words, self._hands = None, _in_full(self._generator, seeds_at(key, positions))
        else:
            self._stock = bytes(self._generator.stock)
            self._generator.drawn = 0
            self._hands = self._generator.dealing(self._hands_of(self._words, key, positions), self._words)
        return self._hands

    def drew_beyond(self) -> bool:
        """Whether a sample of the last task has drawn what it was not dealt. The next one is dealt more."""
        if self._words is None:
            return False
        next(self._hands, None)  # it looks at what the last sample has drawn
        is_as_dealt = self._generator.stock == self._stock and self._generator.is_sealed()
        drawn = self._generator.drawn if is_as_dealt else HAND + 1
        if drawn > self._words:
            self._words = next((words for words in (FEWEST, 2 * FEWEST, 4 * FEWEST, HAND) if words >= drawn), None)
        return bool(drawn)

    def _hands_of(self, words: int, key: int, positions: Sequence[int]) -> bytes:
        if not isinstance(positions, range):
            return hands_of(seeds_at(key, positions), self._generator, words)
        follows, self._last = self._last == (key, positions.start), (key, positions.stop)
        if not self._is_made(words, key, positions):
            made = range(positions.start, max(positions.start + AHEAD, positions.stop)) if follows else positions
            self._ahead = (key, words, made, hands_of(seeds_at(key, made), self._generator, words))
        _, _, made, hands = self._ahead
        return hands[4 * words * (positions.start - made.start) : 4 * words * (positions.stop - made.start)]

    def _is_made(self, words: int, key: int, positions: range) -> bool:
        of_key, of_words, made, _ = self._ahead
        return (of_key, of_words) == (key, words) and made.start <= positions.start and positions.stop <= made.stop


def _in_full(generator: Generator, seeds: Any) -> Iterator[None]:
    for seed in seeds.tolist():
        seed_for_sample(generator, seed)
        yield


def seed_for_sample(generator: Generator, seed: int) -> None:
    """As before a sample with this seed, whatever it may draw."""
    generator.seed(seed)
    generator.deal(hands_of(np.array([seed], dtype=np.uint64), generator))


def hands_of(seeds: Any, generator: Generator, words: int = HAND) -> bytes:
    """What the generator is dealt before each of the samples with these seeds: so many words of a hand."""
    hands: bytes = _mixed((seeds ^ np.uint64(generator.salt))[:, None] + _steps(words // 2)).tobytes()
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
