"""What the data set of a worker keeps ever more of, found where it is: in the worker. A leak has a name there, and none in the parent.

1. Containers are counted when the worker begins, and again each time it has grown by STEP_KIB; nothing is looked at in between.
2. Looked at are the attributes of the data set and of what it holds, the names of its module, and what `functools` caches for it.
3. It costs a few lengths, never a walk through what is in a container.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

STEP_KIB = 32 << 10
_DEPTH = 3
_MOST_NAMES = 500
_LOOKED_AT = 4
_CONTAINERS = (list, dict, set, deque, bytearray)


class Hoard:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._before: dict[str, int] | None = None
        self._next_kib = 0

    def __repr__(self) -> str:
        return f"<Hoard: {len(self._before or ())} containers, next look at {self._next_kib} KiB>"

    def look(self, grown_to_kib: int) -> str | None:
        """What has grown most since the first look, in words; mostly None."""
        if grown_to_kib < self._next_kib:
            return None
        self._next_kib = grown_to_kib + STEP_KIB
        try:
            return self._compare()
        except Exception:
            return None  # what is looked at is the user's: a property may raise, a thread may change a container under our hands

    def _compare(self) -> str | None:
        counted = {name: (len(value), value) for name, value in islice(_containers(self._dataset), _MOST_NAMES)}
        before = self._before
        if before is None:
            self._before = {name: count for name, (count, _) in counted.items()}
            return None
        more = {name: (count - before.get(name, 0)) * _size_of_one(value) for name, (count, value) in counted.items()}
        enough = [name for name in more if more[name] >= STEP_KIB << 8]  # a quarter of what has come since the last look
        if not enough:
            return None
        most = max(enough, key=lambda name: (not isinstance(counted[name][1], _Cached), more[name]))
        count, value = counted[most]
        kind = "" if isinstance(value, _Cached) else f" ({type(value).__name__})"
        return f"{most}{kind} grew from {before.get(most, 0):,} to {count:,} entries"


class _Cached:
    """What `functools.lru_cache` keeps for a function."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __len__(self) -> int:
        return int(self._function.cache_info().currsize)


def _containers(dataset: Any) -> Iterator[tuple[str, Any]]:
    yield from _of_object(dataset, "dataset", _DEPTH, {id(dataset)})
    module = sys.modules.get(type(dataset).__module__)
    if module is not None:
        for name, value in list(vars(module).items()):
            if isinstance(value, _CONTAINERS) and not name.startswith("__"):
                yield f"{module.__name__}.{name}", value
            elif _is_cached(value):
                yield f"the cache of {module.__name__}.{name}", _Cached(value)


def _of_object(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    for name, function in list(vars(type(value)).items()):
        if _is_cached(function):
            yield f"the cache of {path}.{name}", _Cached(function)
    for name, part in list(getattr(value, "__dict__", {}).items()):
        if isinstance(part, _CONTAINERS):
            yield f"{path}.{name}", part
        elif depth > 1 and id(part) not in seen and hasattr(part, "__dict__") and not isinstance(part, type):
            seen.add(id(part))
            yield from _of_object(part, f"{path}.{name}", depth - 1, seen)


def _is_cached(function: Any) -> bool:
    return callable(getattr(function, "cache_info", None)) and callable(function)


def _size_of_one(value: Any) -> int:
    """Of what lies in it, from a few."""
    if isinstance(value, bytearray):
        return 1
    if isinstance(value, _Cached):
        return 1 << 20  # what it keeps cannot be seen: it is named only where nothing else is
    some = islice(value.values() if isinstance(value, dict) else value, _LOOKED_AT)
    return max((int(getattr(one, "nbytes", 0)) + sys.getsizeof(one, 64) for one in some), default=0)
