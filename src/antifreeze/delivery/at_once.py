"""A batch that is loaded when it is asked for, in the loop's own process: without workers, and where "auto" has none at work.

    next() ──take──▶ the next of the plan ──load──▶ handed over
                                              └──── cannot be loaded ──▶ the user's error; where there may be workers, it is left to them

1. What is left to workers is the next of the plan again.
"""

from __future__ import annotations

from typing import Any

from antifreeze.delivery.batches import size_within
from antifreeze.delivery.flights import Flights
from antifreeze.delivery.handing_over import HandOver
from antifreeze.delivery.local_pool import LocalPool
from antifreeze.delivery.position import Cursor
from antifreeze.delivery.stages import in_stage
from antifreeze.delivery.steering import NotHere
from antifreeze.plan.map_plan import PlannedBatch
from antifreeze.signals import came_from_signal
from antifreeze.supervisor.pool import Pool
from antifreeze.worker.task import FetchError


class AtOnce:
    def __init__(self, flights: Flights, hand_over: HandOver, cursor: Cursor, budget_bytes: int | None, may_have_workers: bool) -> None:
        self._flights = flights
        self._hand_over = hand_over
        self._cursor = cursor
        self._budget_bytes = budget_bytes
        self._may_have_workers = may_have_workers

    def take(self, pool: LocalPool) -> PlannedBatch | None:
        """The next of the plan; None where that is its end, or an error of the sampler's."""
        planned = self._flights.planned
        self._flights.plan_next(as_list=not pool.gathers)
        if not planned or isinstance(planned[0], BaseException):
            return None
        return planned.popleft()  # type: ignore[return-value]

    def load(self, planned: PlannedBatch, pool: LocalPool, of: Pool | LocalPool, watched: bool) -> Any:
        """What the loop gets; `of`: the pool that the loop looks after."""
        failed, rows = None, planned.rows
        try:
            load = in_stage("load", pool.load) if watched else pool.load
            data, size = load(planned.number, planned.indices, planned.position, rows)
        except FetchError as error:
            failed = error
        if failed is not None:
            try:
                raise self._instead_of(planned, failed)
            finally:
                failed = None  # its traceback leads here
        self._cursor.delivered = self._cursor.delivered.add(planned)
        size = size if size or self._budget_bytes is None else size_within(self._budget_bytes, data)
        return self._hand_over.give_made(data, rows, size, of)

    def _instead_of(self, planned: PlannedBatch, failed: FetchError) -> BaseException:
        """Of a batch that could not be loaded."""
        if self._may_have_workers and not came_from_signal(failed):
            self._flights.planned.appendleft(planned)
            return NotHere(failed.failure.message)
        self._cursor.delivered = self._cursor.delivered.add(planned)
        return self._hand_over.to_raise(planned, failed.failure.row or 0, failed, planned.number)
