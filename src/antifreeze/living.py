"""Those of a kind that live now, looked at while other threads make more of them."""

from __future__ import annotations

from typing import TypeVar
from weakref import WeakSet

T = TypeVar("T")


def living(members: WeakSet[T]) -> list[T]:
    """A WeakSet breaks off its iteration where somebody adds to it meanwhile; a lock would be waited for by finalizers."""
    while True:
        try:
            return list(members)
        except RuntimeError:
            continue
