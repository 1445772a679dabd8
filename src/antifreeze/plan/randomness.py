"""The random state an epoch's order was drawn from, so that the same order can be drawn again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def snapshot(generator: torch.Generator | None) -> dict[str, Any]:
    """All generators a sampler may draw from, as plain data."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.default_generator.get_state().numpy().tobytes(),
        "random": [version, list(words), gauss],
        "numpy": [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "generator": None if generator is None else generator_state(generator),
    }


def generator_state(generator: torch.Generator) -> bytes:
    return generator.get_state().cpu().numpy().tobytes()


def set_generator_state(generator: torch.Generator, state: bytes) -> None:
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


@contextmanager
def as_it_was(saved: dict[str, Any], generator: torch.Generator | None) -> Iterator[None]:
    """The process's generators as they were when `saved` was taken, and afterwards as they are now. The loader's own `generator`
    stays where the drawing leaves it, as it would have without an interruption."""
    now = snapshot(None)
    _put(saved)
    if generator is not None and saved["generator"] is not None:
        set_generator_state(generator, saved["generator"])
    try:
        yield
    finally:
        _put(now)


def _put(saved: dict[str, Any]) -> None:
    torch.default_generator.set_state(torch.frombuffer(bytearray(saved["torch"]), dtype=torch.uint8))
    version, words, gauss = saved["random"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = saved["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
