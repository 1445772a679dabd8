"""A batch with bad samples: what takes their place, or how it comes short.

    holed batch ──▶ the desk decides, sample by sample ──▶ raise | another sample is loaded in its row | the row is left out

1. With skip, the next sample of the order moves up; at the end of the order, the last of the last batch. Under DDP nothing moves
   up: another sample replaces it, so that every rank keeps its number of batches.
2. `repair` and `shorten` say whether the batch can be delivered now; otherwise some of it is being loaded again.
"""

from __future__ import annotations

from typing import Any

from antifreeze.delivery.bad_samples import BadSampleDesk, failure_of, replacement
from antifreeze.delivery.flights import Flights, InFlight
from antifreeze.delivery.ledger import Ledger
from antifreeze.delivery.position import length_of
from antifreeze.errors import LoadingError, add_note
from antifreeze.options import OnBadSample, Options
from antifreeze.saying import say
from antifreeze.supervisor.tasks import Batch, Phase
from antifreeze.supervisor.work import Content
from antifreeze.worker.seeding import sample_seed
from antifreeze.worker.task import few

_REPLACEMENTS = 8
FEW_SAMPLES = 100
"""A fraction of fewer than these says nothing yet: max_bad_samples is not compared with less before the epoch ends."""


class Repair:
    def __init__(
        self,
        flights: Flights,
        desk: BadSampleDesk,
        ledger: Ledger,
        options: Options,
        *,
        dataset: Any,
        auto_collation: bool,
        drop_last: bool,
        workers: int,
        world_size: int,
    ) -> None:
        self._flights = flights
        self._desk = desk
        self._ledger = ledger
        self._options = options
        self._dataset = dataset
        self._auto_collation = auto_collation
        self._drop_last = drop_last
        self._workers = workers
        self._world_size = world_size

    def repair(self, flight: InFlight, batch: Batch) -> bool:
        """Whether the batch can be delivered as it is now; otherwise some of it is being loaded again."""
        content = self._flights.pool.contents[batch.number]
        assert flight.planned is not None
        choices: dict[int, OnBadSample] = {}
        # all are decided before any sample moves up, so that with a batch that fails none is lost
        for row in sorted(batch.bad_rows.keys() - flight.left_out):
            failure = failure_of(batch.bad_rows[row])
            index = content.indices[row] if self._auto_collation else content.indices
            try:
                choices[row] = self._desk.decide(
                    failure,
                    index,
                    epoch=self._ledger.timing.epochs,
                    batch=flight.planned.number,
                    seed=sample_seed(self._flights.cursor.base_seed, self._flights.cursor.epoch, content.position_of(row)),
                    samples=length_of(self._dataset),
                )
            except Exception as error:
                add_note(error, f"antifreeze: batch {flight.planned.number} is not delivered: samples {few(content.indices)}")
                self._skip(batch)
                raise
            if choices[row] is OnBadSample.RAISE:
                batch.errors[row] = batch.bad_rows[row]
                batch.phase = Phase.FAILED
                return True
            batch.bad_rows[row] = failure  # forgiven, it is words: an exception of this process has frames, and they lead here
        fills: dict[int, Any] = {}
        for row, choice in choices.items():
            other = self._other_sample(flight, choice, content, row)
            if other is not None:
                fills[row] = other
            elif choice is OnBadSample.SKIP and self._moves_up and self._drop_last:
                return self._skip(batch)  # the last one, and it cannot be full
        if not fills and self._world_size > 1 and len(batch.bad_rows) >= batch.rows:
            fills = self._one_at_least(flight, batch, content)
        flight.left_out |= choices.keys() - fills.keys()
        return self._fill(flight, batch, content, fills)

    def _one_at_least(self, flight: InFlight, batch: Batch, content: Content) -> dict[int, Any]:
        """Every sample of the batch is bad; a rank that left it out would have fewer batches than the others."""
        row = min(batch.bad_rows)
        other = self._replacement(flight, content, row)
        if other is None:
            self._skip(batch)
            raise LoadingError(
                f"batch {content.number}: none of its samples can be loaded, nor {_REPLACEMENTS} others; without it this rank would "
                f"have fewer batches than the others\n  its samples: {few(content.indices)}"
            )
        return {row: other}

    def account_for_left_out(self, flight: InFlight, batch: Batch) -> None:
        """The bad items that a batch of a stream came without. Where one is an error after all, it is raised, and the batch is
        delivered when the loop asks again: nothing else is missing."""
        pool = self._flights.pool
        number = pool.contents[batch.number].number
        if batch.stops_with is not None:
            batch.left_out.append(batch.stops_with)
            batch.stops_with = None
        while batch.left_out:
            failure = failure_of(batch.left_out.pop(0))
            pool.costs.streams_ended += failure.ends_stream
            seed = sample_seed(self._flights.cursor.base_seed, self._flights.cursor.epoch, failure.position or 0)
            epoch, samples = self._ledger.timing.epochs, length_of(self._dataset) or max(FEW_SAMPLES, self._drawn_of_streams())
            if self._desk.decide(failure, failure.index, epoch=epoch, batch=number, seed=seed, samples=samples) is OnBadSample.RAISE:
                self._desk.note_raised(failure, failure.index, epoch=epoch, batch=number, seed=seed)
                raise failure.to_exception()
            if failure.ends_stream:
                say(failure.describe())

    def _drawn_of_streams(self) -> int:
        streams = self._flights.cursor.streams
        return 0 if streams is None else sum(progress.samples for progress in streams.streams)

    def check_at_the_end(self) -> None:
        """Of an epoch of streams: now it is known how many samples there were. It is an error once."""
        epoch = self._ledger.timing.epochs
        if self._desk.exceeded_in != epoch:
            self._desk.check_limit(epoch, length_of(self._dataset) or self._drawn_of_streams())

    def _fill(self, flight: InFlight, batch: Batch, content: Content, fills: dict[int, Any]) -> bool:
        if not self._auto_collation:
            if not fills:
                return self._skip(batch)
            self._flights.pool.reload(batch.number, fills[0], 1)
            return False
        if batch.must_reload or batch.layout is None:
            kept = [row for row in range(len(content.indices)) if row in fills or row not in batch.bad_rows]
            if not kept:
                batch.phase, batch.rows_loaded = Phase.READY, 0
                return self._skip(batch)
            indices = [fills.get(row, content.indices[row]) for row in kept]
            offsets = [content.position_of(row) - content.position for row in kept]
            left_out = offsets != list(range(len(offsets)))
            flight.left_out.clear()  # what is kept has other rows now
            self._flights.pool.reload(batch.number, indices, len(kept), offsets if left_out else None)
            return False
        for row, index in fills.items():
            self._flights.pool.fill_row(batch.number, row, index)
        if fills:
            return False
        if len(batch.bad_rows) >= batch.rows - batch.short_by:
            return self._skip(batch)
        return True

    def _skip(self, batch: Batch) -> bool:
        """It is not delivered: every sample of it was bad, or it would be short where short ones are dropped."""
        flight = self._flights.in_flight[batch.number]
        self._flights.note_delivered(flight, batch)
        self._flights.let_go(flight, batch)
        if self._workers:
            self._flights.go_on()
        return False

    def _other_sample(self, flight: InFlight, choice: OnBadSample, content: Content, row: int) -> Any:
        """The index that takes the place of a bad one; None leaves the batch short."""
        if choice is OnBadSample.SKIP and self._world_size == 1:
            return self._next_spare(flight) if self._moves_up else None
        if choice is OnBadSample.SKIP and not self._options.keep_batches_full:
            return None
        # under DDP nothing moves up, so that every rank keeps its number of batches
        return self._replacement(flight, content, row)

    def _replacement(self, flight: InFlight, content: Content, row: int) -> Any:
        attempt = flight.attempts.get(row, 0)
        flight.attempts[row] = attempt + 1
        index = content.indices[row] if self._auto_collation else content.indices
        others = self._flights.plan.stand_ins(index, length_of(self._dataset))
        if not len(others) or attempt >= _REPLACEMENTS:
            return None
        return int(others[replacement(self._flights.cursor.base_seed, content.position_of(row), attempt, len(others))])

    @property
    def _moves_up(self) -> bool:
        """Whether the next sample of the order takes the place of one that is skipped."""
        return self._options.keep_batches_full and self._world_size == 1 and self._flights.plan.composes

    def _next_spare(self, flight: InFlight) -> Any:
        """The sample that moves up: the next of the order, or, with the end of the order in sight, the last of the last batch."""
        spare = None if self._flights.finished else self._flights.plan.draw_spare()
        if spare is not None:
            self._flights.cursor.delivered = self._flights.cursor.delivered.with_spare(spare[1])
            return spare[0]
        self._flights.finished = True
        index = self._flights.take_last(flight)
        if index is not None:
            self._flights.cursor.delivered = self._flights.cursor.delivered.with_moved_up(1)
        return index

    def shorten(self, flight: InFlight, batch: Batch) -> bool:
        """A last batch whose samples moved up: whether what is left of it can be delivered now."""
        left = batch.rows - flight.moved_up
        if left <= 0 or self._drop_last:
            return self._skip(batch)
        if not flight.moved_up:
            return True
        content = self._flights.pool.contents[batch.number]
        for row in range(left, batch.rows):
            batch.bad_rows.pop(row, None)
        if batch.parcel_bytes is not None or batch.layout is None or batch.must_reload:
            flight.moved_up = 0
            offsets = None if content.offsets is None else content.offsets[:left]
            self._flights.pool.reload(batch.number, content.indices[:left], left, offsets)
            return False
        batch.short_by, flight.moved_up = flight.moved_up, 0
        if batch.phase is Phase.HOLED and not batch.bad_rows:
            batch.phase = Phase.READY
        return batch.phase is not Phase.HOLED
