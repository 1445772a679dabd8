"""The generator of `numpy.random`: the words are its bit generator's, the second half of a gaussian pair is its own."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.random  # it loads lazily: a fork must not inherit its import under way

from antifreeze.worker.twister import FEW_BYTES, HAND_AT, WORD_BYTES, Twister, agree, memory_at

_GAUSS_BYTES = 16  # whether there is one, and padding; the number itself


class NumpyGenerator(Twister):
    """numpy tells where its words are; the second half of a gaussian pair is kept in the RandomState."""

    salt = 0x5BE0CD19137E2179
    _NO_GAUSS = bytes(_GAUSS_BYTES)

    def __init__(self, instance: Any = None, by_memory: bool | None = None) -> None:
        super().__init__(np.random.mtrand._rand if instance is None else instance)
        self._gauss_at = _offset_of_numpys_gauss() if by_memory is None else _found_gauss() if by_memory else None
        self._find_words()

    def _find_words(self) -> None:
        """Of the bit generator that it draws from now: `numpy.random.set_bit_generator` gives it another one."""
        self._bits = self.instance._bit_generator
        self._is_twister = type(self._bits).__name__ == "MT19937"
        self.memories, self.stock, self._all = [], None, ()
        if self._is_twister and self._gauss_at is not None:
            memory = memory_at(self._bits.ctypes.state_address, WORD_BYTES + 4, self._bits)
            self._gauss = memory_at(id(self.instance) + self._gauss_at, _GAUSS_BYTES, self.instance)
            watched = (memory[:FEW_BYTES], memory[-4 - FEW_BYTES :], self._gauss)
            self._has_words(memory[:WORD_BYTES], memory[WORD_BYTES:], self._gauss, watched=watched)

    def seal(self) -> None:
        if not self.is_sealed():
            self._find_words()

    def is_sealed(self) -> bool:
        return self.instance._bit_generator is self._bits

    def seed(self, seed: int) -> None:
        self.seal()
        if self._is_twister:
            self.instance.seed(seed & 0xFFFFFFFF)
        else:
            self.instance.set_state({**type(self._bits)(seed & 0xFFFFFFFF).state, "has_gauss": 0, "gauss": 0.0})

    def seen(self) -> Any:
        return super().seen() if self.is_sealed() else None

    def save(self) -> Any:
        self.seal()
        return self._bits, super().save()

    def restore(self, saved: Any) -> None:
        bits, state = saved
        if self.instance._bit_generator is not bits:
            np.random.mtrand.set_bit_generator(bits)
        self.seal()
        super().restore(state)

    def dealing(self, hands: bytes) -> Iterator[None]:
        at, there_is_one = self._next, self._gauss[:8].cast("q")
        for places in self._laid_out(hands):
            for _, start, end in places:
                at[0] = start
                there_is_one[0] = 0
                yield
                if not start <= at[0] <= end:
                    self.beyond = True

    def _forget_pair(self) -> None:
        self._gauss[:] = self._NO_GAUSS

    def _state(self) -> Any:
        return self.instance.get_state(legacy=self._is_twister)

    def _comparable(self) -> Any:
        state = self._state()
        return repr(state) if isinstance(state, dict) else (state[0], state[1].tobytes(), *state[2:])

    def _set_state(self, state: Any) -> None:
        self.instance.set_state(state)

    def _deal_by_interface(self, hand: bytes) -> None:
        if self._is_twister:
            name, words, *_ = self.instance.get_state()
            words[HAND_AT:] = np.frombuffer(hand, dtype=np.uint32)
            self.instance.set_state((name, words, HAND_AT, 0, 0.0))


@cache
def _offset_of_numpys_gauss() -> int | None:
    shown = agree(lambda by_memory: NumpyGenerator(np.random.RandomState(1), by_memory), lambda each: each.instance.normal())
    return _found_gauss() if shown else None


@cache
def _found_gauss() -> int | None:
    probe = np.random.RandomState(5)
    probe.standard_normal()
    memory = ctypes.string_at(id(probe), type(probe).__basicsize__)
    at = memory.find(struct.pack("=qd", 1, probe.get_state()[4]))  # type: ignore[index]
    return at if at > 0 else None
