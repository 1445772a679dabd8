"""Whether a data set is still what it was when its workers were started, as far as a short look tells.

    epoch 1 begins ── attributes ──▶ the loop ──▶ epoch 1 ends ── attributes, the same? ──▶ its workers may stay
    epoch 1 ends ── likeness ──▶ the user's code ──▶ epoch 2 begins ── likeness, the same? ──▶ the workers' copies will do

1. Seen are: attributes set anew, numbers and strings, sizes, the order of lists, tensors written to, some elements of arrays; of the
   data set itself and of what it holds, the nearest MOST_LOOKS objects. It takes tens to hundreds of microseconds.
2. Not seen is a change of single elements of large arrays and containers, in tensors made in inference mode, or inside objects without
   attributes: there a worker's copy stays what it was, as with persistent_workers=True. `loader.close()` makes the next epoch begin
   with fresh workers.
3. Within an epoch the data set's own code may fill caches and the like, where the loop's process loads too: there only attributes count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from antifreeze.parts import Reach

MOST_LOOKS = 300
_SOME = 8
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset, torch.Tensor, np.ndarray)


def likeness(dataset: Any) -> tuple[Any, ...]:
    """Equal for a data set that has not changed."""
    return tuple(map(_look, _within(dataset)))


def attributes(dataset: Any) -> tuple[Any, ...]:
    """Equal for a data set of which no attribute was set anew, whatever has become of what is in its containers and arrays."""
    return tuple(_attributes(value) for value in _within(dataset) if not isinstance(value, _CONTAINERS))


def _within(dataset: Any) -> Iterator[Any]:
    """The data set and what it holds."""
    reach = Reach(dataset, _PLAIN, MOST_LOOKS)
    for value in reach.found:
        yield value
        reach.add(_parts(value))


def _look(value: Any) -> Any:
    """What tells a value from another one: itself where it is plain, who it is and some of what is in it otherwise."""
    if isinstance(value, _PLAIN):
        return value if not isinstance(value, (str, bytes)) else hash(value)
    if isinstance(value, torch.Tensor):
        return id(value), 0 if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        step = max(1, value.size // _SOME) if value.ndim == 1 else max(1, len(value) // _SOME) if value.ndim else 1
        return id(value), value.shape, hash(value[::step][: _SOME + 1].tobytes()) if value.ndim and value.dtype != object else 0
    if isinstance(value, (list, tuple)):
        return id(value), len(value), tuple(_name(part) for part in _some(value))
    if isinstance(value, (dict, set, frozenset)):
        return id(value), len(value)
    return _attributes(value)


def _attributes(value: Any) -> Any:
    return id(value), tuple((name, _name(part)) for name, part in getattr(value, "__dict__", {}).items())


def _name(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, type(None))) else hash(value) if isinstance(value, (str, bytes)) else id(value)


def _some(values: Any) -> Any:
    return values if len(values) <= 2 * _SOME else values[:: len(values) // _SOME]


def _parts(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, np.ndarray, type)):
        return ()
    if isinstance(value, (list, tuple)):
        return _some(value)
    if isinstance(value, dict):
        return [part for part, _ in zip(value.values(), range(_SOME), strict=False)]
    return getattr(value, "__dict__", {}).values()
