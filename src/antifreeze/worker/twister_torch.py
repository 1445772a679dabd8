"""The generator of `torch`: an engine somewhere in the object, with a seal behind its words."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from antifreeze.torch_private import generator_address
from antifreeze.worker.twister import FEW_BYTES, HAND_AT, WORD_BYTES, WORDS, Twister, agree, memory_at

_SEARCHED_BYTES = 512  # less than a generator is large
_MASK = (1 << 64) - 1
_SEED_BYTES, _HEAD_BYTES, _ENGINE_BYTES, _NORMALS_BYTES = 8, 20, 2520, 24
"""Of torch's engine: seed, left, seeded, next, then the words; behind it the second halves of gaussian pairs."""
_SEAL = b"SEAL"
_SEAL_AT = _HEAD_BYTES + WORD_BYTES
"""Its last bytes, which are padding: drawing leaves them alone, and a new state or seed is copied with whatever padding it has."""
_STATE_HEAD_WORDS = 3
"""Of what get_state gives, in 64 bits each: seed; left and seeded; next; then the words, and the second halves."""


class TorchGenerator(Twister):
    salt = 0x6A09E667F3BCC908

    def __init__(self, instance: torch.Generator | None = None, by_memory: bool | None = None) -> None:
        super().__init__(torch.default_generator if instance is None else instance)
        self._initial_seed: memoryview | None = None
        self._seal: memoryview | None = None
        offset = _offset_of_torchs_engine() if by_memory is None else _found_engine() if by_memory else None
        if offset is not None:
            memory = memory_at(generator_address(self.instance) + offset, _ENGINE_BYTES + _NORMALS_BYTES, self.instance)
            self._initial_seed, position, words = memory[:_SEED_BYTES], memory[_SEED_BYTES:_HEAD_BYTES], memory[_HEAD_BYTES:_SEAL_AT]
            self._seal = memory[_SEAL_AT:_ENGINE_BYTES] if _seal_breaks() else None
            self._normals = memory[_ENGINE_BYTES:]
            watched = (memory[: _HEAD_BYTES + FEW_BYTES], memory[_SEAL_AT - FEW_BYTES :])
            sealed = () if self._seal is None else (self._seal,)
            self._has_words(words, position, self._normals, self._initial_seed, *sealed, watched=watched)
            self._no_normals = _no_normals()

    def seed(self, seed: int) -> None:
        """The numbers that come, and not what torch.initial_seed() says."""
        if self._initial_seed is None:
            initial_seed = self.instance.initial_seed()
            self.instance.manual_seed(seed >> 1)
            self.say_initial_seed(initial_seed)
            return
        said = bytes(self._initial_seed)
        self.instance.manual_seed(seed >> 1)
        self._initial_seed[:] = said

    def say_initial_seed(self, seed: int) -> None:
        """From now on torch.initial_seed() says so; the numbers that come are the same."""
        said = (seed & _MASK).to_bytes(_SEED_BYTES, sys.byteorder)
        if self._initial_seed is None:
            state = self.instance.get_state()
            state[:_SEED_BYTES] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
            self.instance.set_state(state)
        else:
            self._initial_seed[:] = said

    def seal(self) -> None:
        if self._seal is not None:
            self._seal[:] = _SEAL

    def is_sealed(self) -> bool:
        return self._seal is None or self._seal == _SEAL

    def broken_seal(self) -> Any:
        return None if self._seal is None or self.is_sealed() else bytes(self._seal)

    def break_seal(self, broken: Any) -> None:
        if broken is not None and self._seal is not None and self.is_sealed():
            self._seal[:] = broken

    @classmethod
    def position_at(cls, word: int) -> bytes:
        """How many are left before all are stirred, and one more; that it is seeded; the next."""
        return struct.pack("=iiI", WORDS - word + 1, 1, word)

    def dealing(self, hands: bytes) -> Iterator[None]:
        at, position, normals, no_normals = self._next, self._position, self._normals, self._no_normals
        for places in self._laid_out(hands):
            for told, start, end in places:
                position[:] = told
                normals[:] = no_normals
                yield
                if not start <= at[0] <= end:
                    self.beyond = True

    def _forget_pair(self) -> None:
        self._normals[:] = self._no_normals

    def _state(self) -> Any:
        return self.instance.get_state()

    def _comparable(self) -> Any:
        return self._state().numpy().tobytes()

    def _set_state(self, state: Any) -> None:
        self.instance.set_state(state)

    def _deal_by_interface(self, hand: bytes) -> None:
        state = self.instance.get_state()
        fresh = torch.Generator().get_state()
        fresh.numpy()[:_SEED_BYTES] = state.numpy()[:_SEED_BYTES]
        words, dealt = state.numpy().view(np.uint64), fresh.numpy().view(np.uint64)  # `dealt` has no second halves
        dealt[1] = struct.unpack("=Q", self.position_at(HAND_AT)[:8])[0]
        dealt[2] = HAND_AT
        dealt[_STATE_HEAD_WORDS : _STATE_HEAD_WORDS + HAND_AT] = words[_STATE_HEAD_WORDS : _STATE_HEAD_WORDS + HAND_AT]
        dealt[_STATE_HEAD_WORDS + HAND_AT : _STATE_HEAD_WORDS + WORDS] = np.frombuffer(hand, dtype=np.uint32)
        self.instance.set_state(fresh)


@cache
def _offset_of_torchs_engine() -> int | None:
    """Where in a torch.Generator its engine lies: shown to change with every use and only then, and to do as it is told."""
    found = _found_engine()
    if found is None:
        return None
    seen = TorchGenerator(torch.Generator().manual_seed(5), by_memory=True)
    states = [seen.mark()]
    for use in (torch.rand, torch.rand, torch.randn, torch.randn, torch.randn):
        use(1, generator=seen.instance)
        if seen.mark() in states:
            return None
        states.append(seen.mark())
    seen.instance.get_state()
    if seen.mark() != states[-1]:
        return None
    draw = partial(torch.randn, 1, dtype=torch.float64)
    shown = agree(lambda by_memory: TorchGenerator(torch.Generator(), by_memory), lambda each: draw(generator=each.instance).item())
    return found if shown else None


@cache
def _found_engine() -> int | None:
    probe = torch.Generator().manual_seed(5)
    torch.rand(3, generator=probe)
    state = probe.get_state().numpy()
    words = state.view(np.uint64)[_STATE_HEAD_WORDS : _STATE_HEAD_WORDS + WORDS].astype(np.uint32).tobytes()
    memory = ctypes.string_at(generator_address(probe), _SEARCHED_BYTES)
    at = memory.find(words[: _SEARCHED_BYTES // 4]) - _HEAD_BYTES
    return at if at >= 0 and memory[at : at + _SEED_BYTES] == state[:_SEED_BYTES].tobytes() else None


@cache
def _seal_breaks() -> bool:
    """Whether the padding is there, and as said: whatever is drawn or asked it stays, and with a new state it does not."""
    found, probe = _found_engine(), torch.Generator()
    assert found is not None
    seal = memory_at(generator_address(probe) + found + _SEAL_AT, _ENGINE_BYTES - _SEAL_AT, probe)
    if len(seal) != len(_SEAL):
        return False
    for _ in range(3):
        seal[:] = _SEAL
        torch.rand(2 * WORDS, generator=probe)
        torch.randn(1, generator=probe)
        state, kept = probe.get_state(), seal == _SEAL
        probe.set_state(state)
        if not kept or seal == _SEAL:
            return False
    return True


@cache
def _no_normals() -> bytes:
    found, fresh = _found_engine(), torch.Generator()
    assert found is not None
    return ctypes.string_at(generator_address(fresh) + found + _ENGINE_BYTES, _NORMALS_BYTES)
