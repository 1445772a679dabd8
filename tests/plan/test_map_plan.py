"""MapPlan against torch's own samplers: the same order, one batch at a time, and the same again after a resume."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from antifreeze.errors import OptionError, StateMismatch
from antifreeze.plan.map_plan import MapPlan, MapPosition, PlannedBatch, Quarantine

calm = settings(deadline=None, derandomize=True, database=None, max_examples=60, suppress_health_check=list(HealthCheck))
COUNT = 11
MakeSampler = Callable[[torch.Generator], Any]


class DrawsFromEverywhere(Sampler[int]):
    """A user's sampler that draws from the process's generators when it begins."""

    def __iter__(self) -> Iterator[int]:
        order = np.random.permutation(COUNT).tolist()
        random.shuffle(order)
        yield from (order[at] for at in torch.randperm(COUNT).tolist())


SAMPLERS: dict[str, MakeSampler] = {
    "sequential": lambda generator: SequentialSampler(range(COUNT)),
    "random": lambda generator: RandomSampler(range(COUNT)),
    "random with a generator": lambda generator: RandomSampler(range(COUNT), generator=generator),
    "with replacement": lambda generator: RandomSampler(range(COUNT), replacement=True, num_samples=70, generator=generator),
    "more than there are": lambda generator: RandomSampler(range(COUNT), num_samples=2 * COUNT + 3, generator=generator),
    "subset": lambda generator: SubsetRandomSampler([3, 1, 4, 15, 9, 2, 6], generator=generator),
    "weighted": lambda generator: WeightedRandomSampler([1.0] * COUNT, 20, generator=generator),
    "from everywhere": lambda generator: DrawsFromEverywhere(),
}
sampler_names = st.sampled_from(sorted(SAMPLERS))


def seed_all(seed: int) -> torch.Generator:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    return torch.Generator().manual_seed(seed)


def draw_all(plan: MapPlan) -> list[PlannedBatch]:
    batches = []
    while (batch := plan.draw()) is not None:
        batches.append(batch)
    assert plan.draw() is None
    return batches


def plan_of(name: str, generator: torch.Generator, batch_size: int = 3, drop_last: bool = False) -> MapPlan:
    return MapPlan(BatchSampler(SAMPLERS[name](generator), batch_size, drop_last), True, [generator])


# --- order ------------------------------------------------------------------------------------------------------------


@calm
@given(sampler_names, st.integers(1, 25), st.booleans(), st.integers(0, 3))
def test_the_order_is_torchs(name: str, batch_size: int, drop_last: bool, seed: int) -> None:
    expected = list(BatchSampler(SAMPLERS[name](seed_all(seed)), batch_size, drop_last))
    batches = draw_all(plan_of(name, seed_all(seed), batch_size, drop_last))
    assert [list(batch.indices) for batch in batches] == expected
    assert [batch.number for batch in batches] == list(range(len(expected)))
    assert [batch.rows for batch in batches] == list(map(len, expected))
    assert [batch.position for batch in batches] == [sum(map(len, expected[:number])) for number in range(len(expected))]


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_generators_are_left_where_torch_leaves_them(name: str) -> None:
    after = []
    for ours in (False, True):
        generator = seed_all(5)
        plan = plan_of(name, generator)
        assert draw_all(plan) if ours else list(plan._index_sampler)
        after.append((generator.get_state().tolist(), torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())))
    assert after[0] == after[1]


def test_without_automatic_batching_every_index_is_a_batch() -> None:
    batches = draw_all(MapPlan(["a", 7, (1, 2)], False))
    assert [(batch.indices, batch.rows, batch.position) for batch in batches] == [("a", 1, 0), (7, 1, 1), ((1, 2), 1, 2)]


def test_a_batch_sampler_of_the_users_own_is_taken_as_it_is() -> None:
    batches = draw_all(MapPlan([[5, 2], (1,), iter([3, 4, 5]), []], True))
    assert [list(batch.indices) for batch in batches] == [[5, 2], [1], [3, 4, 5], []]
    assert [(batch.rows, batch.position) for batch in batches] == [(2, 0), (1, 2), (3, 3), (0, 6)]


def test_the_sampler_is_advanced_one_batch_at_a_time() -> None:
    drawn: list[int] = []

    def counting() -> Iterator[int]:
        for index in range(10):
            drawn.append(index)
            yield index

    plan = MapPlan(BatchSampler(counting(), 4, False), True)
    assert drawn == []
    plan.draw()
    assert drawn == [0, 1, 2, 3]
    plan.draw_spare()
    assert drawn == [0, 1, 2, 3, 4]


def test_what_the_sampler_raises_comes_out() -> None:
    def failing() -> Iterator[list[int]]:
        yield [1]
        raise LookupError("no more")

    plan = MapPlan(failing(), True)
    plan.draw()
    with pytest.raises(LookupError, match="no more"):
        plan.draw()


def test_an_iterator_that_torch_began_is_gone_on_with() -> None:
    begun = iter([[1, 2], [3]])
    plan = MapPlan([[9]], True)
    plan.adopt(begun)
    assert [batch.indices for batch in draw_all(plan)] == [[1, 2], [3]]


# --- resume -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_a_plan_resumed_at_any_position_goes_on_as_if_never_interrupted(name: str) -> None:
    plan = plan_of(name, seed_all(1))
    batches = draw_all(plan)
    end_state = plan._generators[0].get_state().tolist()
    for done in range(len(batches) + 1):
        generator = seed_all(99)
        other = plan_of(name, generator)
        position = batches[done - 1].after if done else MapPosition(0, 0, None)
        other.resume(position, plan.randomness, plan.beginning)
        before = torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())
        assert draw_all(other) == batches[done:]
        assert (torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())) == before
        assert generator.get_state().tolist() == end_state


@pytest.mark.parametrize("auto", [True, False])
def test_a_sampler_of_the_users_own_is_resumed_by_drawing_again(auto: bool) -> None:
    order = [[1, 2], [3], [4, 5, 6]] if auto else [7, "x", 9]
    plan = MapPlan(order, auto)
    batches = draw_all(plan)
    for done in range(1, 4):
        other = MapPlan(order, auto)
        other.resume(batches[done - 1].after, plan.randomness, plan.beginning)
        assert draw_all(other) == batches[done:]


@pytest.mark.parametrize(
    ("order", "other_order"),
    [
        (BatchSampler(range(10), 3, False), BatchSampler(range(1, 11), 3, False)),
        (BatchSampler([4, 2, 1, 0], 3, False), BatchSampler([4, 1, 2, 0], 3, False)),
        ([[1, 2], [3]], [[2, 1], [3]]),
        ([[1, 2], [3]], [[1], [2, 3]]),
        (BatchSampler(range(10), 3, False), BatchSampler([], 3, False)),
    ],
)
def test_another_order_is_refused(order: Any, other_order: Any) -> None:
    plan = MapPlan(order, True)
    first = plan.draw()
    assert first is not None
    other = MapPlan(other_order, True)
    other.resume(first.after, plan.randomness, plan.beginning)
    with pytest.raises(StateMismatch, match="gives another order"):
        other.draw()


class Remembers(Sampler[int]):
    """A sampler that can say where it is."""

    def __init__(self) -> None:
        self.at = 0
        self.drawn: list[int] = []

    def __iter__(self) -> Iterator[int]:
        while self.at < COUNT:
            self.at += 1
            self.drawn.append(self.at - 1)
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class RemembersInItsIterator:
    """A sampler whose iterator can say where it is."""

    drawn: list[int]

    def __init__(self) -> None:
        self.drawn = []

    def __iter__(self) -> Iterator[int]:
        inner = Remembers()
        inner.drawn = self.drawn

        class Walk:
            state_dict = staticmethod(inner.state_dict)
            load_state_dict = staticmethod(inner.load_state_dict)

            def __iter__(self) -> Walk:
                return self

            def __next__(self, steps: list[Iterator[int]] = []) -> int:  # noqa: B006
                if not steps:
                    steps.append(iter(inner))
                return next(steps[0])

        return Walk()


@pytest.mark.parametrize("kind", [Remembers, RemembersInItsIterator])
def test_a_sampler_that_remembers_is_asked_instead_of_drawn_again(kind: Any) -> None:
    batches = draw_all(plan := MapPlan(BatchSampler(kind(), 3, False), True))
    for done in range(1, len(batches)):
        sampler = kind()
        other = MapPlan(BatchSampler(sampler, 3, False), True)
        other.resume(batches[done - 1].after, plan.randomness, plan.beginning)
        assert [batch.indices for batch in draw_all(other)] == [batch.indices for batch in batches[done:]]
        assert sampler.drawn == list(range(3 * done, COUNT))


# --- spares -------------------------------------------------------------------------------------------------------------


def test_a_spare_is_the_next_of_the_order_and_batches_begin_after_it() -> None:
    plan = MapPlan(BatchSampler(range(8), 3, False), True)
    assert plan.draw_spare() is None  # nothing was drawn yet
    plan.draw()
    assert plan.draw_spare() == (3, 3)
    after = plan.draw()
    assert after is not None
    assert (after.indices, after.position) == ([4, 5, 6], 4)
    assert plan.draw_spare() == (7, 7)
    assert plan.draw_spare() is None
    assert plan.draw() is None


def test_a_plan_that_does_not_make_the_batches_has_no_spares() -> None:
    plan = MapPlan([[1, 2], [3]], True)
    plan.draw()
    assert plan.draw_spare() is None


@calm
@given(st.lists(st.booleans(), max_size=12), st.integers(1, 4), st.data())
def test_spares_that_moved_up_are_not_drawn_again_after_a_resume(moves: list[bool], batch_size: int, data: st.DataObject) -> None:
    """True: a spare is drawn; False: a batch. Whatever the run had done when it was interrupted after a batch, the rest is the same."""
    plan = MapPlan(BatchSampler(range(20), batch_size, False), True)
    batches, spares = [plan.draw()], set()
    for spare in moves:
        if spare:
            drawn = plan.draw_spare()
            spares |= set() if drawn is None else {drawn[1]}
        elif (batch := plan.draw()) is not None:
            batches.append(batch)
    batches += draw_all(plan)
    done = data.draw(st.integers(1, len(batches)))
    position = batches[done - 1].after  # type: ignore[union-attr]
    other = MapPlan(BatchSampler(range(20), batch_size, False), True)
    other.resume(position, plan.randomness, plan.beginning, frozenset(spares))
    assert draw_all(other) == batches[done:]


# --- quarantine -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "auto", "expected"),
    [
        (BatchSampler(range(7), 2, False), True, [[0, 2], [4, 6]]),
        ([[0, 1], [3, 5], [2]], True, [[0], [2]]),
        ([0, 1, 2], False, [0, 2]),
    ],
)
def test_listed_samples_are_left_out(sampler: Any, auto: bool, expected: list[Any]) -> None:
    plan = MapPlan(sampler, auto, quarantine=Quarantine(frozenset({"1", "3", "5"})))
    assert [batch.indices for batch in draw_all(plan)] == expected


def test_under_ddp_a_listed_sample_gives_way_to_another_one_always_the_same() -> None:
    quarantine = Quarantine(frozenset({"1", "3"}), samples=5)
    first, second = (list(quarantine.filter([0, 1, 2, 3, 4])) for _ in range(2))
    assert first == second
    assert [first[at] for at in (0, 2, 4)] == [0, 2, 4]
    assert {first[1], first[3]} <= {0, 2, 4}


def test_where_all_samples_are_listed_nothing_can_take_their_place() -> None:
    with pytest.raises(OptionError, match="all 2 samples"):
        list(Quarantine(frozenset({"0", "1"}), samples=2).filter([0]))


def test_a_plan_with_a_quarantine_resumes_after_what_it_delivered() -> None:
    quarantine = Quarantine(frozenset({"0", "4"}))
    plan = MapPlan(BatchSampler(range(10), 3, False), True, quarantine=quarantine)
    batches = draw_all(plan)
    other = MapPlan(BatchSampler(range(10), 3, False), True, quarantine=quarantine)
    other.resume(batches[0].after, plan.randomness, plan.beginning)
    assert draw_all(other) == batches[1:]
