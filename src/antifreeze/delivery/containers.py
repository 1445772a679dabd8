"""The largest container of small Python objects in a data set: what a forked worker copies page by page, only by looking at it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from antifreeze.parts import named_parts

_MANY = 10_000
_LOOKED_AT = 64
_DEPTH = 4
_SETS = (set, frozenset)
_CONTAINERS = (list, tuple, dict, *_SETS)


@dataclass(frozen=True)
class Container:
    path: str
    kind: str
    of: str
    length: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.path}: {self.kind} of {self.length:,} {self.of}"


def largest_container(dataset: Any) -> Container | None:
    """Estimated from a few of its elements; None where none is large."""
    found = [_measured(path, value) for path, value in _containers(dataset, "dataset", _DEPTH, set())]
    return max(found, key=lambda container: container.size_bytes, default=None)


def _containers(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(value) in seen or not depth:
        return
    seen.add(id(value))
    is_container = isinstance(value, _CONTAINERS)
    if is_container and len(value) >= _MANY:
        yield path, value
    elif not isinstance(value, type):
        listed = list(value) if isinstance(value, _SETS) else value
        for name, part in named_parts(listed, _LOOKED_AT if is_container else None):
            yield from _containers(part, f"{path}{name}", depth - 1, seen)


def _measured(path: str, value: Any) -> Container:
    elements = value.values() if isinstance(value, dict) else value
    step = max(1, len(value) // _LOOKED_AT)
    some = (
        [value[at] for at in range(0, len(value), step)]
        if isinstance(value, list | tuple)
        else list(itertools.islice(elements, _LOOKED_AT))
    )
    each = sum(map(_deep_size, some)) / max(1, len(some))
    kinds = {type(element).__name__ for element in some}
    return Container(path, type(value).__name__, " or ".join(sorted(kinds)), len(value), int(sys.getsizeof(value) + each * len(value)))


def _deep_size(element: Any, depth: int = 2) -> int:
    size = sys.getsizeof(element, 64)
    if depth and isinstance(element, list | tuple):
        size += sum(_deep_size(part, depth - 1) for part in element[:_LOOKED_AT])
    elif depth and isinstance(element, dict):
        size += sum(_deep_size(part, depth - 1) for part in itertools.islice(element.values(), _LOOKED_AT))
    return size
