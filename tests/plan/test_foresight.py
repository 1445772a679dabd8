"""A guess of the next epoch is what it becomes, and nothing of the user's moves for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler

from antifreeze.plan.foresight import MOST_WORDS, can_foresee, foresee, likeliest, words_between
from antifreeze.plan.map_plan import MapPlan
from antifreeze.plan.order import Drawn, order_of

DATA = range(23)


def random_sampler(**given: Any) -> RandomSampler:
    return RandomSampler(DATA, **given)


def shared() -> Sampler[int]:
    return DistributedSampler(DATA, num_replicas=3, rank=1, seed=5)  # type: ignore[arg-type]


SAMPLERS = {
    "sequential": lambda: SequentialSampler(DATA),
    "random": random_sampler,
    "random with a generator": lambda: random_sampler(generator=torch.Generator().manual_seed(3)),
    "random, more than there are": lambda: random_sampler(num_samples=60, generator=torch.Generator().manual_seed(3)),
    "with replacement": lambda: random_sampler(replacement=True, num_samples=70),
    "distributed": shared,
}


def all_of(plan: MapPlan) -> list[Any]:
    drawn = []
    while (batch := plan.draw()) is not None:
        drawn.append((batch.number, list(batch.indices) if isinstance(batch.indices, (list, tuple)) else batch.indices, batch.position))
    return drawn


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("between", [0, 2, 5])
@pytest.mark.parametrize("batched", [True, False])
def test_the_guess_is_what_the_epoch_becomes_and_nothing_moves(name: str, between: int, batched: bool) -> None:
    torch.manual_seed(7)
    source: Any = SAMPLERS[name]()
    sampler = BatchSampler(source, 4, drop_last=False) if batched else source
    generator = getattr(source, "generator", None)
    before = [torch.get_rng_state(), None if generator is None else generator.get_state()]
    drawn = Drawn()
    drawn.keeps = True
    foreseen = foresee(sampler, batched, None, draws_base_seed=True, between=between, drawn=drawn)
    guessed = all_of(foreseen.plan)
    drawn.keeps = False
    assert torch.equal(before[0], torch.get_rng_state()) and (generator is None or torch.equal(before[1], generator.get_state()))
    for _ in range(between):
        torch.empty((), dtype=torch.int32).random_()
    assert foreseen.base_seed == torch.empty((), dtype=torch.int64).random_().item()
    if name == "distributed":
        source.set_epoch(1)
    torchs = torch.get_rng_state(), None if generator is None else generator.get_state()
    expected = list(sampler)
    after = torch.get_rng_state(), None if generator is None else generator.get_state()
    torch.set_rng_state(torchs[0])
    if generator is not None:
        generator.set_state(torchs[1])
    assert [indices if not batched else list(indices) for _, indices, _ in guessed] == expected
    assert all_of(MapPlan(sampler, batched, (), None, drawn)) == guessed
    assert torch.equal(torch.get_rng_state(), after[0]) and (generator is None or torch.equal(generator.get_state(), after[1]))


def test_only_what_is_known_exactly_is_foreseen() -> None:
    class Mine(SequentialSampler):
        pass

    known = BatchSampler(SequentialSampler(DATA), 2, drop_last=True)
    assert can_foresee(known, True) and can_foresee(SequentialSampler(DATA), False)
    for sampler in (Mine(DATA), SubsetRandomSampler(DATA), [1, 2]):
        assert not can_foresee(BatchSampler(sampler, 2, drop_last=True), True)  # type: ignore[arg-type]
        assert not can_foresee(sampler, False)
    assert not can_foresee([[1, 2]], True)


def test_words_between_two_states_are_counted() -> None:
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    assert words_between(before, generator.get_state()) == 0
    torch.empty((), dtype=torch.int64).random_(generator=generator)
    assert words_between(before, generator.get_state()) == 2
    torch.rand(MOST_WORDS, generator=generator)
    assert words_between(before, generator.get_state()) is None
    assert words_between(before, torch.Generator().manual_seed(2).get_state()) is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param([], 0, id="nothing is known"),
        pytest.param([4], 4, id="the last time"),
        pytest.param([0, 0, 0, 20], 0, id="once is no rule"),
        pytest.param([0, 0, 4, 0], 0, id="validation after each third epoch"),
        pytest.param([0, 0, 4, 4], 0, id="as often: the one that is longer ago"),
        pytest.param([4, 0, 4, 0], 4, id="by turns"),
        pytest.param([0, 4, 0, 4], 0, id="by turns, the other way round"),
        pytest.param([0, 4, 4, 4], 4, id="something else from now on"),
    ],
)
def test_what_comes_next_is_what_came_most_often(words: list[int], expected: int) -> None:
    assert likeliest(words) == expected


def test_a_permutation_that_was_drawn_ahead_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, calls = Drawn(), []
    real = torch.randperm
    monkeypatch.setattr(torch, "randperm", lambda *args, **kwargs: calls.append(args) or real(*args, **kwargs))
    drawn.keeps = True
    ahead = drawn.permutation(50, torch.Generator().manual_seed(4))
    drawn.keeps = False
    generator = torch.Generator().manual_seed(4)
    assert (drawn.permutation(50, generator) == ahead).all() and len(calls) == 1
    alone = torch.Generator().manual_seed(4)
    real(50, generator=alone)
    assert torch.equal(generator.get_state(), alone.get_state())
    assert (drawn.permutation(50, torch.Generator().manual_seed(4)) == ahead).all() and len(calls) == 2, "it is handed out once"


@pytest.mark.parametrize(("samples", "replicas", "drop_last"), [(23, 3, False), (23, 3, True), (24, 3, False), (2, 5, False), (9, 9, True)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_order_of_a_distributed_sampler_is_torchs(samples: int, replicas: int, drop_last: bool, shuffle: bool) -> None:
    for rank in range(replicas):
        sampler: Any = DistributedSampler(range(samples), replicas, rank, shuffle, seed=11, drop_last=drop_last)  # type: ignore[arg-type]
        sampler.set_epoch(4)
        ours = order_of(sampler)
        assert ours is not None and list(ours) == list(sampler)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("now", [5, 40])
def test_where_the_data_set_of_a_distributed_sampler_has_changed_torch_has_the_word(drop_last: bool, now: int) -> None:
    data = list(range(21))
    sampler: Any = DistributedSampler(data, 3, 0, drop_last=drop_last)  # type: ignore[arg-type]
    data[:] = range(now)
    try:
        expected: Any = list(sampler)
    except AssertionError:
        expected = None
    ours = order_of(sampler)
    assert ours is None or list(ours) == expected
