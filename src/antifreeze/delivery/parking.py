"""Workers between two epochs, with num_workers="auto": they wait for the next one, or load the beginning of it already.

1. They end with their loader, or when it is closed.
2. They have a copy of the data set as it was: where it looks otherwise when the next epoch begins, they are ended, and not used.
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
    end: weakref.finalize[Any, Any]


class Parking:
    """A loader's place for one pool."""

    def __init__(self) -> None:
        self._parked: _Parked | None = None

    def __repr__(self) -> str:
        return f"<Parking of {self.pool!r}>"

    @property
    def pool(self) -> Pool | None:
        return None if self._parked is None else self._parked.pool

    def take_in(self, pool: Pool, next_epoch: NextEpoch | None, looks: Any) -> None:
        """`looks`: of what the workers have a copy of. Where another pool waits already, this one is ended."""
        if self._parked is not None:
            end_pool(pool.crew, pool.ring)
        else:
            self._parked = _Parked(pool, next_epoch, looks, weakref.finalize(self, end_pool, pool.crew, pool.ring))

    def try_give(self, look: Callable[[], Any]) -> tuple[Pool | None, NextEpoch | None]:
        """The pool, if it is still of use, and what it has of the next epoch; from now on they are the caller's. `look`: at what is there
        now of what the workers have a copy of."""
        parked = self._parked
        if parked is None:
            return None, None
        if parked.pool.crew.owner_pid != os.getpid() or parked.pool.closed or parked.looks != look():
            self.end()
            return None, None
        self._parked = None
        parked.end.detach()
        return parked.pool, parked.next_epoch

    def end(self) -> None:
        """May be called twice."""
        parked, self._parked = self._parked, None
        if parked is not None and parked.end.detach() is not None:
            if parked.next_epoch is not None:
                parked.next_epoch.forget()
            end_pool(parked.pool.crew, parked.pool.ring)


def end_pool(crew: Crew, ring: Ring) -> None:
    try:
        crew.close()
    finally:
        ring.close()
