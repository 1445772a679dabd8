"""Streams take turns as torch's workers do."""

from __future__ import annotations

import json
from collections import deque

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antifreeze.plan.stream_plan import StreamPlan, StreamPosition, StreamProgress

calm = settings(deadline=None, derandomize=True, database=None, max_examples=150, suppress_health_check=list(HealthCheck))
Delivered = list[tuple[int, int]]
"""(stream, its batch)"""


def fresh(streams: int) -> StreamPosition:
    return StreamPosition(tuple(StreamProgress() for _ in range(streams)))


def torchs_order(lengths: list[int], prefetch: int) -> Delivered:
    """torch's rule: task k goes to the next worker of the cycle that is still active, as many ahead as prefetch_factor × workers;
    a worker that has ended answers so once, and its other tasks are dropped."""
    active, cycle, left = [True] * len(lengths), 0, [deque((stream, at) for at in range(length)) for stream, length in enumerate(lengths)]
    tasks: deque[int] = deque()
    delivered: Delivered = []

    def put() -> None:
        nonlocal cycle
        for _ in lengths:
            worker, cycle = cycle, (cycle + 1) % len(lengths)
            if active[worker]:
                tasks.append(worker)
                return

    for _ in range(prefetch * len(lengths)):
        put()
    while tasks:
        worker = tasks.popleft()
        if not active[worker]:
            continue
        if left[worker]:
            delivered.append(left[worker].popleft())
        else:
            active[worker] = False
        put()
    return delivered


def our_order(lengths: list[int], ahead: int, position: StreamPosition) -> tuple[Delivered, list[StreamPosition]]:
    """As the iterator does it: `ahead` batches asked for, delivered in the order they were asked for."""
    plan, asked = StreamPlan(position, batch_rows=1), deque[int]()
    delivered: Delivered = []
    positions = [position]
    given_out = [progress.batches for progress in position.streams]
    while True:
        while len(asked) < ahead and (drawn := plan.draw()) is not None:
            asked.append(drawn[1])
        if not asked:
            return delivered, positions
        stream = asked.popleft()
        if given_out[stream] < lengths[stream]:
            delivered.append((stream, given_out[stream]))
            given_out[stream] += 1
            position = position.delivered(stream, 1, None, ended=False)
            positions.append(position)
        else:
            plan.end(stream)
            position = position.ended(stream)


lengths_of = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@calm
@given(lengths_of, st.integers(1, 3), st.integers(1, 9))
def test_the_order_is_torchs_however_far_ahead_is_asked(lengths: list[int], prefetch: int, ahead: int) -> None:
    delivered, _ = our_order(lengths, ahead, fresh(len(lengths)))
    assert delivered == torchs_order(lengths, prefetch)


@calm
@given(lengths_of, st.integers(1, 6), st.integers(1, 6), st.data())
def test_a_resume_at_any_position_goes_on_with_the_same_order(
    lengths: list[int], ahead: int, other_ahead: int, data: st.DataObject
) -> None:
    delivered, positions = our_order(lengths, ahead, fresh(len(lengths)))
    done = data.draw(st.integers(0, len(delivered)))
    saved = StreamPosition.from_dict(positions[done].as_dict())
    assert saved == positions[done]
    rest, _ = our_order(lengths, other_ahead, saved)
    assert rest == delivered[done:]


def test_a_stream_that_ended_before_is_not_asked_again() -> None:
    position = fresh(3).delivered(0, 4, b"state", ended=True).ended(1)
    plan = StreamPlan(position, batch_rows=4)
    assert [plan.draw() for _ in range(3)] == [(0, 2), (1, 2), (2, 2)]
    plan.end(2)
    assert plan.draw() is None
    assert position.streams[0] == StreamProgress(1, 4, b"state", ended=True)


def test_the_next_in_turn_is_the_one_after_who_delivered() -> None:
    position = fresh(3).delivered(1, 2, None, ended=False)
    assert position.turn == 2
    assert StreamPlan(position, 2).draw() == (0, 2)
    assert position.delivered(2, 2, None, ended=False).turn == 0


@pytest.mark.parametrize("had_workers", [True, False])
def test_a_position_is_plain_data_and_back(had_workers: bool) -> None:
    position = StreamPosition((StreamProgress(2, 7, b"x", True, ((0, 3),)), StreamProgress()), turn=1, had_workers=had_workers)
    saved = position.as_dict()
    assert saved["streams"][0] == {"batches": 2, "samples": 7, "state": "eA==", "ended": True, "odd": [[0, 3]]}
    assert StreamPosition.from_dict(json.loads(json.dumps(saved))) == position
    saved["streams"][0]["state"] = b"x"  # as earlier versions saved it
    del saved["streams"][1]["odd"]
    assert StreamPosition.from_dict(saved) == position
