"""What a forked worker will copy: Python objects, whose pages are written as soon as anybody looks at them (reference counts).

Measured, not guessed: the objects are listed here, and a forked child looks at each once, as an epoch would, and reads from the kernel
how many bytes became its own. Arrays and tensors are not copied by looking, and not listed.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from antifreeze.checks.live.child import Asked, ask_child
from antifreeze.doctor.facts.proc import read_fair_memory
from antifreeze.parts import named_parts

MOST_OBJECTS = 3_000_000
LISTING_S = 8.0
LIMIT_S = 20.0
_FEWEST = 1000
_DEPTH = 4


@dataclass(frozen=True)
class Holding:
    """One attribute that holds many Python objects."""

    path: str
    kind: str
    length: int
    objects: int
    share: float
    """The part of it that was looked at; 1 unless it is too large."""
    copied: int
    """Bytes that looking at all of it copies, in each worker."""


def measure_copies(dataset: Any) -> Asked[tuple[Holding, ...]]:
    listed = [(path, value, *_list_objects(value)) for path, value in _containers(dataset, "dataset", _DEPTH, set())]
    if not listed:
        return Asked(())

    def look() -> tuple[Holding, ...]:
        gc.disable()
        return tuple(_look_at(path, value, objects, share) for path, value, objects, share in listed)

    return ask_child(look, LIMIT_S)


def _look_at(path: str, value: Any, objects: list[Any], share: float) -> Holding:
    before = _own_bytes()
    for _ in objects:  # taking a reference writes to the object
        pass
    copied = max(0, _own_bytes() - before)
    return Holding(path, type(value).__name__, len(value), int(len(objects) / share), share, int(copied / share))


def _own_bytes() -> int:
    memory = read_fair_memory(os.getpid())
    return memory.private if memory else 0


def _containers(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The largest holders: attributes that are lists, dicts and the like with many parts."""
    if id(value) in seen or isinstance(value, (str, bytes, torch.Tensor, type)):
        return
    seen.add(id(value))
    holds = isinstance(value, (list, tuple, dict, set, frozenset)) or (isinstance(value, np.ndarray) and value.dtype == object)
    if holds and len(value) >= _FEWEST:
        yield path, value
    elif depth and not isinstance(value, (set, frozenset, np.ndarray)):
        for name, part in named_parts(value):
            yield from _containers(part, f"{path}{name}", depth - 1, seen)


def _list_objects(value: Any) -> tuple[list[Any], float]:
    """(every object in it, the share of its parts that were listed before there were too many)."""
    found: list[Any] = []
    parts, deadline = _parts_of(value), time.monotonic() + LISTING_S
    for number, part in enumerate(parts):
        if len(found) >= MOST_OBJECTS or (number % 1000 == 0 and time.monotonic() > deadline):
            return found, max(number, 1) / len(parts)
        _add(part, found, _DEPTH)
    return found, 1.0


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.items())
    return list(value.flat) if isinstance(value, np.ndarray) else list(value)


def _add(value: Any, found: list[Any], depth: int) -> None:
    found.append(value)
    if not depth:
        return
    if isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            _add(part, found, depth - 1)
    elif isinstance(value, dict):
        for key, part in value.items():
            found.append(key)
            _add(part, found, depth - 1)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.Tensor, np.ndarray)):
        _add(vars(value), found, depth - 1)
