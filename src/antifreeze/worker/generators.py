"""The random generators of a process: `random`, `numpy.random` and `torch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from antifreeze.worker.twister import Generator
from antifreeze.worker.twister_numpy import NumpyGenerator
from antifreeze.worker.twister_python import PythonGenerator
from antifreeze.worker.twister_torch import TorchGenerator


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


def say_initial_seed(generators: Sequence[Generator], seed: int | None) -> None:
    for generator in generators:
        if seed is not None and isinstance(generator, TorchGenerator):
            generator.say_initial_seed(seed)
