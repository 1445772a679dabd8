"""The data set as it was found: what it came to hold while this process itself loaded samples of it is not for workers that start later.

    the loop loads a batch ── a connection, a pool of threads, a client: opened on first use ──▶ attributes of the data set
    a worker is started ───── those attributes as they were before ──▶ it opens its own, as if it had been there first

1. Seen are attributes, lists, dicts and sets, MOST_LOOKS of them, from the data set on, and the names of the modules of data sets.
2. Only what a load has changed is put back, and only where nobody has changed it since: what the user sets is the user's.
3. Noted are the first batches of a pass, which is when things are opened: to look takes some tens of microseconds.
4. A forked worker puts it back in its own copy. It does not close what is out of sight then: that could end what its parent has (a
   database's journal, a session). For a pickle it is put back here, for as long as that takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset

from antifreeze.parts import Reach

MOST_LOOKS = 300
WIDEST = 64
"""Containers with more in them are data."""
NOTED_BATCHES = 4

_T = TypeVar("_T")
_LEAVES = (str, bytes, int, float, bool, type(None), torch.Tensor, np.ndarray, type, ModuleType, FunctionType)
_ALL = object()  # the key of all that is in a list or a set
_ABSENT = object()


@dataclass(frozen=True)
class _Change:
    """What a load has put in the place of what."""

    owner: Any
    key: Any
    before: Any
    after: Any

    def is_in_force(self) -> bool:
        return _is_same(_held_by(self.owner).get(self.key, _ABSENT), self.after)

    def put(self, value: Any) -> None:
        if self.key is not _ALL and value is _ABSENT:
            self.owner.pop(self.key, None)
        elif self.key is not _ALL:
            self.owner[self.key] = value
        elif isinstance(self.owner, list):
            self.owner[:] = value
        else:
            self.owner.clear()
            self.owner.update(value)


class AsFound:
    def __init__(self) -> None:
        self._changes: dict[tuple[int, Any], _Change] = {}
        self._left = 0

    def __repr__(self) -> str:
        return f"<AsFound: {len(self._changes)} changes>"

    def begin_pass(self) -> None:
        self._left = NOTED_BATCHES

    @property
    def is_noting(self) -> bool:
        """The first batches of a pass."""
        return self._left > 0

    def noting(self, dataset: Any, load: Callable[[], _T]) -> _T:
        """What `load` returns, one of those batches."""
        self._left -= 1
        return self.note(dataset, load)

    def note(self, dataset: Any, load: Callable[[], _T]) -> _T:
        owners = {id(owner): (owner, _held_by(owner)) for owner in _owners(dataset)}
        try:
            return load()
        finally:
            for owner, before in owners.values():
                self._compare(owner, before, _held_by(owner))

    def _compare(self, owner: Any, before: dict[Any, Any], after: dict[Any, Any]) -> None:
        moved = [key for key, value in after.items() if before.get(key, _ABSENT) is not value]
        for key in [*moved, *(key for key in before if key not in after)]:
            change = _Change(owner, key, before.get(key, _ABSENT), after.get(key, _ABSENT))
            if not _is_same(change.before, change.after):
                earlier = self._changes.get((id(owner), key))
                goes_on = earlier is not None and _is_same(earlier.after, change.before)
                self._changes[id(owner), key] = replace(change, before=earlier.before) if earlier is not None and goes_on else change

    def __reduce__(self) -> Any:
        """What is pickled is as it was found."""
        return AsFound, ()

    def put_back(self) -> list[_Change]:
        """In a worker: from now on the data set is as it was found. What is out of sight is still held here, and so not closed."""
        changes = [change for change in self._changes.values() if change.is_in_force()]
        for change in changes:
            change.put(change.before)
        return changes

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """In the process that loads: within this the data set is as it was found."""
        changes = self.put_back()
        try:
            yield
        finally:
            for change in changes:
                change.put(change.after)


def _owners(dataset: Any) -> Iterator[Any]:
    """Dicts, lists and sets in which a data set may keep what it opens."""
    reach = Reach(dataset, _LEAVES, MOST_LOOKS)
    for value in reach.found:
        module = sys.modules.get(type(value).__module__) if isinstance(value, Dataset) or value is dataset else None
        if module is not None:
            yield vars(module)
        held = value if isinstance(value, (dict, list, set)) else getattr(value, "__dict__", None)
        if type(held) in (dict, list, set) and (held is not value or len(held) <= WIDEST):
            yield held
        reach.add(_parts(value, held))


def _parts(value: Any, held: Any) -> Any:
    if isinstance(value, (list, tuple, set, dict)) and len(value) > WIDEST:
        return ()
    if isinstance(value, (list, tuple, set)):
        return value
    return list(held.values()) if isinstance(held, dict) else ()


def _held_by(owner: Any) -> dict[Any, Any]:
    return dict(owner) if isinstance(owner, dict) else {_ALL: tuple(owner)}


def _is_same(one: Any, other: Any) -> bool:
    """The very same; of what is in a list or a set, all of it."""
    if type(one) is tuple and type(other) is tuple and len(one) == len(other):
        return all(a is b for a, b in zip(one, other, strict=True))
    return one is other
