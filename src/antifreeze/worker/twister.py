"""A Mersenne Twister of 624 words and a position, as `random`, `numpy.random` and `torch` each have one: what the three have in common.

    words   [ stock ······························· ┃ hand ]   the next numbers are made from the hand; after it
                                             position ▲         all words are stirred, and it begins at the first one
            [ stock ··· ┃ hand ┃ hand ┃ hand ┃ hand ┃ hand ]   those of samples that follow one another

1. `seed` is the generator's own: all words from one number (1 to 4 µs), which the first use stirs (1 to 2 µs).
2. `deal` writes the HAND words that come next, and the position; nothing is stirred. A sample that draws more has used words that are
   not its own, and its stock (the first words) shows it, having been stirred: it is run again with all words seeded and the same hand
   on top, so its numbers begin as they had begun.
3. `dealing` writes many hands at once, and moves the position from one to the next, which costs little between samples. The position
   tells of one that has drawn more than its hand.
4. Whoever sets torch's state (`fork_rng`, `set_rng_state`) may have drawn before and put everything back: it breaks a seal behind the
   words, four bytes that nobody reads. `random` and `numpy.random` leave no such trace.
5. Where the words lie in memory is found with a generator of our own, and shown to be so. Where it is not, getstate and the like
   serve: every sample is seeded in full, and its numbers are the same.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

HAND = 64
WORDS = 624
HAND_AT = WORDS - HAND
HAND_BYTES = 4 * HAND
WORD_BYTES = 4 * WORDS
_STOCK = 2  # words
FEW_BYTES = 4 * _STOCK  # of the first or the last words: stirring changes the one, dealing the other


class Generator(Protocol):
    @property
    def salt(self) -> int:
        """So that the hands of a sample are unrelated."""

    memories: list[memoryview]
    """What changes with every use; none where that is not known."""

    stock: memoryview | None
    """What changes with every use beyond the hand; None where that is not known: then every sample has to be seeded in full."""

    def seed(self, seed: int) -> None: ...

    def seal(self) -> None:
        """So that it shows where its state is set as a whole, or its words lie elsewhere from now on; `mark` does it too."""

    def is_sealed(self) -> bool:
        """Also where there is no seal."""

    def broken_seal(self) -> Any:
        """For whoever marks it within a sample, and puts back what others are to see: None where it is not broken."""

    def break_seal(self, broken: Any) -> None:
        """As it was; not where it was broken again, or had not been."""

    def seen(self) -> Any:
        """What `mark` gives, with nothing sealed."""

    def deal(self, hand: bytes) -> None: ...

    def dealing(self, hands: bytes) -> Iterator[None]:
        """With each `next` the position moves on to the next hand, and what was drawn of the one before is looked at."""

    beyond: bool
    """More was drawn than a hand that was dealt."""

    def mark(self) -> Any: ...

    def moved_since(self, mark: Any) -> bool: ...

    def save(self) -> Any: ...

    def restore(self, saved: Any) -> None: ...


def memory_at(address: int, size: int, owner: Any) -> memoryview:
    """Of `owner`, which lives as long as somebody looks at it."""
    memory = (ctypes.c_ubyte * size).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


class Twister:
    """A Generator; what is left to each of the three is at its end."""

    def __init__(self, instance: Any) -> None:
        self.instance = instance
        self.memories: list[memoryview] = []
        self.stock: memoryview | None = None
        self.beyond = False
        self._all: tuple[memoryview, ...] = ()

    def _has_words(self, words: memoryview, position: memoryview, *beside: memoryview, watched: Sequence[memoryview]) -> None:
        """They lie there; `position` ends with the number of the next one; `beside`: what else changes with a use. `watched`: what is
        looked at to see a use, in few pieces: the first words and the last, the position, and those beside."""
        self._all, self._position = (words, position, *beside), position
        self._next = position[-4:].cast("i")
        self.stock, self._hand, self._dealt = words[:FEW_BYTES], words[-HAND_BYTES:], words[FEW_BYTES:]
        self.memories = list(watched)

    def deal(self, hand: bytes) -> None:
        if self.stock is None:
            self._deal_by_interface(hand)
        else:
            self._hand[:] = hand
            self._position[:] = self.position_at(HAND_AT)
            self._forget_pair()

    def _laid_out(self, hands: bytes) -> Iterator[Sequence[tuple[Any, int, int]]]:
        """With each `next` as many hands as there is room for are written; (what `position_at` says of its first word, that word, the word
        behind it) of each of them."""
        words, places = self._dealt, _places(self.position_at)
        size = HAND_BYTES * len(places)
        for first in range(0, len(hands), size):
            some = hands[first : first + size]
            words[-len(some) :] = some
            yield places[-len(some) // HAND_BYTES :]

    def seal(self) -> None:
        pass

    def is_sealed(self) -> bool:
        return True

    def broken_seal(self) -> Any:
        return None

    def break_seal(self, broken: Any) -> None:
        pass

    def mark(self) -> Any:
        self.seal()
        return self.seen()

    def moved_since(self, mark: Any) -> bool:
        return bool(self.seen() != mark)

    def seen(self) -> Any:
        return b"".join(self.memories) if self.memories else self._comparable()

    def save(self) -> Any:
        return [bytes(memory) for memory in self._all] if self._all else self._state()

    def restore(self, saved: Any) -> None:
        if not self._all:
            self._set_state(saved)
        for memory, content in zip(self._all, saved, strict=False):
            memory[:] = content

    @classmethod
    def position_at(cls, word: int) -> bytes:
        """What `position` is where this word comes next."""
        return struct.pack("=i", word)

    def _forget_pair(self) -> None:
        """Gaussian numbers come in pairs, of which the second one is kept."""
        raise NotImplementedError

    # by the generator's own interface, where its memory is not known

    def _state(self) -> Any:
        raise NotImplementedError

    def _comparable(self) -> Any:
        return self._state()

    def _set_state(self, state: Any) -> None:
        raise NotImplementedError

    def _deal_by_interface(self, hand: bytes) -> None:
        raise NotImplementedError


@cache
def _places(position_at: Callable[[int], bytes]) -> list[tuple[bytes, int, int]]:
    """(the position, its first word, the word behind it) of each of the hands that are dealt together."""
    starts = range(_STOCK + (WORDS - _STOCK) % HAND, WORDS, HAND)
    return [(position_at(start), start, start + HAND) for start in starts]


def agree(make: Callable[[bool], Any], draw: Callable[[Any], Any]) -> bool:
    """Whether dealing by memory does what the generator's own interface does: in the middle of a gaussian pair, and beyond the hand."""
    by_memory, by_interface = make(True), make(False)
    hand = (np.arange(HAND, dtype=np.uint32) * np.uint32(0x9E3779B1)).tobytes()
    for each in (by_memory, by_interface):
        each.seed(3)
        draw(each)
        each.deal(hand)
    whole = type(by_memory)(by_memory.instance, False).mark()
    return bool(whole == by_interface.mark() and all(draw(by_memory) == draw(by_interface) for _ in range(HAND * 3 // 4)))
