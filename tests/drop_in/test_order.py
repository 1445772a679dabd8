"""The same seed gives torch's batches in torch's order, and leaves the parent's generators as torch leaves them, at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.datapipes.iter import IterableWrapper

from .contract import REPEATS, Case, Ours, Torchs, assert_same, build, drain, rng_states, rows, seed_all
from .datasets import Count, Sharded, Squares

pytestmark = REPEATS

WEIGHTS = [0.1, 0.9, 0.4, 2.0, 0.5, 0.01, 1.0]


def generator(seed: int = 11) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batched(sampler: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    return lambda data: {"sampler": sampler(data), "batch_size": 3}


ORDERS = [
    Case("in order", Squares, lambda _: {"batch_size": 3}),
    Case("shuffle", Squares, lambda _: {"batch_size": 3, "shuffle": True}),
    Case("shuffle, drop_last", Squares, lambda _: {"batch_size": 4, "shuffle": True, "drop_last": True}),
    Case("shuffle, no batches", Squares, lambda _: {"batch_size": None, "shuffle": True}),
    Case("shuffle, generator", Squares, lambda _: {"batch_size": 3, "shuffle": True, "generator": generator()}),
    Case("in order, generator", Squares, lambda _: {"batch_size": 3, "generator": generator()}),
    Case("random", Squares, batched(RandomSampler)),
    Case("random with replacement", lambda: Squares(70), batched(lambda data: RandomSampler(data, replacement=True))),
    Case("random, more than there are", Squares, batched(lambda data: RandomSampler(data, num_samples=25))),
    Case("random, own generator", Squares, batched(lambda data: RandomSampler(data, generator=generator()))),
    Case("replacement, own generator", Squares, batched(lambda data: RandomSampler(data, True, 40, generator=generator()))),
    Case("weighted", Squares, batched(lambda _: WeightedRandomSampler(WEIGHTS, 20))),
    Case("weighted, own generator", Squares, batched(lambda _: WeightedRandomSampler(WEIGHTS, 5, False, generator=generator()))),
    Case("subset random", Squares, batched(lambda _: SubsetRandomSampler(range(2, 9)))),
    Case("subset random, own generator", Squares, batched(lambda _: SubsetRandomSampler(range(2, 9), generator=generator()))),
    Case("distributed", Squares, batched(lambda data: DistributedSampler(data, num_replicas=3, rank=1, seed=5))),
    Case("distributed in order", Squares, batched(lambda data: DistributedSampler(data, num_replicas=3, rank=1, shuffle=False))),
    Case("batch sampler", Squares, lambda data: {"batch_sampler": BatchSampler(RandomSampler(data), 3, False)}),
    Case(
        "batch sampler, loader's generator",
        Squares,
        lambda data: {"batch_sampler": BatchSampler(RandomSampler(data), 3, False), "generator": generator()},
    ),
    Case("sampler and loader share a generator", Squares, lambda data: _shared(data, generator())),
    Case("stream", Count, lambda _: {"batch_size": 3}),
    Case("sharded stream", lambda: Sharded(11), lambda _: {"batch_size": 3}),
    Case("stream, generator", Count, lambda _: {"batch_size": 3, "generator": generator()}),
    Case("pipe", lambda: IterableWrapper(range(11)).shuffle().sharding_filter(), lambda _: {"batch_size": 3, "shuffle": True}),
]


def _shared(data: Any, one: torch.Generator) -> dict[str, Any]:
    return {"sampler": RandomSampler(data, replacement=True, generator=one), "generator": one, "batch_size": 3}


def story(cls: Any, case: Case, **kwargs: Any) -> list[Any]:
    """Two epochs: every batch, and the state of every generator before, between and after."""
    seed_all(21)
    dataset = case.make()
    given = {**case.kwargs(dataset), **kwargs}
    loader = build(cls, dataset, **given)
    told: list[Any] = [rng_states()]
    for epoch in range(2):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        batches = iter(loader)
        told.append(("iter", rng_states()))
        for batch in batches:
            told.append((batch, rng_states()))
            torch.rand(1)  # a training loop draws too
        told.append(("end", rng_states(), given["generator"].get_state() if "generator" in given else None))
    return told


@pytest.mark.parametrize("num_workers", [0, 2])
@rows(ORDERS)
def test_same_seed_same_story(case: Case, num_workers: int) -> None:
    assert_same(story(Ours, case, num_workers=num_workers), story(Torchs, case, num_workers=num_workers))


PERSISTENT = ("shuffle", "shuffle, generator", "weighted", "sampler and loader share a generator", "sharded stream", "pipe")


@rows([case for case in ORDERS if case.name in PERSISTENT])
def test_same_seed_same_story_of_persistent_workers(case: Case) -> None:
    kwargs = {"num_workers": 2, "persistent_workers": True}
    assert_same(story(Ours, case, **kwargs), story(Torchs, case, **kwargs))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_another_seed_another_order(num_workers: int) -> None:
    orders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        orders.append([batch[1].tolist() for batch in Ours(Squares(), batch_size=3, shuffle=True, num_workers=num_workers)])
    assert orders[0] != orders[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_leaving_early_draws_what_torch_draws(num_workers: int) -> None:
    def left(cls: Any) -> list[Any]:
        seed_all(4)
        loader = cls(Squares(), batch_size=2, shuffle=True, num_workers=num_workers)
        for _ in loader:
            break
        told: list[Any] = [rng_states()]
        iter(loader)
        told.append(rng_states())
        told.append(drain(loader))
        return [*told, rng_states()]

    assert_same(left(Ours), left(Torchs))


def test_building_a_loader_draws_nothing() -> None:
    before = rng_states()
    Ours(Squares(), batch_size=2, shuffle=True, num_workers=2)
    Ours(Count(), batch_size=2)
    assert rng_states() == before


def test_a_sampler_is_asked_by_one_iterator_per_epoch_and_never_twice() -> None:
    class Counting(SequentialSampler):
        iterated = 0

        def __iter__(self) -> Any:
            self.iterated += 1
            return super().__iter__()

    for num_workers in (0, 2):
        sampler = Counting(Squares())
        loader = Ours(Squares(), batch_size=3, sampler=sampler, num_workers=num_workers)
        for epoch in (1, 2):
            drain(loader)
            assert sampler.iterated == epoch
