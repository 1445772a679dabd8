"""Batches that were in flight: the next one in order, repaired where samples of it are bad, and what the loop gets of it.

    in flight ──next──▶ resolved, and whole again ──deliver──▶ tensors over its slot, or what was collated; or its error

1. A batch is delivered once, or its error is raised once; either way it is in flight no more, and others are given out in its place.
2. Of a batch that was loaded before its epoch began only what is good counts: anything else is loaded again, within the epoch.
"""

from __future__ import annotations

import weakref
from typing import Any

from antifreeze.delivery.batches import build, size_within
from antifreeze.delivery.flights import Flights, InFlight, Shape
from antifreeze.delivery.handing_over import HandOver
from antifreeze.delivery.ranks import Ranks
from antifreeze.delivery.repair import Repair
from antifreeze.delivery.stages import in_stage
from antifreeze.delivery.traps import Traps
from antifreeze.supervisor.tasks import Batch, Phase


class Arrivals:
    def __init__(
        self,
        flights: Flights,
        repair: Repair,
        hand_over: HandOver,
        traps: Traps,
        ranks: Ranks | None,
        shape: Shape,
        loader_ref: weakref.ref[Any],
        *,
        workers: int,
        timeout_s: float | None,
        budget_bytes: int | None,
    ) -> None:
        self._flights = flights
        self._repair = repair
        self._hand_over = hand_over
        self._traps = traps
        self._ranks = ranks
        self._shape = shape
        self._loader_ref = loader_ref
        self._workers = workers
        self._timeout_s = timeout_s
        self._budget_bytes = budget_bytes

    def next(self, watched: bool) -> tuple[InFlight, Batch] | None:
        """The next batch in order (or any, where order does not matter) that can be delivered, or that failed; None where nothing is in
        flight any more."""
        flights, pool, repair = self._flights, self._flights.pool, self._repair
        while True:
            if not self._workers:
                flights.go_on()
            if not flights.in_flight and not (self._ranks is not None and flights.repeat_some(self._ranks)):
                return None
            wait = in_stage("wait for workers", pool.wait_resolved) if watched else pool.wait_resolved
            batch = wait(flights.pick, flights.waiting_for, self._timeout_s)
            flight = flights.in_flight[batch.number]
            if batch.left_out or batch.stops_with is not None:
                repair.account_for_left_out(flight, batch)
            if flight.ahead and batch.phase is not Phase.READY:
                flight.ahead = False  # loaded before its epoch began: an error must be one of its epoch
                pool.reload(batch.number, pool.contents[batch.number].indices, batch.rows)
            elif batch.phase is Phase.EMPTY:
                self._end_stream(flight, batch)
            elif (flight.moved_up or flight.cut) and batch.phase is not Phase.FAILED and not repair.shorten(flight, batch):
                pass  # what is left of it is being loaded again, or it went altogether
            elif batch.phase is not Phase.HOLED or repair.repair(flight, batch):
                return flight, batch

    def _end_stream(self, flight: InFlight, batch: Batch) -> None:
        flights = self._flights
        assert flight.stream is not None and flights.cursor.streams is not None
        flights.stream_plan.end(flight.stream)
        flights.cursor.streams = flights.cursor.streams.ended(flight.stream)
        flights.let_go(flight, batch)
        flights.submit()

    def deliver(self, flight: InFlight, batch: Batch) -> tuple[Any, int]:
        """What the loop gets, and its size in bytes."""
        flights, pool = self._flights, self._flights.pool
        try:
            if batch.phase is Phase.FAILED:
                pool.ring.give_back(batch.slot)
                row = min(batch.errors)
                number = pool.contents[batch.number].number
                raise self._hand_over.to_raise(flight.planned, row, batch.errors.pop(row), number)
            if self._shape.splits and batch.parcel_bytes is not None:
                self._remember_no_rows()
            if batch.parcel_bytes is not None and batch.number in pool.collated:
                pool.ring.give_back(batch.slot)
                collated = pool.collated.pop(batch.number)
                pool.costs.copies.made += 1
                if not self._shape.auto_collation:
                    self._traps.handed_out(collated)
                return collated, size_within(self._budget_bytes, collated)
            if flight.stream is not None and self._workers > 1:  # of what is handed over as it is there are no bytes to compare
                size = batch.parcel_bytes or pool.layouts[batch.layout or 0].offsets(batch.rows)[-1]
                self._traps.first_of_stream(flight.stream, memoryview(pool.ring.arena.map(batch.slot, size))[:size])
            self._count(batch)
            return build(batch, pool.layouts, pool.ring, pool.costs.copies)
        finally:
            flights.note_delivered(flight, batch)
            flights.let_go(flight, batch, slot=False)
            if self._workers and not flights.inline:
                flights.go_on()

    def _count(self, batch: Batch) -> None:
        copies = self._flights.pool.costs.copies
        if not self._workers:
            copies.made += 1
        elif batch.parcel_bytes is None:
            copies.rows += 1
        else:
            copies.parcels += 1

    def _remember_no_rows(self) -> None:
        self._flights.whole_only = True
        loader = self._loader_ref()
        if loader is not None:
            loader._rows_failed = True
