"""Shared memory, and the pool that fills it, in the custody of one iterator.

    loader ──a ring, the workers of the last epoch──▶ Custody ──end──▶ nobody has them
                                                         └────park──▶ the loader has the workers, for its next epoch

1. They are in one hand at each moment (`Ring.holder`): whoever is not the holder neither ends them nor hands them on.
2. They end with their iterator, whose only part this is that knows of their end.
3. An exception of a signal's handler may fall into any line here; what was begun is begun again.
"""

from __future__ import annotations

import weakref
from typing import Any

from antifreeze.delivery.autopilot import Autopilot
from antifreeze.delivery.job import Job, Seeding
from antifreeze.delivery.ledger import Ledger
from antifreeze.delivery.local_pool import Lent, LocalPool
from antifreeze.delivery.next_epoch import NextEpoch
from antifreeze.delivery.pinning import page_lock
from antifreeze.slots.ring import Ring
from antifreeze.supervisor.crew import Crew
from antifreeze.supervisor.pool import Pool


class Custody:
    is_parked = False

    def __init__(self, loader: Any, job: Job, auto: Autopilot | None, pinned: bool) -> None:
        self._loader_ref = weakref.ref(loader)
        self._job = job
        self._auto = auto
        self._pinned = pinned
        self._ledger: Ledger = loader._ledger
        self.ring: Ring
        self.pool: Pool | LocalPool
        self.hosting = False  # of streams that began with another number of workers
        self._holder: object = None
        self._end: weakref.finalize[Any, Any] | None = None
        self._at_first: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"<Custody of {self.pool!r}, {'' if self.is_held else 'no longer '}held>"

    @property
    def is_held(self) -> bool:
        """Whether pool and ring are ours: between two epochs they may be the loader's."""
        return self.ring.holder is self._holder

    @property
    def goes_on(self) -> bool:
        """Whether the next pass has the workers of this one."""
        return isinstance(self.pool, Pool) and not self.pool.closed and self.is_held

    def find_parked(self, loader: Any) -> tuple[bool, NextEpoch | None]:
        """Whether workers are left from the last epoch, and what they have loaded of this one."""
        if self._auto is None:
            return False, None
        pool, next_epoch = loader._find_parked()
        self._at_first = loader._attributes()
        if pool is not None:
            self.pool, self.ring = pool, pool.ring
        return pool is not None, next_epoch

    def borrow(self, loader: Any, seeding: Seeding, hosting: bool) -> None:
        """A ring of the loader's, and a pool that has done nothing yet, in the place of what there was."""
        if self._end is not None:
            self._end.detach()
        ring: Ring = loader._borrow_ring()
        if self._pinned and ring.keeper is None:
            ring.keeper = page_lock()
        auto = self._auto  # which may have been forbidden to load here since the last pool was made
        begin_with = None if auto is None else 0 if auto.may_inline else auto.setting.workers
        self.ring, self.hosting = ring, hosting
        self.pool = self._job.pool(seeding, ring, self._ledger, begin_with, hosting)

    def begin(self) -> None:
        """From here on they are ours."""
        holder = object()
        held = self.pool.crew if isinstance(self.pool, Pool) else self.pool.lent
        self._end = weakref.finalize(self, _close, holder, held, self._loader_ref, self.ring, unheard=True)
        self._holder = holder
        self.ring.holder, self.is_parked = holder, False

    def end(self) -> bool:
        """Whether they were ours to end; may be called twice."""
        if self._end is None or not self.is_held:
            return False
        unended = self._end.peek()
        if unended is not None:
            _, close, args, _ = unended
            close(*args)
            self._end.detach()
        self.pool.contents.clear()
        self.pool.collated.clear()
        self.pool.state.forget_all()
        return True

    def end_unheard(self) -> None:
        """Nobody is left who could be told anything."""
        if self._end is not None:
            self._end()

    def park(self, next_epoch: NextEpoch | None) -> bool:
        """With "auto", workers stay for the next epoch: whether the loader has taken them."""
        loader, pool = self._loader_ref(), self.pool
        if loader is None or self._job.worker_init_fn is not None or not isinstance(pool, Pool) or pool.closed:
            return False
        loader._park(pool, next_epoch, self._at_first)
        self.is_parked = True
        if self._end is not None:
            self._end.detach()
        return True


def _close(holder: object, held: Crew | Lent, loader_ref: Any, ring: Ring, unheard: bool = False) -> None:
    """Unless they have another holder by now."""
    if ring.holder is not holder:
        return
    try:
        held.close(unheard)
    finally:
        loader = loader_ref()
        if loader is not None:
            loader._fork_is_unsafe |= isinstance(held, Crew) and held.use_server
            loader._return_ring(ring)
        else:
            ring.close()
