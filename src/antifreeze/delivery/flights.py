"""What is planned and what is in flight: how far ahead of the loop, and who waits for what.

    plan ──plan_ahead──▶ planned (indices only) ──submit──▶ in flight (slots) ──pick──▶ resolved ──let_go

1. Not more batches are in flight than are planned: a few where they are large, otherwise two for each worker (policy.py).
2. A batch is in flight under a ticket of its own until it is let go; in order means in the order in which they were put there.
3. What of the next epoch is given out ahead of it (next_epoch.py) is not in flight here until that epoch has begun.
4. A batch that the loop itself made while it waited for others is in flight like them, and there already.
"""

from __future__ import annotations

import copy
import itertools
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from antifreeze.delivery.ledger import Ledger
from antifreeze.delivery.local_pool import LocalPool
from antifreeze.delivery.next_epoch import NextEpoch
from antifreeze.delivery.position import Cursor
from antifreeze.delivery.ranks import Ranks
from antifreeze.options import Options, WorkerKind
from antifreeze.plan.map_plan import MapPlan, PlannedBatch
from antifreeze.plan.stream_plan import StreamPlan
from antifreeze.signals import came_from_signal
from antifreeze.supervisor.policy import (
    batches_in_flight,
    few_or_small,
    tasks_per_batch,
    tasks_per_batch_in_threads,
    window_batches,
    within_budget,
)
from antifreeze.supervisor.pool import Pool
from antifreeze.supervisor.tasks import Batch, Phase
from antifreeze.supervisor.work import Content

_KEPT_TO_REPEAT = 16
_MADE_AT_MOST = 3
"""Batches that the loop makes while it waits for one: those of workers come between them."""
_tickets = itertools.count()
"""Of all iterators: a pool may serve several, one after the other."""


@dataclass
class InFlight:
    """A batch given to the pool under `ticket`."""

    ticket: int
    planned: PlannedBatch | None
    stream: int | None
    attempts: dict[int, int] = field(default_factory=dict)
    left_out: set[int] = field(default_factory=set)  # bad rows whose place nothing takes
    moved_up: int = 0  # samples at its end that went to earlier batches
    cut: bool = False  # some went before it was given out
    ahead: bool = False  # it was given out before its epoch began


@dataclass(frozen=True)
class Shape:
    """What a loader fixed about its batches, for as long as it lives."""

    is_map: bool
    auto_collation: bool
    fetches_many: bool
    together: int  # samples that one worker loads at a time, where they are coroutines
    splits: bool  # a batch may be loaded by several workers
    in_order: bool
    batch_rows: Any
    prefetch_factor: int
    prefetch_asked: bool
    look_ahead: int | None  # batches planned ahead; None: prefetch_factor for each worker


class Flights:
    plan: MapPlan
    stream_plan: StreamPlan
    to_repeat: list[Any]

    def __init__(
        self,
        shape: Shape,
        pool: Pool | LocalPool,
        cursor: Cursor,
        ledger: Ledger,
        options: Options,
        ranks: Ranks | None,
        whole_only: bool,
        workers: int,
    ) -> None:
        self._shape = shape
        self.workers = workers  # that take part; how many may change between two batches
        self.pool = pool
        self.cursor = cursor
        self._ledger = ledger
        self._options = options
        self._ranks = ranks
        self.inline = False  # batches are loaded when they are asked for: nothing is given out
        self.static = False  # every batch has its own worker
        self.whole_only = whole_only  # earlier batches were no rows
        self.next_epoch: NextEpoch | None = None  # whoever loads ahead of it, where that may be done
        self.begin(0)

    def begin(self, key: int) -> None:
        """An epoch whose random numbers are made from `key` (task_key): nothing is planned yet."""
        self.key = key
        self.planned: deque[PlannedBatch | BaseException] = deque()
        self.in_flight: dict[int, InFlight] = {}
        self._made: dict[int, tuple[Any, int]] = {}  # by the loop: batches and their sizes
        self.finished = False
        self.moved_up_before = 0

    def go_on(self) -> None:
        self.plan_ahead()
        self.submit()
        if self.finished and self.next_epoch is not None and not self.planned and not self.static:
            self.next_epoch.go_on(self, self.cursor.base_seed, self.cursor.epoch)

    def take_over(self, state: Any, usable: bool) -> list[int]:
        """The tickets of batches of this epoch that were given out before it began, where they are `usable`; `state`: see NextEpoch."""
        if self.next_epoch is None:
            return []
        if not usable:
            self.next_epoch.forget()
            return []
        self.plan_ahead()
        tickets = self.next_epoch.take_over(self.planned, self.key, state)
        for ticket in tickets:
            planned = self.planned.popleft()
            assert isinstance(planned, PlannedBatch)
            self.in_flight[ticket] = InFlight(ticket, planned, None, ahead=True)
        return tickets

    def plan_ahead(self) -> None:
        if self._shape.is_map and not self.finished:
            missing = self.look_ahead - self._with_workers
            while not self.finished and len(self.planned) < missing:
                self._draw_one()

    def plan_next(self, as_list: bool) -> None:
        """No further than the next batch, for whoever loads one at a time and takes its indices as they are, or as an array."""
        while not self.planned and not self.finished:
            self._draw_one(as_list)

    @property
    def _with_workers(self) -> int:
        return len(self.in_flight) - len(self._made)

    @property
    def look_ahead(self) -> int:
        if self._shape.look_ahead is not None:
            return self._shape.look_ahead
        return max(1, self._shape.prefetch_factor * self.workers, 0 if self._shape.prefetch_asked else self._to_fill_windows())

    def _draw_one(self, as_list: bool = False) -> None:
        try:
            planned = self.plan.draw(as_list)
        except BaseException as error:
            if not isinstance(error, Exception) or came_from_signal(error):
                raise
            self.planned.append(error)  # the user's sampler failed: raised when its turn comes, after what it gave before
            self.finished = True
            return
        if planned is None:
            self.finished = True
            for _ in range(self.moved_up_before):
                self.take_last(None)
            self.moved_up_before = 0
        elif planned.number not in self.cursor.delivered.beyond:
            self.planned.append(planned)
            if self._ranks is not None and len(self.to_repeat) < _KEPT_TO_REPEAT:
                self.to_repeat.append(copy.copy(planned.indices))
        else:
            self.cursor.delivered = self.cursor.delivered.add(planned)  # delivered early, before the resume

    def submit(self) -> None:
        tasks = self._tasks_for(self._shape.batch_rows or 1)
        room = self._room(tasks)
        if not self._shape.is_map:
            self._submit_streams(room)
            return
        while self.planned and self._with_workers < room:
            planned = self.planned[0]
            if isinstance(planned, BaseException):
                return
            self.planned.popleft()
            ticket, rows = next(_tickets), planned.rows
            self.in_flight[ticket] = flight = InFlight(ticket, planned, None)
            if rows != self._shape.batch_rows:
                flight.cut = rows < planned.after.samples - planned.position
            self._give(ticket, planned, rows, tasks if rows == self._shape.batch_rows else self._tasks_for(rows), self.key)

    def _give(self, ticket: int, planned: PlannedBatch, rows: int, tasks: int, key: int) -> None:
        """To the workers, with the random numbers of `key`."""
        indices = planned.indices
        if isinstance(indices, array):
            indices = indices[:]
        elif self._shape.auto_collation and not self._shape.fetches_many and isinstance(indices, (list, tuple)):
            indices = list(indices)  # but __getitems__ gets what the batch sampler gave, be it a list or a tuple
        worker = planned.number % self.workers if self.static else None
        divisible = self._shape.auto_collation and isinstance(indices, (list, array))
        self.pool.submit(ticket, Content(indices, planned.position, divisible, planned.number, key=key), rows, tasks, worker)

    # --- made by the loop itself ---

    def take_one_to_make(self) -> PlannedBatch | None:
        """A batch that nobody has begun, and that the loop may make while it waits for another; then `made`, or `not_made`."""
        if len(self._made) >= _MADE_AT_MOST:
            return None
        if not self.planned and not self.finished:
            self._draw_one()
        if not self.planned or isinstance(self.planned[0], BaseException):
            return None
        planned = self.planned.popleft()
        assert isinstance(planned, PlannedBatch)
        return planned

    def made(self, planned: PlannedBatch, data: Any, size: int) -> None:
        ticket = next(_tickets)
        self.in_flight[ticket] = InFlight(ticket, planned, None)
        self._made[ticket] = (data, size)

    def not_made(self, planned: PlannedBatch) -> None:
        self.planned.appendleft(planned)

    def is_made_next(self) -> bool:
        """Whether the batch that comes next was made by the loop."""
        return bool(self._made) and (not self._shape.in_order or next(iter(self.in_flight)) in self._made)

    def take_made(self) -> tuple[PlannedBatch, Any, int] | None:
        """That batch, and its size."""
        if not self.is_made_next():
            return None
        ticket = next(iter(self._made))
        planned = self.in_flight.pop(ticket).planned
        assert planned is not None
        return planned, *self._made.pop(ticket)

    # --- for the next epoch ---

    def give_ahead(self, planned: PlannedBatch, key: int) -> int:
        """A batch of another epoch; the ticket it has."""
        ticket = next(_tickets)
        self._give(ticket, planned, planned.rows, self._tasks_for(planned.rows), key)
        return ticket

    def room_left(self) -> int:
        return self._room(self._tasks_for(self._shape.batch_rows or 1)) - self._with_workers

    # --- streams ---

    def _submit_streams(self, room: int) -> None:
        if self._options.memory_budget_bytes is None:
            room = max(room, self._shape.prefetch_factor * self.workers)
        while len(self.in_flight) < room:
            drawn = self.stream_plan.draw()
            if drawn is None:
                return
            number, stream = drawn
            ticket = next(_tickets)
            self.in_flight[ticket] = InFlight(ticket, None, stream)
            worker = stream % max(1, self.workers)
            content = Content(b"", 0, divisible=False, number=number, key=self.key)
            self.pool.submit(ticket, content, self._shape.batch_rows, 1, worker, stream=stream)

    def _tasks_for(self, rows: int) -> int:
        workers, sample_ns, may_split = self.workers, self.pool.costs.sample_ns, self._may_split
        size, budget_bytes = self._ledger.timing.largest_bytes, self._options.memory_budget_bytes
        if self._shape.together > 1:
            return max(1, -(-rows // self._shape.together)) if may_split else 1
        if self._options.workers is WorkerKind.THREAD:
            return tasks_per_batch_in_threads(rows, workers, sample_ns, may_split, few_or_small(size or 1, budget_bytes))
        return tasks_per_batch(rows, workers, sample_ns, may_split, few_or_small(size, budget_bytes), self.finished)

    def task_ns(self) -> int:
        """What a worker needs for one task, as far as is known; 0 where it awaits many samples together."""
        rows, sample_ns = self._shape.batch_rows or 1, self.pool.costs.sample_ns or 0
        return rows * sample_ns // self._tasks_for(rows) if self._shape.together <= 1 else 0

    @property
    def _may_split(self) -> bool:
        return self._shape.splits and not self.static and not self.whole_only

    def _room(self, tasks: int) -> int:
        """How many batches may be in flight now, each given out in so many tasks."""
        if not self.workers:
            return 1
        asked = self._shape.prefetch_factor * self.workers if self._shape.prefetch_asked else None
        timing = self._ledger.timing
        wanted = batches_in_flight(self.workers, tasks, asked, timing.largest_bytes or None)
        if asked is None:
            wanted = max(wanted, self._to_fill_windows())
        return min(within_budget(wanted, timing.largest_bytes, self._options.memory_budget_bytes, timing.batches), self.look_ahead)

    def _to_fill_windows(self) -> int:
        """Batches of coroutines, so that every worker waits for as many as it may and has others behind them."""
        shape, timing = self._shape, self._ledger.timing
        if shape.together <= 1 or not shape.auto_collation or shape.fetches_many:
            return 0
        rows = shape.batch_rows or (timing.samples // timing.batches if timing.batches else shape.together)
        return window_batches(max(1, rows), self.workers, shape.together)

    def pick(self) -> Batch | None:
        batches = self.pool.state.batches
        if self._shape.in_order:
            head = batches[next(iter(self.in_flight))]
            return head if head.phase is not Phase.LOADING else None
        return next((batches[ticket] for ticket in self.in_flight if batches[ticket].phase is not Phase.LOADING), None)

    def ready(self) -> int:
        """How many batches come next without a wait."""
        batches, made = self.pool.state.batches, self._made
        return sum(1 for _ in itertools.takewhile(lambda ticket: ticket in made or batches[ticket].phase is Phase.READY, self.in_flight))

    def waiting_for(self) -> str:
        first = next(iter(self.in_flight.values()))
        number = first.planned.number if first.planned is not None else self.pool.contents[first.ticket].number
        return f"batch {number}"

    def end_early(self) -> None:
        """As if the plan ended here."""
        self.planned.clear()
        self.forget()  # what the workers do of it is dropped when the next epoch begins, or they end now
        self.finished = True
        if not self._shape.is_map:
            self.stream_plan.end_all()

    def repeat_some(self, ranks: Ranks) -> bool:
        """At the end of a rank that has fewer batches than others: whether batches follow that make up for them."""
        missing = ranks.take_missing() if self.to_repeat else 0
        for number in range(missing):
            self.planned.append(self.plan.repeat(copy.copy(self.to_repeat[number % len(self.to_repeat)])))
        self.submit()
        return bool(self.in_flight)

    def forget(self) -> None:
        """What is in flight is nobody's any more."""
        self.in_flight.clear()
        self._made.clear()

    def note_delivered(self, flight: InFlight, batch: Batch) -> None:
        if flight.planned is not None:
            self.cursor.delivered = self.cursor.delivered.add(flight.planned)
        elif flight.stream is not None:
            drawn, state, ended = self.pool.streams[flight.stream].finished_batches.pop(batch.number, (0, None, False))
            assert self.cursor.streams is not None
            self.cursor.streams = self.cursor.streams.delivered(flight.stream, drawn, state, ended, self._shape.batch_rows)

    def let_go(self, flight: InFlight, batch: Batch, slot: bool = True) -> None:
        self.pool.state.take(batch.number)
        self.pool.contents.pop(batch.number, None)
        del self.in_flight[flight.ticket]
        if slot:
            self.pool.ring.give_back(batch.slot)

    def take_last(self, but: InFlight | None) -> Any:
        if self.planned and isinstance(self.planned[-1], PlannedBatch):
            indices = self.planned[-1].indices
            last = indices.pop()
            if not indices:
                self.planned.pop()  # there is nothing left to load
            return last
        for flight in reversed(self.in_flight.values()):
            if flight is but or flight.planned is None:
                return None
            indices = flight.planned.indices
            if flight.moved_up < len(indices):
                flight.moved_up += 1
                return indices[-flight.moved_up]
        return None
