"""The random generators of a process: `random`, `numpy.random` and `torch`, each a Mersenne Twister of 624 words and a position.

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
import random
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Protocol

import numpy as np
import numpy.random  # it loads lazily: a fork must not inherit its import under way
import torch

from antifreeze.torch_private import generator_address

HAND = 64
_WORDS = 624
_HAND_AT = _WORDS - HAND
HAND_BYTES = 4 * HAND
_WORD_BYTES = 4 * _WORDS
_STOCK = 2  # words
_FEW_BYTES = 4 * _STOCK  # of the first or the last words: stirring changes the one, dealing the other
_SEARCHED_BYTES = 512  # less than a generator is large
_MASK = (1 << 64) - 1


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


def global_generators() -> list[Generator]:
    """Where their memory lies is found once in a process."""
    return [PythonGenerator(), NumpyGenerator(), TorchGenerator()]


def glance_at(generators: Sequence[Generator]) -> Callable[[], Any]:
    """What differs as soon as one of them has moved: all of their memory in one go, where that is known."""
    memories = [memory for generator in generators for memory in generator.memories]
    if not all(generator.memories for generator in generators):
        return lambda: [generator.seen() for generator in generators]
    python = next((generator.instance for generator in generators if isinstance(generator, PythonGenerator)), _Nobodys)
    numpy = next((generator.instance for generator in generators if isinstance(generator, NumpyGenerator)), _Nobodys)
    return lambda: (b"".join(memories), python.gauss_next, numpy._bit_generator)


class _Nobodys:
    """Where there is no such generator."""

    gauss_next = _bit_generator = None


def _memory_at(address: int, size: int, owner: Any) -> memoryview:
    """Of `owner`, which lives as long as somebody looks at it."""
    memory = (ctypes.c_ubyte * size).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


class _Twister:
    """What the three have in common."""

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
        self.stock, self._hand, self._dealt = words[:_FEW_BYTES], words[-HAND_BYTES:], words[_FEW_BYTES:]
        self.memories = list(watched)

    def deal(self, hand: bytes) -> None:
        if self.stock is None:
            self._deal_by_interface(hand)
        else:
            self._hand[:] = hand
            self._position[:] = self.position_at(_HAND_AT)
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
    starts = range(_STOCK + (_WORDS - _STOCK) % HAND, _WORDS, HAND)
    return [(position_at(start), start, start + HAND) for start in starts]


# --- random ---


class PythonGenerator(_Twister):
    """Its position and its words lie behind the object's header."""

    salt = 0x1F83D9ABFB41BD6B

    def __init__(self, instance: Any = None, by_memory: bool | None = None) -> None:
        super().__init__(random.seed.__self__ if instance is None else instance)  # type: ignore[attr-defined]
        if _python_state_is_behind_the_header() if by_memory is None else by_memory:
            memory = _memory_at(id(self.instance) + object.__basicsize__, 4 + _WORD_BYTES, self.instance)
            self._has_words(memory[4:], memory[:4], watched=(memory[: 4 + _FEW_BYTES], memory[-_FEW_BYTES:]))

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
        self.instance.setstate((version, (*words[:_HAND_AT], *dealt, _HAND_AT), None))


@cache
def _python_state_is_behind_the_header() -> bool:
    probe = random.Random(1)
    if type(probe).__basicsize__ < object.__basicsize__ + _WORD_BYTES + 4:
        return False
    words = np.frombuffer(ctypes.string_at(id(probe) + object.__basicsize__, _WORD_BYTES + 4), dtype=np.uint32)
    state = probe.getstate()[1]
    if words[0] != state[-1] or words[1:].tolist() != list(state[:-1]):
        return False
    return _agree(lambda by_memory: PythonGenerator(random.Random(), by_memory), lambda each: each.instance.gauss(0, 1))


# --- numpy.random ---


_GAUSS_BYTES = 16  # whether there is one, and padding; the number itself


class NumpyGenerator(_Twister):
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
            memory = _memory_at(self._bits.ctypes.state_address, _WORD_BYTES + 4, self._bits)
            self._gauss = _memory_at(id(self.instance) + self._gauss_at, _GAUSS_BYTES, self.instance)
            watched = (memory[:_FEW_BYTES], memory[-4 - _FEW_BYTES :], self._gauss)
            self._has_words(memory[:_WORD_BYTES], memory[_WORD_BYTES:], self._gauss, watched=watched)

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
            words[_HAND_AT:] = np.frombuffer(hand, dtype=np.uint32)
            self.instance.set_state((name, words, _HAND_AT, 0, 0.0))


@cache
def _offset_of_numpys_gauss() -> int | None:
    shown = _agree(lambda by_memory: NumpyGenerator(np.random.RandomState(1), by_memory), lambda each: each.instance.normal())
    return _found_gauss() if shown else None


@cache
def _found_gauss() -> int | None:
    probe = np.random.RandomState(5)
    probe.standard_normal()
    memory = ctypes.string_at(id(probe), type(probe).__basicsize__)
    at = memory.find(struct.pack("=qd", 1, probe.get_state()[4]))  # type: ignore[index]
    return at if at > 0 else None


# --- torch ---

_SEED_BYTES, _HEAD_BYTES, _ENGINE_BYTES, _NORMALS_BYTES = 8, 20, 2520, 24
"""Of torch's engine: seed, left, seeded, next, then the words; behind it the second halves of gaussian pairs."""
_SEAL = b"SEAL"
_SEAL_AT = _HEAD_BYTES + _WORD_BYTES
"""Its last bytes, which are padding: drawing leaves them alone, and a new state or seed is copied with whatever padding it has."""
_STATE_HEAD_WORDS = 3
"""Of what get_state gives, in 64 bits each: seed; left and seeded; next; then the words, and the second halves."""


class TorchGenerator(_Twister):
    salt = 0x6A09E667F3BCC908

    def __init__(self, instance: torch.Generator | None = None, by_memory: bool | None = None) -> None:
        super().__init__(torch.default_generator if instance is None else instance)
        self._initial_seed: memoryview | None = None
        self._seal: memoryview | None = None
        offset = _offset_of_torchs_engine() if by_memory is None else _found_engine() if by_memory else None
        if offset is not None:
            memory = _memory_at(generator_address(self.instance) + offset, _ENGINE_BYTES + _NORMALS_BYTES, self.instance)
            self._initial_seed, position, words = memory[:_SEED_BYTES], memory[_SEED_BYTES:_HEAD_BYTES], memory[_HEAD_BYTES:_SEAL_AT]
            self._seal = memory[_SEAL_AT:_ENGINE_BYTES] if _seal_breaks() else None
            self._normals = memory[_ENGINE_BYTES:]
            watched = (memory[: _HEAD_BYTES + _FEW_BYTES], memory[_SEAL_AT - _FEW_BYTES :])
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

    @classmethod
    def position_at(cls, word: int) -> bytes:
        """How many are left before all are stirred, and one more; that it is seeded; the next."""
        return struct.pack("=iiI", _WORDS - word + 1, 1, word)

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
        dealt[1] = struct.unpack("=Q", self.position_at(_HAND_AT)[:8])[0]
        dealt[2] = _HAND_AT
        dealt[_STATE_HEAD_WORDS : _STATE_HEAD_WORDS + _HAND_AT] = words[_STATE_HEAD_WORDS : _STATE_HEAD_WORDS + _HAND_AT]
        dealt[_STATE_HEAD_WORDS + _HAND_AT : _STATE_HEAD_WORDS + _WORDS] = np.frombuffer(hand, dtype=np.uint32)
        self.instance.set_state(fresh)


def say_initial_seed(generators: Sequence[Generator], seed: int | None) -> None:
    for generator in generators:
        if seed is not None and isinstance(generator, TorchGenerator):
            generator.say_initial_seed(seed)


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
    shown = _agree(lambda by_memory: TorchGenerator(torch.Generator(), by_memory), lambda each: draw(generator=each.instance).item())
    return found if shown else None


@cache
def _found_engine() -> int | None:
    probe = torch.Generator().manual_seed(5)
    torch.rand(3, generator=probe)
    state = probe.get_state().numpy()
    words = state.view(np.uint64)[_STATE_HEAD_WORDS : _STATE_HEAD_WORDS + _WORDS].astype(np.uint32).tobytes()
    memory = ctypes.string_at(generator_address(probe), _SEARCHED_BYTES)
    at = memory.find(words[: _SEARCHED_BYTES // 4]) - _HEAD_BYTES
    return at if at >= 0 and memory[at : at + _SEED_BYTES] == state[:_SEED_BYTES].tobytes() else None


@cache
def _seal_breaks() -> bool:
    """Whether the padding is there, and as said: whatever is drawn or asked it stays, and with a new state it does not."""
    found, probe = _found_engine(), torch.Generator()
    assert found is not None
    seal = _memory_at(generator_address(probe) + found + _SEAL_AT, _ENGINE_BYTES - _SEAL_AT, probe)
    if len(seal) != len(_SEAL):
        return False
    for _ in range(3):
        seal[:] = _SEAL
        torch.rand(2 * _WORDS, generator=probe)
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


def _agree(make: Callable[[bool], Any], draw: Callable[[Any], Any]) -> bool:
    """Whether dealing by memory does what the generator's own interface does: in the middle of a gaussian pair, and beyond the hand."""
    by_memory, by_interface = make(True), make(False)
    hand = (np.arange(HAND, dtype=np.uint32) * np.uint32(0x9E3779B1)).tobytes()
    for each in (by_memory, by_interface):
        each.seed(3)
        draw(each)
        each.deal(hand)
    whole = type(by_memory)(by_memory.instance, False).mark()
    return bool(whole == by_interface.mark() and all(draw(by_memory) == draw(by_interface) for _ in range(HAND * 3 // 4)))
