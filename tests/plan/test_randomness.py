"""The random state of an epoch's start: taken, put back for a while, and no trace of that left."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

from antifreeze.plan.randomness import as_it_was, generator_states, own_generators, set_generator_states, snapshot


def draw() -> tuple[Any, ...]:
    """Of everything, the cached second half of a gaussian pair too."""
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item(), torch.randn(()).item()


def states() -> tuple[Any, ...]:
    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()


@pytest.fixture(autouse=True)
def seeded() -> None:
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)


def test_inside_all_is_as_it_was_and_afterwards_as_it_is() -> None:
    draw()
    saved = snapshot()
    first = [draw() for _ in range(3)]
    now = states()
    with as_it_was(saved, ()):
        assert [draw() for _ in range(3)] == first
    assert states() == now
    assert draw() not in first


@pytest.mark.parametrize("exchanged", ["before", "meanwhile"])
def test_another_bit_generator_of_numpys_is_left_as_it_is(exchanged: str) -> None:
    own = np.random.mtrand.get_bit_generator()
    try:
        saved = snapshot() if exchanged == "meanwhile" else None
        np.random.mtrand.set_bit_generator(np.random.PCG64(3))
        saved = saved or snapshot()
        drawn = random.random()
        with as_it_was(saved, ()):
            assert random.random() == drawn
            np.random.rand()
        assert saved == json.loads(json.dumps(saved))
    finally:
        np.random.mtrand.set_bit_generator(own)


def test_also_after_an_exception() -> None:
    saved = snapshot()
    draw()
    now = states()
    with pytest.raises(KeyError), as_it_was(saved, ()):
        raise KeyError
    assert states() == now


def test_a_snapshot_does_not_change_what_it_takes() -> None:
    before = states()
    snapshot([torch.Generator()])
    assert states() == before


def test_a_snapshot_is_plain_data() -> None:
    saved = snapshot([torch.Generator().manual_seed(4)])
    first = draw()
    for back in (pickle.loads(pickle.dumps(saved)), json.loads(json.dumps(saved))):
        with as_it_was(back, ()):
            assert draw() == first
        assert back == saved


def test_own_generators_stay_where_the_drawing_leaves_them() -> None:
    generators = [torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)]
    saved = snapshot(generators)
    first = [torch.rand((), generator=generator).item() for generator in generators]
    after = generator_states(generators)
    others = [torch.Generator().manual_seed(8), torch.Generator().manual_seed(9)]
    with as_it_was(saved, others):
        assert [torch.rand((), generator=generator).item() for generator in others] == first
    assert generator_states(others) == after


def test_states_of_generators_come_and_go_in_order() -> None:
    source = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
    target = [torch.Generator(), torch.Generator()]
    set_generator_states(target, generator_states(source))
    assert generator_states(target) == generator_states(source)


def test_the_generators_of_a_loader_are_its_own_and_its_samplers_each_once() -> None:
    mine, samplers = torch.Generator(), torch.Generator()
    batches = BatchSampler(RandomSampler(range(3), generator=samplers), 2, False)
    assert [id(found) for found in own_generators(mine, batches)] == [id(mine), id(samplers)]
    assert own_generators(samplers, batches) == [samplers]
    assert own_generators(None, batches.sampler) == [samplers]
    assert own_generators(None, range(3)) == []
