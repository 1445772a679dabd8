"""From a batch that is there to the user's hands: counted, pinned where he asks for it; and what is raised in the place of one that failed.

1. Whoever made it (workers, or the loop itself) does not matter here.
2. Every so many batches is a moment to look at memory: at that of the slots, and at a worker's; and at what this process has used.
"""

from __future__ import annotations

from array import array
from typing import Any

from antifreeze.delivery.bad_samples import BadSampleDesk, exception_of, failure_of
from antifreeze.delivery.ledger import Ledger
from antifreeze.delivery.local_pool import LocalPool
from antifreeze.delivery.pinning import PageLock
from antifreeze.delivery.position import Cursor
from antifreeze.delivery.traps import Traps
from antifreeze.naming import shown
from antifreeze.plan.map_plan import PlannedBatch
from antifreeze.signals import came_from_signal
from antifreeze.supervisor.pool import Pool
from antifreeze.supervisor.sample_path import path_of
from antifreeze.torch_private import pin_batch
from antifreeze.worker.seeding import sample_seed

_LOOK_AT_MEMORY_EVERY, _FIRST_BATCHES, _LATER_EVERY = 8, 256, 64


class HandOver:
    def __init__(
        self,
        ledger: Ledger,
        traps: Traps,
        desk: BadSampleDesk,
        cursor: Cursor,
        dataset: Any,
        *,
        collates: bool,
        pins: bool,
        pin_device: Any,
        feeds_from_pinned: bool,
    ) -> None:
        self._ledger = ledger
        self._traps = traps
        self._desk = desk
        self._cursor = cursor
        self._dataset = dataset
        self._collates = collates
        self._pins = pins
        self._may_pin = pins or feeds_from_pinned
        self._pin_device = pin_device
        self._feeds_from_pinned = feeds_from_pinned

    def give(self, data: Any, samples: int, size_bytes: int, pool: Pool | LocalPool) -> Any:
        """What the loop gets."""
        timing = self._ledger.timing
        timing.batches += 1
        timing.samples += samples
        timing.delivered_bytes += size_bytes
        timing.largest_bytes = max(timing.largest_bytes, size_bytes)
        if timing.batches % (_LOOK_AT_MEMORY_EVERY if timing.batches < _FIRST_BATCHES else _LATER_EVERY) == 1:
            self._look_at_memory(pool)
            timing.own.look(timing.batches)
        return self._pinned(data, pool.ring.keeper) if self._may_pin else data

    def give_made(self, data: Any, samples: int, size_bytes: int, pool: Pool | LocalPool) -> Any:
        """The same for what was made in this process: it may be the data set's own storage."""
        self._ledger.costs.copies.made += 1
        if not self._collates:
            self._traps.handed_out(data)
        return self.give(data, samples, size_bytes, pool)

    def _pinned(self, data: Any, lock: Any) -> Any:
        """Over locked slots it is pinned already, and torch's pin_memory hands it back as it is."""
        refused = lock.refused if isinstance(lock, PageLock) else None
        if refused is not None:
            self._traps.say("page-lock", f"batches are copied to pinned memory one by one: {refused}")
        unlocked = not isinstance(lock, PageLock) or refused is not None
        self._ledger.costs.copies.pinned += unlocked and (self._pins or self._feeds_from_pinned)
        if self._pins:
            return pin_batch(data, self._pin_device)
        return self._pinned_for_feed(data) if self._feeds_from_pinned and unlocked else data

    def _pinned_for_feed(self, data: Any) -> Any:
        """Nobody asked for it but we, so that without it copies are slower, and that is all."""
        try:
            return pin_batch(data, self._pin_device)
        except Exception as error:
            if came_from_signal(error):
                raise
            self._feeds_from_pinned = False
            why = str(error).strip().partition("\n")[0]
            self._traps.say("pinned", f"batches are copied to the device from memory that is not page-locked, which is slower: {why}")
            return data

    def _look_at_memory(self, pool: Pool | LocalPool) -> None:
        self._ledger.most_in_flight_bytes = max(self._ledger.most_in_flight_bytes, pool.ring.used_bytes())
        if isinstance(pool, Pool) and pool.look_at_memory():
            self._traps.busy_threads([worker.busy_threads for worker in self._ledger.costs.memory.workers.values()])

    def to_raise(self, planned: PlannedBatch | None, row: int, error: Any, number: int) -> BaseException:
        """The exception that batch `number` ends with; noted, and with the sample's file where the data set tells."""
        cursor, epoch, failure = self._cursor, self._ledger.timing.epochs, failure_of(error)
        if planned is None:
            seed = sample_seed(cursor.base_seed, cursor.epoch, failure.position or 0)
            self._desk.note_raised(failure, None, epoch=epoch, batch=number, seed=seed)
            return exception_of(error)
        indices = planned.indices if isinstance(planned.indices, (list, tuple, array)) else [planned.indices]
        index = indices[row] if 0 <= row < len(indices) and shown(indices[row], failure.position) == failure.index else None
        seed = sample_seed(cursor.base_seed, cursor.epoch, planned.position + row)
        self._desk.note_raised(failure, index, epoch=epoch, batch=number, seed=seed)
        return exception_of(error, path_of(self._dataset, index))
