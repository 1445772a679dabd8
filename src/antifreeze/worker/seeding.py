"""Randomness keyed on the sample: `random`, `numpy.random` and `torch` start each sample from (base seed, epoch, position).

1. A position is the ordinal of a sample in its epoch, so the same sample drawn twice is augmented in two ways, and the number of
   workers, a restart or a resume change nothing.
2. Seeding all three costs about 7 µs. So the first WARM_UP samples (BATCH_WARM_UP batches, for what is called once per batch) seed
   all three and watch which ones the data set uses; after that only those are seeded. The others are looked at after each task: if
   one has moved after all, the task's samples are fetched again, seeded, and from then on it counts as used. (`look_again`: somebody
   else may have moved them in the meantime.)
3. A generator that `worker_init_fn` seeded is the user's: it is left alone.
4. Whoever shares a process with the user's own code (no workers) puts the generators back as they were.
5. `torch.initial_seed()` stays what torch says: the seed of the worker (of the stream, whoever hosts it), or of the user's own process.
   Data sets have their workers agree on an order by it.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.random  # it loads lazily: a fork must not inherit its import under way
import torch

from antifreeze.torch_private import generator_address

WARM_UP = 4
BATCH_WARM_UP = 2
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_COLLATE = 0x5851F42D4C957F2D
_STATE_WORDS = 624
_MT_BYTES = 2500  # 624 words and a position
_POSITION_BYTES = 16  # the position and words beside it: every use changes the one, every 624th and every seed the others
_SEARCHED_BYTES = 512  # less than a generator is large


class Generator(Protocol):
    memories: list[memoryview]
    """What changes with every use; none where that is not known."""

    def seed(self, seed: int) -> None: ...

    def mark(self) -> Any: ...

    def moved_since(self, mark: Any) -> bool: ...

    def save(self) -> Any: ...

    def restore(self, saved: Any) -> None: ...


class PythonGenerator:
    """`random`: its state lies behind the object's header; where that cannot be shown, `getstate` serves."""

    def __init__(self) -> None:
        self.instance: Any = random.seed.__self__  # type: ignore[attr-defined]
        position_and_first_words = (id(self.instance) + object.__basicsize__, _POSITION_BYTES)
        self.memories = [_memory_at(*position_and_first_words)] if _python_state_is_behind_the_header() else []

    def seed(self, seed: int) -> None:
        random.seed(seed)

    def mark(self) -> Any:
        return (b"".join(self.memories), self.instance.gauss_next) if self.memories else random.getstate()

    def moved_since(self, mark: Any) -> bool:
        return bool(self.mark() != mark)

    def save(self) -> Any:
        return random.getstate()

    def restore(self, saved: Any) -> None:
        random.setstate(saved)


def _memory_at(address: int, size: int) -> memoryview:
    """Of a generator that lives longer than whoever looks at it."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


@cache
def _python_state_is_behind_the_header() -> bool:
    probe = random.Random(1)
    if type(probe).__basicsize__ < object.__basicsize__ + _MT_BYTES:
        return False
    words = np.frombuffer(ctypes.string_at(id(probe) + object.__basicsize__, _MT_BYTES), dtype=np.uint32)
    state = probe.getstate()[1]
    return bool(words[0] == state[-1]) and words[1:].tolist() == list(state[:-1])


class NumpyGenerator:
    def __init__(self) -> None:
        bits = np.random.mtrand._rand._bit_generator
        self.memories = []
        if type(bits).__name__ == "MT19937":  # last words, position
            self.memories = [_memory_at(bits.ctypes.state_address + _MT_BYTES - _POSITION_BYTES, _POSITION_BYTES)]

    def seed(self, seed: int) -> None:
        np.random.seed(seed & 0xFFFFFFFF)

    def mark(self) -> Any:
        # the second half of a gaussian pair, which numpy keeps elsewhere, is not looked at: asking for it costs 33 µs
        return b"".join(self.memories) if self.memories else repr(np.random.get_state())

    def moved_since(self, mark: Any) -> bool:
        return bool(self.mark() != mark)

    def save(self) -> Any:
        return np.random.get_state()

    def restore(self, saved: Any) -> None:
        np.random.set_state(saved)


class TorchGenerator:
    def __init__(self) -> None:
        offset = _offset_of_torchs_engine()
        self.memories = [] if offset is None else _torchs_position(generator_address(torch.default_generator) + offset)
        self._initial_seed = self.memories[0][:_SEED_BYTES] if self.memories else None

    def seed(self, seed: int) -> None:
        """The numbers that come, and not what torch.initial_seed() says."""
        if self._initial_seed is None:
            initial_seed = torch.initial_seed()
            torch.default_generator.manual_seed(seed >> 1)
            self.say_initial_seed(initial_seed)
            return
        said = bytes(self._initial_seed)
        torch.default_generator.manual_seed(seed >> 1)
        self._initial_seed[:] = said

    def say_initial_seed(self, seed: int) -> None:
        """From now on torch.initial_seed() says so; the numbers that come are the same."""
        said = (seed & _MASK).to_bytes(_SEED_BYTES, sys.byteorder)
        if self._initial_seed is None:
            state = torch.default_generator.get_state()
            state[:_SEED_BYTES] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
            torch.default_generator.set_state(state)
        else:
            self._initial_seed[:] = said

    def mark(self) -> Any:
        return b"".join(self.memories) if self.memories else torch.default_generator.get_state().numpy().tobytes()

    def moved_since(self, mark: Any) -> bool:
        return bool(self.mark() != mark)

    def save(self) -> Any:
        return torch.default_generator.get_state()

    def restore(self, saved: Any) -> None:
        torch.default_generator.set_state(saved)


_SEED_BYTES, _ENGINE_HEAD, _ENGINE_BYTES, _NORMALS_BYTES = 8, 20, 2520, 24
"""Of torch's engine: seed, left, seeded, next, then 624 words; behind it the second halves of gaussian pairs."""


def _torchs_position(address: int) -> list[memoryview]:
    return [_memory_at(address, _ENGINE_HEAD + 4), _memory_at(address + _ENGINE_BYTES, _NORMALS_BYTES)]


@cache
def _offset_of_torchs_engine() -> int | None:
    """Where in a torch.Generator its engine lies: looked for in one of our own, and shown to change with every use and only then."""
    probe = torch.Generator().manual_seed(5)
    torch.rand(3, generator=probe)
    words = probe.get_state().numpy().tobytes()
    known = np.frombuffer(words, dtype=np.uint64, count=_STATE_WORDS + 3)[3:].astype(np.uint32).tobytes()
    memory = ctypes.string_at(generator_address(probe), _SEARCHED_BYTES)
    found = memory.find(known[: _SEARCHED_BYTES // 4])
    if found < _ENGINE_HEAD or memory[found - _ENGINE_HEAD :][:_SEED_BYTES] != words[:_SEED_BYTES]:
        return None
    memories = _torchs_position(generator_address(probe) + found - _ENGINE_HEAD)
    seen = [b"".join(memories)]
    uses: list[Callable[[], Any]] = [lambda: torch.rand(1, generator=probe)] * 3
    uses += [lambda: torch.randn(1, generator=probe)] * 4 + [lambda: torch.randperm(700, generator=probe)]
    for use in uses:
        use()
        if b"".join(memories) in seen:
            return None
        seen.append(b"".join(memories))
    probe.get_state()
    return found - _ENGINE_HEAD if b"".join(memories) == seen[-1] else None


def global_generators() -> list[Generator]:
    """Where their memory lies is found once in a process."""
    return [PythonGenerator(), NumpyGenerator(), TorchGenerator()]


def say_initial_seed(generators: Sequence[Generator], seed: int | None) -> None:
    for generator in generators:
        if seed is not None and isinstance(generator, TorchGenerator):
            generator.say_initial_seed(seed)


def glance_at(generators: Sequence[Generator]) -> Callable[[], Any]:
    """What differs as soon as one of them has moved: all of their memory in one go, where that is known."""
    memories = [memory for generator in generators for memory in generator.memories]
    if not all(generator.memories for generator in generators):
        return lambda: [generator.mark() for generator in generators]
    python = next((generator.instance for generator in generators if isinstance(generator, PythonGenerator)), None)
    if python is None:
        return lambda: b"".join(memories)
    return lambda: (b"".join(memories), python.gauss_next)


class Seeds(Protocol):
    """How a data set's code is run so that each sample sees its own random numbers: SampleSeeds says what each of these does."""

    def begin_epoch(self, base_seed: int, epoch: int) -> None: ...

    def use_key(self, key: int) -> None: ...

    def for_each(self, position: int, count: int, fetch: Callable[[int], None], offsets: Sequence[int] | None = None) -> None: ...

    def for_batch(self, position: int, collating: bool = False, initial_seed: int | None = None) -> None: ...

    def around_batch(self, position: int, call: Callable[[], Any], collating: bool = False) -> Any: ...

    def samples_need_none(self) -> bool: ...

    def batches_need_none(self) -> bool: ...

    def watch(self) -> None: ...

    def late_use(self) -> bool: ...

    def no_code_ran(self) -> None: ...

    def look_again(self) -> None: ...

    def seed_of(self, position: int) -> int: ...


class SampleSeeds:
    """Runs a data set's code so that each sample sees its own random numbers."""

    def __init__(self, base_seed: int, epoch: int, generators: Sequence[Generator] | None = None) -> None:
        self._unused: list[Generator] = list(global_generators() if generators is None else generators)
        self._used: list[Generator] = []
        self._count = len(self._unused)
        self._glance: Callable[[], Any] = glance_at(self._unused)
        self._glanced: Any = None
        self._looked = self._seeded = False  # since begin_call
        self._warm_up_left = WARM_UP
        self._batch_warm_up_left = BATCH_WARM_UP
        self._marks: list[tuple[Generator, Any]] | None = None  # of the unused ones, while nobody has moved or seeded them
        self.begin_epoch(base_seed, epoch)

    def begin_epoch(self, base_seed: int, epoch: int) -> None:
        self._key = epoch_key(base_seed, epoch)

    def use_key(self, key: int) -> None:
        """Of the task that comes: it may be of another epoch than the last one (task_key)."""
        self._key = key

    def leave_to_user(self, generators: Sequence[Generator]) -> None:
        self._unused = [generator for generator in self._unused if generator not in generators]
        self._marks = None

    def look_again(self) -> None:
        """The generators were moved by somebody who is no data set."""
        self._marks = None

    def seed_of(self, position: int) -> int:
        """What every generator is seeded with before the sample at `position`."""
        return seed_at(self._key, position)

    def for_each(self, position: int, count: int, fetch: Callable[[int], None], offsets: Sequence[int] | None = None) -> None:
        """Calls fetch(0) … fetch(count - 1), the sample at position + k (or + offsets[k]) seeded before fetch(k)."""
        positions = range(position, position + count) if offsets is None else [position + offset for offset in offsets]
        done = 0
        while self._warm_up_left and done < count:
            self._seed_and_watch(self.seed_of(positions[done]), fetch, done)
            done += 1
        if done == count:
            return
        self.watch()
        try:
            self._fetch_used(positions, done, fetch)
        except Exception:
            if not self.late_use():
                raise
        else:
            if not self.late_use():
                return
        self._fetch_used(positions, done, fetch)

    def samples_need_none(self) -> bool:
        """No sample so far has used a generator: they may be loaded unseeded, between `watch` and `late_use`."""
        return not self._warm_up_left and not self._used

    def batches_need_none(self) -> bool:
        """The same for what is called once per batch."""
        return not self._batch_warm_up_left and not self._used

    def watch(self) -> None:
        self._looked = False
        if self._marks is None:
            self._marks = [(generator, generator.mark()) for generator in self._unused]
            self._glance = glance_at(self._unused)
            self._glanced = self._glance()

    def late_use(self) -> bool:
        """Whether a generator was used after all since the watch began; from now on it is seeded."""
        assert self._marks is not None
        if self._glance() == self._glanced:
            self._looked = True
            return False
        late = [generator for generator, mark in self._marks if generator.moved_since(mark)]
        self._looked = not late
        if late:
            self._promote(late)
        return bool(late)

    def begin_call(self) -> None:
        self._looked = self._seeded = False

    def no_code_ran(self) -> None:
        """Nothing of the user's was called, so no generator can have moved."""
        self.watch()
        self._looked = True

    @property
    def untouched(self) -> bool:
        """Since begin_call all generators have been looked at, and none was seeded or moved."""
        return self._looked and not self._seeded and self._marks is not None and len(self._marks) == self._count

    def for_batch(self, position: int, collating: bool = False, initial_seed: int | None = None) -> None:
        """Seeds everything once, for code that handles a batch at a time and cannot be run again: iterables. `initial_seed`: what
        torch.initial_seed() says from now on."""
        seed, generators = self._batch_seed(position, collating), (*self._used, *self._unused)
        self._seed(generators, seed)
        say_initial_seed(generators, initial_seed)
        self._marks = None

    def around_batch(self, position: int, call: Callable[[], Any], collating: bool = False) -> Any:
        """What `call` returns, seeded once: __getitems__ and collate functions. As for samples, only generators in use are seeded
        after the warm-up, and a late first use makes it run again."""
        warm = self._batch_warm_up_left > 0
        if warm:
            self._batch_warm_up_left -= 1
            self.look_again()
        if warm or self._used:
            self._seed((*self._used, *self._unused) if warm else self._used, self._batch_seed(position, collating))
        self.watch()
        result = call()
        if self.late_use() and not warm:
            self._seed(self._used, self._batch_seed(position, collating))
            return call()
        return result

    def _seed(self, generators: Sequence[Generator], seed: int) -> None:
        for generator in generators:
            self._seeded = True
            generator.seed(seed)

    def _batch_seed(self, position: int, collating: bool) -> int:
        return batch_seed(self.seed_of(position), collating)

    def _fetch_used(self, positions: Sequence[int], begin: int, fetch: Callable[[int], None]) -> None:
        if not self._used:
            for number in range(begin, len(positions)):
                fetch(number)
            return
        for number in range(begin, len(positions)):
            self._seed(self._used, self.seed_of(positions[number]))
            fetch(number)

    def _seed_and_watch(self, seed: int, fetch: Callable[[int], None], number: int) -> None:
        self._seed((*self._used, *self._unused), seed)
        self._marks = None
        self.watch()
        self._warm_up_left -= 1
        try:
            fetch(number)
        finally:
            self.late_use()

    def note_used(self, generators: Sequence[Generator]) -> None:
        """Somebody else saw the data set use them."""
        self._promote([generator for generator in self._unused if generator in generators])

    def _promote(self, generators: list[Generator]) -> None:
        self._marks = None
        self._used += generators
        self._unused = [generator for generator in self._unused if generator not in generators]


class KeptState:
    """The generators of the user's own process, put back as they were after each call that loads something."""

    def __init__(self, generators: Sequence[Generator] | None = None, seeds: SampleSeeds | None = None) -> None:
        self._generators = list(global_generators() if generators is None else generators)
        self._seeds = seeds
        self._saved: list[tuple[Any, Any]] = [(generator.mark(), generator.save()) for generator in self._generators]
        self._glance = glance_at(self._generators)
        self._glanced = self._glance()

    def begin(self) -> None:
        if self._glance() != self._glanced:
            self._keep_what_moved()  # by the user's own code, since the last time

    def end(self) -> bool:
        """Whether a generator had moved since `begin`, with nobody seeding it: it is as it was, and from now on seeded."""
        if self._glance() == self._glanced:
            return False
        moved = self._put_back()
        if self._seeds is not None:
            self._seeds.note_used(moved)
        return True

    def run(self, call: Callable[[], Any]) -> Any:
        self.begin()
        if self._seeds is not None:
            self._seeds.begin_call()
        try:
            return call()
        finally:
            if self._seeds is None or not self._seeds.untouched:
                self._put_back()

    def _keep_what_moved(self) -> None:
        for number, generator in enumerate(self._generators):
            if generator.moved_since(self._saved[number][0]):
                self._saved[number] = (generator.mark(), generator.save())
                self._look_again()
        self._glanced = self._glance()

    def _put_back(self) -> list[Generator]:
        moved = []
        for generator, (mark, state) in zip(self._generators, self._saved, strict=True):
            if generator.moved_since(mark):
                moved.append(generator)
                generator.restore(state)
                self._look_again()
        return moved

    def _look_again(self) -> None:
        if self._seeds is not None:
            self._seeds.look_again()


def sample_seed(base_seed: int, epoch: int, position: int) -> int:
    """What the generators are seeded with before a sample: to run it again by itself."""
    return seed_at(epoch_key(base_seed, epoch), position)


def batch_seed(sample_seed: int, collating: bool) -> int:
    """For what is called once per batch, whose first sample would have `sample_seed`."""
    return mix(sample_seed ^ (_COLLATE if collating else 0))


def epoch_key(base_seed: int, epoch: int) -> int:
    return mix((base_seed & _MASK) ^ mix(epoch + 1))


def task_key(base_seed: int, epoch: int) -> int:
    """The epoch's key as it travels with a task: as a signed number, which `seed_at` takes for the same."""
    key = epoch_key(base_seed, epoch)
    return key - (1 << 64) if key >> 63 else key


def seed_at(key: int, position: int) -> int:
    return mix((key + position * _GOLDEN) & _MASK)


def mix(value: int) -> int:
    """splitmix64's finalizer: neighbouring numbers become unrelated ones."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
