"""The parent's side of the slots: who holds which, and when one may be used again.

    free ──take()──▶ filling (workers write) ──lend()──▶ lent to the user ──last tensor dies──▶ free
                              └──give_back()──▶ free (a batch that failed)

1. A slot is lent through an array that every tensor of the batch keeps alive; its death is the end of the lease.
2. The ring never waits for the user: with nothing free it grows by a slot. From MAX_LENT lent slots on, batches are copied out
   by the caller (`crowded`), so that neither mappings nor descriptors grow with what the user keeps.
3. Slots that nobody needed for a while go back to the system. (Not at once: one that is needed again a moment later costs more
   than all it holds; its pages must be found, and locked, anew.)
4. A slot that was lent while the process forked stays as it is while that child may look at it: until the worker has ended
   (`quarantine`, `release_quarantine`), for ever where the user forked.
5. Where a device reads from slots, a keeper locks their pages and says when a slot that came home is free.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from typing import Any, Protocol

import numpy as np

from antifreeze.linux import on_fork
from antifreeze.living import living
from antifreeze.slots.arena import Arena

MAX_LENT = 64
SPARE_SLOTS = 2
A_WHILE = 256
"""So many slots taken."""

_USER_FORK = -1

_rings: weakref.WeakSet[Ring] = weakref.WeakSet()


class Keeper(Protocol):
    """Knows whether a device may still read from a slot that came home, and locks its pages (delivery/pinning.py)."""

    def lock(self, slot: int, mapped: Any) -> None: ...

    def unlock(self, slot: int) -> None: ...

    def mark(self, slot: int) -> Any: ...

    def is_done(self, mark: Any) -> bool: ...

    def close(self) -> None: ...

    def forget(self) -> None: ...


class Ring:
    keeper: Keeper | None = None
    holder: object = None
    """Whose it is now, with the workers that fill it: whoever is not may neither end them, nor hand it on, nor close it. It changes hands
    by this one store, which nothing can break off."""

    def __init__(self) -> None:
        self.arena = Arena.create()
        self.owner_pid = os.getpid()
        self._free: deque[int] = deque()
        self._retired: list[int] = []  # numbers whose memory went back to the system
        self._filling: set[int] = set()
        self._abandoned: set[int] = set()
        self._lent: dict[int, weakref.ref[Any]] = {}
        self._returned: deque[int] = deque()  # appended to by finalizers, in any thread, at any moment
        self._quarantined: dict[int, set[int]] = {}
        self._cooling: deque[tuple[int, Any]] = deque()  # came home, but a device may still read from them
        self._made = 0
        self._taken = 0
        self._never_needed = 0  # of the free slots, since the last look
        _rings.add(self)

    def __repr__(self) -> str:
        return f"<Ring {self._made} slots: {len(self._free)} free, {len(self._filling)} filling, {len(self._lent)} lent>"

    def take(self) -> int:
        self._welcome_back()
        self._retire_idle()
        if self._free:
            slot = self._free.pop()  # the one used last is the one whose pages are warm
        elif self._retired:
            slot = self._retired.pop()
        else:
            slot = self._made
            self._made += 1
        self._filling.add(slot)
        self._never_needed = min(self._never_needed, len(self._free))
        return slot

    def give_back(self, slot: int) -> None:
        """A slot that was taken but not lent; every worker that wrote to it has finished or is dead."""
        self._filling.discard(slot)
        if slot not in self._abandoned:
            self._free.append(slot)

    def recall_filling(self, usable: bool = True) -> None:
        """The workers that were filling them are gone; `usable`: all of them, so nobody writes there any more."""
        if usable:
            self._free.extend(self._filling)
        self._filling.clear()

    def abandon(self, slot: int) -> None:
        """Never use it again: a worker that cannot be ended may still write to it."""
        self._filling.discard(slot)
        self._abandoned.add(slot)

    def lend(self, slot: int, size_bytes: int) -> Any:
        """The slot's bytes; the slot comes home when the returned array and everything made over it are gone."""
        if self.keeper is not None and self.arena.mapped_bytes(slot) < size_bytes:
            self.keeper.unlock(slot)
        mapped: Any = self.arena.map(slot, size_bytes)
        if self.keeper is not None:
            self.keeper.lock(slot, mapped)
        owner = np.frombuffer(mapped, dtype=np.uint8)
        returned = self._returned
        self._filling.discard(slot)
        self._lent[slot] = weakref.ref(owner, lambda _: returned.append(slot))
        return owner

    @property
    def crowded(self) -> bool:
        self._welcome_back()
        return len(self._lent) >= MAX_LENT

    def used_bytes(self) -> int:
        return self.arena.used_bytes()

    def quarantine(self, holder: int) -> None:
        """What is lent now may be seen by `holder` (a worker about to be forked, or a process that the user forked)."""
        self._welcome_back()
        for slot in self._lent:
            self._quarantined.setdefault(slot, set()).add(holder)

    def release_quarantine(self, holder: int) -> None:
        for slot, holders in list(self._quarantined.items()):
            holders.discard(holder)
            if not holders:
                del self._quarantined[slot]
                if slot not in self._lent and all(slot != cooling for cooling, _ in self._cooling):
                    self._free.append(slot)

    def _welcome_back(self) -> None:
        while self._returned:
            slot = self._returned[0]
            mark = None if self.keeper is None else self.keeper.mark(slot)  # where that fails it is not home yet
            self._returned.popleft()
            del self._lent[slot]
            if mark is not None:
                self._cooling.append((slot, mark))
            elif slot not in self._quarantined:
                self._free.append(slot)
        while self._cooling and self.keeper is not None and self.keeper.is_done(self._cooling[0][1]):
            slot, _ = self._cooling.popleft()
            if slot not in self._quarantined:
                self._free.append(slot)

    def _retire_idle(self) -> None:
        self._taken += 1
        if self._taken % A_WHILE:
            return
        for _ in range(self._never_needed - SPARE_SLOTS):
            slot = self._free.popleft()
            if self.keeper is not None:
                self.keeper.unlock(slot)
            self.arena.discard(slot)
            self._retired.append(slot)
        self._never_needed = len(self._free)

    @property
    def closed(self) -> bool:
        return self.arena.descriptor < 0

    def close(self) -> None:
        """May be called twice; what is lent stays valid until it dies."""
        if self.keeper is not None:
            self.keeper.close()
        self._cooling.clear()
        self.arena.close()
        self._free.clear()
        self._filling.clear()


_own_fork = False


def mark_own_fork(active: bool) -> None:
    """A fork that starts a worker is accounted for by its pool."""
    global _own_fork
    _own_fork = active


def _after_fork_in_parent() -> None:
    if not _own_fork:
        for ring in living(_rings):
            ring.quarantine(_USER_FORK)


def _after_fork_in_child() -> None:
    for ring in living(_rings):
        if ring.keeper is not None:
            ring.keeper.forget()
        ring.close()  # the memory is the parent's to write; what the child was holding stays readable


on_fork(parent=_after_fork_in_parent, child=_after_fork_in_child)
