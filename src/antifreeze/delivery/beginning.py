"""How an epoch begins, or one that was interrupted goes on: its plan, and where what was delivered of it ends."""

from __future__ import annotations

from typing import Any

from antifreeze.delivery.flights import Flights
from antifreeze.delivery.position import MapDelivered, length_of
from antifreeze.delivery.ranks import Ranks
from antifreeze.options import StreamChoice
from antifreeze.plan.map_plan import MapPlan
from antifreeze.plan.stream_plan import StreamPlan, StreamPosition, StreamProgress
from antifreeze.supervisor.work import StreamStart


def begin_map(flights: Flights, plan: MapPlan, resume: dict[str, Any] | None) -> None:
    cursor = flights.cursor
    flights.plan = cursor.plan = plan
    cursor.delivered = MapDelivered()
    if resume:
        cursor.delivered = done = MapDelivered.from_dict(resume["delivered"])
        plan.resume(done.position, resume["randomness"], resume["beginning"], done.spares, resume.get("drawn", True))
        flights.moved_up_before = done.moved_up


def begin_among_ranks(ranks: Ranks, flights: Flights, index_sampler: Any) -> None:
    """The others are told how many batches follow."""
    batches, done = length_of(index_sampler), flights.cursor.delivered
    ranks.begin(None if batches is None else batches - done.position.batches - len(done.beyond))
    flights.to_repeat = []


def hosts(resume: dict[str, Any] | None, workers: int) -> bool:
    """Whether the streams of a resumed epoch are not those that so many workers would have begun."""
    if not resume or "streams" not in resume:
        return False
    position = StreamPosition.from_dict(resume["streams"])
    return workers != (len(position.streams) if position.had_workers else 0)


def begin_streams(flights: Flights, resume: dict[str, Any] | None, workers: int, batch_rows: Any, lost_stream: StreamChoice) -> None:
    if resume:
        position = StreamPosition.from_dict(resume["streams"])
    else:
        position = StreamPosition(tuple(StreamProgress() for _ in range(max(1, workers))), had_workers=workers > 0)
    flights.cursor.streams = position
    flights.stream_plan = StreamPlan(position, batch_rows)
    starts = [
        StreamStart(
            stream=number,
            streams=len(position.streams) if position.had_workers else 0,
            past=progress,
            batch_rows=batch_rows,
            replay=lost_stream is StreamChoice.REPLAY,
            worker=number % max(1, workers),
        )
        for number, progress in enumerate(position.streams)
        if not progress.ended
    ]
    flights.pool.open_streams(starts)
