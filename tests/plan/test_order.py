"""Whole arrays of indices against torch's own samplers, one number at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from antifreeze.plan import order
from antifreeze.plan.order import order_of


@given(st.integers(1, 40), st.integers(1, 100), st.booleans(), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_a_random_order_is_torchs_and_leaves_the_generators_as_torch_does(samples: int, asked: int, own: bool, takes: list[int]) -> None:
    def sampler() -> RandomSampler:
        torch.manual_seed(7)
        return RandomSampler(range(samples), num_samples=asked, generator=torch.Generator().manual_seed(3) if own else None)

    theirs = sampler()
    expected = list(theirs)
    after = torch.default_generator.get_state()
    ours = sampler()
    drawn, made = [], order_of(ours)
    assert made is not None
    while part := made.take(takes[len(drawn) % len(takes)]):
        drawn.extend(part)
    assert drawn == expected
    assert torch.equal(after, torch.default_generator.get_state())
    if own:
        assert torch.equal(theirs.generator.get_state(), ours.generator.get_state())


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 60))
def test_passing_over_is_drawing_and_dropping(samples: int, skipped: int, taken: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "_SEQUENTIAL_PIECE", 7)
        made = order_of(SequentialSampler(range(samples)))
        assert made is not None
        made.skip(skipped)
        assert made.take(taken).tolist() == list(range(samples))[skipped : skipped + taken]
        assert list(made) == list(range(samples))[skipped + taken :]


class Backwards(RandomSampler):
    def __iter__(self) -> Any:
        return iter(range(len(self.data_source) - 1, -1, -1))


@pytest.mark.parametrize(
    "sampler",
    [
        Backwards(range(5)),
        RandomSampler(range(5), replacement=True),
        SubsetRandomSampler([3, 1]),
        WeightedRandomSampler([1.0, 2.0], 5),
        [1, 2],
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_every_other_sampler_is_asked_itself(sampler: Any) -> None:
    assert order_of(sampler) is None


def test_a_torch_that_draws_otherwise_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    order._draws_as_torch.cache_clear()
    monkeypatch.setattr(order, "RandomSampler", Backwards)
    assert order_of(Backwards(range(5))) is None
    order._draws_as_torch.cache_clear()
    monkeypatch.undo()
    assert order_of(RandomSampler(range(5))) is not None
