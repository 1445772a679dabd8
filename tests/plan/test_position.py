"""What was delivered, in whatever order; what is left after a resume; which states belong to a loader."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, Dataset, IterableDataset

from antifreeze import DataLoader
from antifreeze.delivery.position import MapDelivered, check_fits, fingerprint, fresh_state, length_of
from antifreeze.errors import StateMismatch
from antifreeze.plan.map_plan import MapPlan, PlannedBatch

calm = settings(deadline=None, derandomize=True, database=None, max_examples=60, suppress_health_check=list(HealthCheck))


def plan_of(count: int) -> MapPlan:
    return MapPlan(BatchSampler(range(count), 2, False), True)


def draw_all(plan: MapPlan) -> list[PlannedBatch]:
    batches = []
    while (batch := plan.draw()) is not None:
        batches.append(batch)
    return batches


@calm
@given(st.integers(1, 15), st.data())
def test_whatever_the_order_of_delivery_a_resume_draws_exactly_what_is_left(count: int, data: st.DataObject) -> None:
    plan = plan_of(count)
    batches = draw_all(plan)
    order = data.draw(st.permutations(batches))
    done = data.draw(st.integers(0, len(order)))
    delivered = MapDelivered()
    for batch in order[:done]:
        delivered = delivered.add(batch)
    saved = MapDelivered.from_dict(delivered.as_dict())
    other = plan_of(count)
    other.resume(saved.position, plan.randomness, plan.beginning, saved.spares)
    left = [batch for batch in draw_all(other) if batch.number not in saved.beyond]
    assert left == [batch for batch in batches if batch not in order[:done]]


@calm
@given(st.integers(1, 15), st.data())
def test_when_all_are_delivered_nothing_is_beyond(count: int, data: st.DataObject) -> None:
    batches = draw_all(plan_of(count))
    delivered = MapDelivered()
    for batch in data.draw(st.permutations(batches)):
        delivered = delivered.add(batch)
    assert (delivered.position, delivered.beyond) == (batches[-1].after, frozenset())


def test_spares_before_the_position_are_history() -> None:
    first, second, _ = draw_all(plan_of(6))
    delivered = MapDelivered().add(first).with_spare(2).with_spare(5).with_moved_up(3)
    assert delivered.as_dict()["spares"] == [2, 5]
    assert delivered.add(second).as_dict()["spares"] == [5]
    assert MapDelivered.from_dict(delivered.as_dict()).moved_up == 3


def test_after_a_resume_the_position_passes_what_was_beyond_it() -> None:
    """Otherwise every batch from there on is kept as one beyond, for the rest of the epoch."""
    first = loader(dataset=Numbers(20))
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    state["delivered"]["beyond"] = [2]  # as if it had come early, in_order=False
    second = loader(dataset=Numbers(20))
    second.load_state_dict(state)
    again = iter(second)
    assert [next(again).tolist() for _ in range(3)] == [[2, 3], [6, 7], [8, 9]]
    delivered = second.state_dict()["delivered"]
    assert (delivered["batches"], delivered["beyond"]) == (5, [])


# --- does the state belong here? ----------------------------------------------------------------------------------------


class Numbers(Dataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(6))


def loader(**changes: Any) -> DataLoader:
    return DataLoader(**{"dataset": Numbers(6), "batch_size": 2} | changes)


def test_a_state_fits_the_loader_it_was_taken_from() -> None:
    for make in (loader, lambda: loader(shuffle=True), lambda: loader(batch_size=None), lambda: loader(dataset=Stream())):
        check_fits(fresh_state(make()), make())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dataset": Numbers(7)}, "number of samples was 6 and is now 7"),
        ({"batch_size": 3}, "batch_size was 2 and is now 3"),
        ({"batch_size": None}, "batch_size was 2 and is now None"),
        ({"drop_last": True}, "drop_last was False and is now True"),
        ({"shuffle": True}, "sampler was 'SequentialSampler' and is now 'RandomSampler'"),
        ({"dataset": Stream()}, "kind of data set was 'map-style' and is now 'iterable'"),
    ],
)
def test_a_state_of_another_loader_is_refused_with_what_differs(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(StateMismatch, match="does not fit") as refused:
        check_fits(fresh_state(loader()), loader(**changes))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("state", "says"),
    [(None, "not NoneType"), ({}, "not dict"), ([1], "not list"), ({"fingerprint": {}, "version": 0}, "version 0")],
)
def test_what_is_no_state_is_refused(state: Any, says: str) -> None:
    with pytest.raises(StateMismatch, match=says):
        check_fits(state, loader())


def test_how_many_workers_there_are_is_no_part_of_a_position() -> None:
    assert fingerprint(loader(num_workers=2, persistent_workers=True)) == fingerprint(loader())


def test_length_of_what_has_none_or_will_not_say() -> None:
    class Unwilling:
        def __len__(self) -> int:
            raise NotImplementedError

    assert [length_of(dataset) for dataset in (range(3), Stream(), Unwilling(), None)] == [3, None, None, None]
