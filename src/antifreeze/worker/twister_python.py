"""The generator of `random`: its position and its words lie behind the object's header."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from antifreeze.worker.twister import FEW_BYTES, HAND_AT, WORD_BYTES, Twister, agree, memory_at


class PythonGenerator(Twister):
    salt = 0x1F83D9ABFB41BD6B

    def __init__(self, instance: Any = None, by_memory: bool | None = None) -> None:
        super().__init__(random.seed.__self__ if instance is None else instance)  # type: ignore[attr-defined]
        if _python_state_is_behind_the_header() if by_memory is None else by_memory:
            memory = memory_at(id(self.instance) + object.__basicsize__, 4 + WORD_BYTES, self.instance)
            self._has_words(memory[4:], memory[:4], watched=(memory[: 4 + FEW_BYTES], memory[-FEW_BYTES:]))

    def seed(self, seed: int) -> None:
        self.instance.seed(seed)

    def seen(self) -> Any:
        return super().seen(), self.instance.gauss_next

    def save(self) -> Any:
        return super().save(), self.instance.gauss_next

    def restore(self, saved: Any) -> None:
        state, self.instance.gauss_next = saved
        super().restore(state)

    def dealing(self, hands: bytes) -> Iterator[None]:
        at, instance = self._next, self.instance
        for places in self._laid_out(hands):
            for _, start, end in places:
                at[0] = start
                instance.gauss_next = None
                yield
                if not start <= at[0] <= end:
                    self.beyond = True

    def _forget_pair(self) -> None:
        self.instance.gauss_next = None

    def _state(self) -> Any:
        return self.instance.getstate()

    def _set_state(self, state: Any) -> None:
        self.instance.setstate(state)

    def _deal_by_interface(self, hand: bytes) -> None:
        version, words, _gauss = self.instance.getstate()
        dealt = np.frombuffer(hand, dtype=np.uint32).tolist()
        self.instance.setstate((version, (*words[:HAND_AT], *dealt, HAND_AT), None))


@cache
def _python_state_is_behind_the_header() -> bool:
    probe = random.Random(1)
    if type(probe).__basicsize__ < object.__basicsize__ + WORD_BYTES + 4:
        return False
    words = np.frombuffer(ctypes.string_at(id(probe) + object.__basicsize__, WORD_BYTES + 4), dtype=np.uint32)
    state = probe.getstate()[1]
    if words[0] != state[-1] or words[1:].tolist() != list(state[:-1]):
        return False
    return agree(lambda by_memory: PythonGenerator(random.Random(), by_memory), lambda each: each.instance.gauss(0, 1))
