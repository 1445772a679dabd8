"""Workers between two epochs, with num_workers="auto": they wait for the next one, or load the beginning of it already.

1. They end with their loader, or when it is closed.
2. They have a copy of the data set as it was: where it looks otherwise when the next epoch begins, they are ended, and not used.
3. They are in one hand at each moment (`Ring.holder`): an exception of a signal's handler finds them here, or with the iterator.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from antifreeze.delivery.next_epoch import NextEpoch
from antifreeze.slots.ring import Ring
from antifreeze.supervisor.crew import Crew
from antifreeze.supervisor.pool import Pool


class _Parked(NamedTuple):
    pool: Pool
    next_epoch: NextEpoch | None
    looks: Any
    holder: object
    end: weakref.finalize[Any, Any]


class Parking:
    """A loader's place for one pool."""

    def __init__(self) -> None:
        self._parked: _Parked | None = None

    def __repr__(self) -> str:
        return f"<Parking of {self.pool!r}>"

    @property
    def pool(self) -> Pool | None:
        return self._parked.pool if self._parked is not None and self._parked.pool.ring.holder is self._parked.holder else None

    def take_in(self, pool: Pool, next_epoch: NextEpoch | None, looks: Any) -> None:
        """`looks`: of what the workers have a copy of. Where another pool waits already, this one is ended."""
        if self.pool is not None:
            end_pool(pool.ring.holder, pool.crew, pool.ring)
            return
        self.forget_given()
        holder = object()
        self._parked = _Parked(pool, next_epoch, looks, holder, weakref.finalize(self, end_pool, holder, pool.crew, pool.ring))
        pool.ring.holder = holder

    def find(self, look: Callable[[], Any]) -> tuple[Pool | None, NextEpoch | None]:
        """The pool, if it is still of use, and what it has of the next epoch: the caller's when he makes himself its holder. `look`: at
        what is there now of what the workers have a copy of."""
        parked = self._parked
        if parked is None or self.pool is None:
            return None, None
        if parked.pool.crew.owner_pid != os.getpid() or parked.pool.closed or parked.looks != look():
            self.end()
            return None, None
        return parked.pool, parked.next_epoch

    def forget_given(self) -> None:
        """What is in another hand by now."""
        if self._parked is not None and self.pool is None:
            self._parked.end.detach()
            self._parked = None

    def end(self) -> None:
        """May be called twice."""
        if self._parked is not None and self.pool is not None:
            if self._parked.next_epoch is not None:
                self._parked.next_epoch.forget()
            self._parked.end()
        self.forget_given()
        self._parked = None


def end_pool(holder: object, crew: Crew, ring: Ring) -> None:
    """Unless they have another holder by now."""
    if ring.holder is not holder:
        return
    try:
        crew.close()
    finally:
        ring.close()
