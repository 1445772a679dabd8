"""Randomness belongs to the sample: the same numbers however positions are split into tasks, whenever a generator is first used."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antifreeze.worker import generators, seeding, twister_numpy, twister_python, twister_torch
from antifreeze.worker.generators import global_generators
from antifreeze.worker.hands import mix, seed_at, seed_for_sample, seeds_at
from antifreeze.worker.seeding import KeptState, SampleSeeds, sample_seed
from antifreeze.worker.twister import HAND, HAND_BYTES
from antifreeze.worker.twister_numpy import NumpyGenerator
from antifreeze.worker.twister_python import PythonGenerator
from antifreeze.worker.twister_torch import TorchGenerator

calm = settings(deadline=None, derandomize=True, database=None, max_examples=80, suppress_health_check=list(HealthCheck))
DRAWS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "numpy": np.random.rand,
    "numpy gauss": np.random.randn,
    "torch": lambda: torch.rand(()).item(),
    "torch gauss": lambda: torch.randn(()).item(),
    "many": lambda: tuple(random.getrandbits(32) for _ in range(HAND + 1)),
    "many of numpy": lambda: np.random.bytes(4 * HAND + 4),
    "many of torch": lambda: tuple(torch.rand(HAND + 1).tolist()),
}
GENERATORS: dict[str, type[Any]] = {"random": PythonGenerator, "numpy": NumpyGenerator, "torch": TorchGenerator}


def states() -> tuple[Any, ...]:
    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()


@pytest.fixture(autouse=True)
def seeded() -> None:
    begin()


def begin() -> None:
    """Numbers nobody should see in a sample."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


@pytest.fixture(params=["by address", "by state"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the state of a generator cannot be read in memory, the slow way serves."""
    if request.param == "by state":
        monkeypatch.setattr(twister_python, "_python_state_is_behind_the_header", lambda: False)
        monkeypatch.setattr(twister_numpy, "_offset_of_numpys_gauss", lambda: None)
        monkeypatch.setattr(twister_torch, "_offset_of_torchs_engine", lambda: None)
    return str(request.param)


def reference(uses: list[tuple[str, ...]], seeds: SampleSeeds) -> list[list[Any]]:
    """Each sample alone, everything seeded before it."""
    expected = []
    for position, names in enumerate(uses):
        for generator in global_generators():
            seed_for_sample(generator, seeds.seed_of(position))
        expected.append([DRAWS[name]() for name in names])
    return expected


def run_tasks(uses: list[tuple[str, ...]], seeds: SampleSeeds, cuts: list[int]) -> list[list[Any]]:
    got: list[list[Any]] = [[] for _ in uses]
    borders = [0, *sorted(cuts), len(uses)]
    for first, end in pairwise(borders):

        def fetch(number: int, first: int = first) -> None:
            got[first + number] = [DRAWS[name]() for name in uses[first + number]]

        seeds.for_each(first, end - first, fetch)
    return got


uses_of = st.lists(st.lists(st.sampled_from(sorted(DRAWS)), max_size=3).map(tuple), min_size=1, max_size=12)


@calm
@given(uses_of, st.lists(st.integers(0, 12), max_size=4), st.integers(0, 4), st.integers(0, 2**63 - 1))
def test_a_sample_sees_the_same_numbers_however_the_tasks_are_cut(
    uses: list[tuple[str, ...]], cuts: list[int], warm_up: int, base_seed: int
) -> None:
    """Also where a generator is used for the first time long after the warm-up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeding, "WARM_UP", warm_up)
        expected = reference(uses, SampleSeeds(base_seed, 3))
        begin()
        assert run_tasks(uses, SampleSeeds(base_seed, 3), [min(cut, len(uses)) for cut in cuts]) == expected


def test_both_ways_to_see_whether_a_generator_was_used_agree(way: str) -> None:
    uses = [()] * 40 + [("random",), (), ("numpy", "gauss"), ("torch",)] + [("numpy gauss", "torch gauss", "random")] * 3
    assert (not PythonGenerator().memories) is (way == "by state")
    assert run_tasks(uses, SampleSeeds(7, 0), [20, 38, 41]) == reference(uses, SampleSeeds(7, 0))


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_a_generator_has_moved_when_it_was_used_and_only_then(name: str, way: str) -> None:
    generator = getattr(generators, GENERATORS[name].__name__)()
    mark = generator.mark()
    for other in set(GENERATORS) - {name}:
        DRAWS[other]()
    assert not generator.moved_since(mark)
    DRAWS[name]()
    assert generator.moved_since(mark)
    saved = generator.save()
    first = [DRAWS[name]() for _ in range(3)]
    generator.restore(saved)
    assert [DRAWS[name]() for _ in range(3)] == first


def test_a_task_is_fetched_again_only_when_a_generator_was_used_for_the_first_time() -> None:
    seeds, fetched = SampleSeeds(1, 0), []
    seeds.for_each(0, seeding.WARM_UP, lambda number: None)
    seeds.for_each(100, 3, fetched.append)
    assert fetched == [0, 1, 2]
    seeds.for_each(200, 3, lambda number: fetched.append((number, random.random())))
    assert len(fetched) == 3 + 2 * 3
    seeds.for_each(300, 3, lambda number: fetched.append((number, random.random())))
    assert len(fetched) == 3 + 2 * 3 + 3


def test_only_the_generators_that_are_used_are_seeded_after_the_warm_up() -> None:
    seeds = SampleSeeds(1, 0)
    seeds.for_each(0, seeding.WARM_UP, lambda number: random.random())
    before = states()
    seeds.for_each(100, 3, lambda number: random.random())
    after = states()
    assert after[0] != before[0]
    assert after[1:] == before[1:]


def test_a_late_first_use_that_raises_is_judged_by_the_samples_own_numbers() -> None:
    """A sample that is good with its own seed must not fail because the generator had not been seeded yet."""
    seeds = SampleSeeds(1, 0)
    seeds.for_each(0, seeding.WARM_UP, lambda number: None)
    seed_for_sample(PythonGenerator(), seeds.seed_of(100))
    own = random.random()
    random.seed(next(seed for seed in range(99) if abs(random.Random(seed).random() - own) > 0.1))
    seeds.look_again()

    def fetch(number: int) -> None:
        if random.random() != own:
            raise ValueError("not my numbers")

    seeds.for_each(100, 1, fetch)


def test_a_warm_up_sample_that_raises_still_counts_as_use() -> None:
    seeds = SampleSeeds(1, 0)

    def fetch(number: int) -> None:
        random.random()
        raise LookupError

    with pytest.raises(LookupError):
        seeds.for_each(0, 1, fetch)
    assert [type(generator) for generator in seeds._used] == [PythonGenerator]


# --- for a batch at a time --------------------------------------------------------------------------------------------


def test_a_batch_is_seeded_by_its_position_and_its_collate_by_another_seed() -> None:
    drawn = {}
    for position, collating in [(0, False), (0, True), (8, False), (0, False)]:
        SampleSeeds(1, 0).for_batch(position, collating)
        values = tuple(draw() for draw in DRAWS.values())
        assert drawn.setdefault((position, collating), values) == values
    assert len(set(drawn.values())) == 3


def test_a_collate_that_draws_nothing_is_not_seeded_though_samples_draw() -> None:
    seeds = SampleSeeds(1, 0)
    seeds.for_each(0, seeding.WARM_UP + 2, lambda number: random.random())
    for _ in range(seeding.BATCH_WARM_UP):
        seeds.around_batch(0, lambda: None, collating=True)
    before = states()
    seeds.around_batch(8, lambda: None, collating=True)
    assert states() == before and seeds.batches_need_none()


@pytest.mark.parametrize("first_use", [0, 5])
def test_a_collate_sees_its_own_numbers_whoever_else_draws_from_the_generator(first_use: int) -> None:
    seeds, calls = SampleSeeds(1, 0), []
    for batch in range(8):
        seeds.for_each(4 * batch, 4, lambda number: (random.random(), np.random.rand()))
        collate = (lambda: calls.append(random.random())) if batch >= first_use else (lambda: None)
        seeds.around_batch(4 * batch, collate, collating=True)
    expected = []
    for batch in range(first_use, 8):
        SampleSeeds(1, 0).for_batch(4 * batch, collating=True)
        expected.append(random.random())
    assert calls[-len(expected) :] == expected
    assert len(calls) == len(expected) + (first_use > 0), "its first use makes it run again, and only that"


def test_a_collate_that_raises_at_its_first_use_is_judged_by_its_own_numbers() -> None:
    def outcome(first_use: int) -> list[Any]:
        seeds, outcomes = SampleSeeds(1, 0), []

        def collate() -> float:
            drawn = random.random()
            if drawn < 0.5:
                raise ValueError(drawn)
            return drawn

        for batch in range(32):
            try:
                outcomes.append(seeds.around_batch(4 * batch, collate if batch >= first_use else int, collating=True))
            except ValueError as error:
                outcomes.append(str(error))
        return outcomes

    always = outcome(0)
    assert {type(each) for each in always} == {float, str}
    for first_use in range(1, 31):
        begin()  # whatever is drawn unseeded
        random.seed(first_use)
        assert outcome(first_use)[first_use:] == always[first_use:], first_use


def test_a_collate_may_begin_to_use_one_generator_because_of_another() -> None:
    def collate() -> tuple[float, float]:
        first = random.random()
        return first, float(np.random.rand()) if first < 0.5 else 0.0

    always = [SampleSeeds(1, 0).around_batch(4 * batch, collate, collating=True) for batch in range(16)]
    for batch in range(16):
        seeds = SampleSeeds(1, 0)
        for _ in range(seeding.BATCH_WARM_UP):
            seeds.around_batch(0, int, collating=True)
        random.seed(2)  # it begins with 0.96
        assert seeds.around_batch(4 * batch, collate, collating=True) == always[batch]


def test_a_sample_that_seeds_a_generator_hides_nothing_that_another_has_drawn() -> None:
    """Twice all words, so that the position is where it was; and at the end of the task the words are as at its beginning."""
    seeds, drawn = SampleSeeds(1, 0), {}
    seeds.for_each(0, seeding.WARM_UP, lambda number: random.random())

    def fetch(number: int) -> None:
        drawn[number] = [random.getrandbits(32) for _ in range(1248)] if number == 0 else random.seed(2)

    random.seed(2)
    seeds.for_each(100, 2, fetch)
    seed_for_sample(PythonGenerator(), seeds.seed_of(100))
    assert drawn[0] == [random.getrandbits(32) for _ in range(1248)]


def test_what_a_collate_draws_is_no_use_by_the_samples() -> None:
    seeds, asked = SampleSeeds(1, 0), []
    for batch in range(8):
        seeds.for_each(4 * batch, 4, asked.append)
        seeds.around_batch(4 * batch, random.random, collating=True)
    assert len(asked) == 32 and seeds.samples_need_none()


def test_seeds_differ_by_seed_epoch_and_position() -> None:
    seeds = {sample_seed(base, epoch, position) for base in (0, 1, -5, 2**63) for epoch in range(4) for position in range(500)}
    assert len(seeds) == 4 * 4 * 500
    assert sample_seed(3, 2, 9) == SampleSeeds(3, 2).seed_of(9)
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_a_new_epoch_has_new_numbers_and_the_same_memory_of_what_is_used() -> None:
    seeds, drawn = SampleSeeds(1, 0), []
    seeds.for_each(0, 1, lambda number: drawn.append(random.random()))
    seeds.begin_epoch(1, 1)
    seeds.for_each(0, 1, lambda number: drawn.append(random.random()))
    seeds.begin_epoch(1, 0)
    seeds.for_each(0, 1, lambda number: drawn.append(random.random()))
    assert drawn[0] == drawn[2] != drawn[1]


@calm
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_mix_is_a_bijection_of_64_bits(one: int, other: int) -> None:
    assert 0 <= mix(one) < 2**64
    assert (mix(one) == mix(other)) is (one == other)


# --- the user's own ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owned", sorted(GENERATORS))
def test_a_generator_that_is_the_users_is_left_alone(owned: str) -> None:
    generators = global_generators()
    mine = generators[sorted(GENERATORS, key=["random", "numpy", "torch"].index).index(owned)]
    mine.seed(5)
    expected = [DRAWS[owned]() for _ in range(seeding.WARM_UP + 3)]
    mine.seed(5)
    seeds, drawn = SampleSeeds(1, 0, generators), []
    seeds.leave_to_user([mine])
    seeds.for_batch(0)
    seeds.for_each(0, seeding.WARM_UP + 3, lambda number: drawn.append(DRAWS[owned]()))
    assert drawn == expected


@pytest.mark.parametrize("raises", [False, True])
def test_the_users_process_gets_its_generators_back(raises: bool, way: str) -> None:
    before = states()

    def call() -> str:
        for draw in DRAWS.values():
            draw()
        if raises:
            raise KeyError("x")
        return "made"

    if raises:
        with pytest.raises(KeyError):
            KeptState().run(call)
    else:
        assert KeptState().run(call) == "made"
    assert states() == before


@pytest.mark.parametrize("name", ["gauss", "numpy gauss", "torch gauss"])
def test_also_the_second_half_of_a_gaussian_pair(name: str) -> None:
    """Gaussian numbers come in pairs: the second is kept beside the generator, and drawing it does not move the generator."""
    DRAWS[name]()
    before = states()
    KeptState().run(DRAWS[name])
    assert states() == before


@pytest.mark.parametrize("name", ["gauss", "numpy gauss", "torch gauss"])
def test_a_late_first_use_does_not_see_the_second_half_of_somebody_elses_pair(name: str) -> None:
    seeds, drawn = SampleSeeds(1, 0), []
    seeds.for_each(0, seeding.WARM_UP, lambda number: None)
    DRAWS[name]()  # the user, between two batches of a loader without workers
    seeds.for_each(100, 1, lambda number: drawn.append(DRAWS[name]()))
    for generator in global_generators():
        seed_for_sample(generator, seeds.seed_of(100))
    assert drawn[-1] == DRAWS[name]()


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_its_words_are_found_in_memory(name: str) -> None:
    """On every Python, numpy and torch that we know: elsewhere a sample's numbers are the same, and cost more."""
    generator = GENERATORS[name]()
    assert generator.memories and generator.stock is not None


# --- dealt a hand -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draws", [1, HAND - 1, HAND, HAND + 1, 560, 624, 632, 700, 5000])
@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_more_than_a_hand_is_seen_and_seeded_from_then_on(name: str, draws: int) -> None:
    """However often it was stirred, and wherever the position has come to."""
    draw: dict[str, Callable[[], Any]] = {
        "random": lambda: [random.getrandbits(32) for _ in range(draws)],
        "numpy": lambda: np.random.bytes(4 * draws),
        "torch": lambda: torch.rand(draws).tolist(),
    }
    seeds, drawn = SampleSeeds(1, 0), {}
    seeds.for_each(0, seeding.WARM_UP, lambda number: DRAWS[name]())
    calls = []

    def fetch(number: int) -> None:
        calls.append(number)
        drawn[number] = draw[name]()

    seeds.for_each(100, 3, fetch)
    assert calls == [0, 1, 2] * (1 + (draws > HAND)), "what was not its own is drawn again, once"
    seeds.for_each(103, 2, lambda number: fetch(number + 3))
    assert calls[-2:] == [3, 4]
    for number, numbers in drawn.items():
        seed_for_sample(GENERATORS[name](), seeds.seed_of(100 + number))
        assert draw[name]() == numbers
    assert len({str(numbers) for numbers in drawn.values()}) == 5


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("peeked", [1, HAND, HAND + 1, 700])
def test_what_torch_draws_and_takes_back_is_the_samples_own_too(peeked: int, more: int) -> None:
    def draw() -> list[float]:
        with torch.random.fork_rng(devices=[]):
            numbers = torch.rand(peeked).tolist()
        return [*numbers, *torch.rand(more).tolist()]

    seeds, drawn = SampleSeeds(1, 0), {}
    for task in range(0, 12, 3):
        seeds.for_each(task, 3, lambda number, task=task: drawn.update({task + number: draw()}))
    for position, numbers in drawn.items():
        seed_for_sample(TorchGenerator(), seeds.seed_of(position))
        assert draw() == numbers, position


def test_the_seal_is_nobodys_business_but_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    state = torch.get_rng_state()
    generator = TorchGenerator()
    mark = generator.mark()
    assert torch.equal(torch.get_rng_state(), state) and not generator.moved_since(mark)
    torch.set_rng_state(state)
    assert not generator.is_sealed() and generator.moved_since(mark)
    monkeypatch.setattr(twister_torch, "_seal_breaks", lambda: False)
    unsealed = TorchGenerator()
    unsealed.mark()
    assert unsealed.is_sealed() and not generator.is_sealed()  # it has written none, and misses none


# --- numpy's bit generator exchanged for another one ------------------------------------------------------------------


@pytest.fixture
def numpys_own() -> Iterator[Any]:
    own = np.random.mtrand.get_bit_generator()
    yield own
    np.random.mtrand.set_bit_generator(own)


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.PCG64, np.random.Philox])
def test_samples_draw_from_numpys_new_bit_generator_as_from_any(kind: type[Any], numpys_own: Any) -> None:
    def draws(exchange_at: int) -> list[float]:
        seeds, drawn = SampleSeeds(1, 0), {}

        def fetch(position: int) -> None:
            if position == exchange_at:
                np.random.mtrand.set_bit_generator(kind(5))
            drawn[position] = float(np.random.normal())

        for task in range(0, 24, 4):
            seeds.for_each(task, 4, lambda number, task=task: fetch(task + number))
        return [drawn[position] for position in range(13, 24)]

    late = draws(12)
    assert late == draws(0) and len(set(late)) == len(late)


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.PCG64])
def test_the_user_may_exchange_it_between_batches_and_a_sample_does_so_for_itself(kind: type[Any], numpys_own: Any) -> None:
    kept = KeptState()
    np.random.mtrand.set_bit_generator(kind(5))
    users = np.random.mtrand.get_bit_generator()
    before = str(users.state)
    for _ in range(2):
        kept.run(lambda: np.random.rand(3))
        kept.run(lambda: np.random.mtrand.set_bit_generator(np.random.MT19937(6)))
        kept.begin()
        np.random.rand(3)
        assert kept.end()
    assert np.random.mtrand.get_bit_generator() is users and str(users.state) == before


def test_one_that_was_exchanged_lives_as_long_as_its_memory_is_looked_at(numpys_own: Any) -> None:
    np.random.mtrand.set_bit_generator(np.random.MT19937(5))
    there = weakref.ref(np.random.mtrand.get_bit_generator().lock)  # itself it cannot be referred to weakly
    generator = NumpyGenerator()
    hands = generator.dealing(bytes(2 * HAND_BYTES))
    next(hands)
    np.random.mtrand.set_bit_generator(np.random.MT19937(6))
    generator.seal()
    gc.collect()
    assert there() is not None
    next(hands)
    del hands
    gc.collect()
    assert there() is None


# --- broken off ---


def test_a_task_that_was_broken_off_says_nothing_about_what_comes_next() -> None:
    seeds, calls = SampleSeeds(1, 0), []
    seeds.for_each(0, seeding.WARM_UP, lambda number: random.random())
    for _ in range(seeding.BATCH_WARM_UP):
        seeds.around_batch(0, random.random)

    def fetch(number: int) -> None:
        random.random()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        seeds.for_each(100, 3, fetch)
    seeds.around_batch(100, lambda: calls.append(random.random()))
    assert len(calls) == 1, "its generator was seeded: that its words are others is no sample's doing"


def test_the_hands_of_a_sample_are_unrelated(way: str) -> None:
    drawn = []
    for position in (0, 1, 2**40):
        for generator in global_generators():
            seed_for_sample(generator, seed_at(-7, position))
        drawn += [random.getrandbits(32), int(np.random.randint(2**32, dtype=np.uint32)), int(torch.randint(2**31, (1,)))]
    assert len({number & 0x7FFFFFFF for number in drawn}) == 9


def test_dealt_numbers_are_as_even_as_any() -> None:
    """The first numbers of many samples: mean, spread, and no relation of the first to the second, or of neighbours."""
    seeds, drawn = SampleSeeds(1, 0), []
    seeds.for_each(
        0, 20_000, lambda number: drawn.append((torch.rand(()).item(), torch.rand(()).item(), random.random(), np.random.rand()))
    )
    numbers = np.array(drawn)
    assert np.allclose(numbers.mean(axis=0), 0.5, atol=0.01) and np.allclose(numbers.std(axis=0), 12**-0.5, atol=0.01)
    beside = np.concatenate([numbers[1:], numbers[:-1]], axis=1)
    assert np.abs(np.corrcoef(beside.T) - np.eye(8)).max() < 0.05


def test_seeds_of_many_positions_are_those_of_each() -> None:
    for key in (0, 5, -(2**63), 2**64 - 1):
        positions = [0, 1, 2, 77, 2**40]
        assert seeds_at(key, positions).tolist() == [seed_at(key, position) for position in positions]
    assert seeds_at(3, range(5, 9)).tolist() == [seed_at(3, position) for position in range(5, 9)]


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_every_use_is_seen_however_many_there_were(name: str, way: str) -> None:
    """Also those that bring the position in the state back to where it was."""
    generator = getattr(generators, GENERATORS[name].__name__)()
    draw = {"random": random.getrandbits, "numpy": np.random.bytes, "torch": lambda bits: torch.randint(2**31, (1,))}[name]
    for count in (1, 2, 623, 624, 625, 1248):
        mark = generator.mark()
        for _ in range(count):
            draw(4)
        assert generator.moved_since(mark), count


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_another_seed_is_seen_though_nothing_was_drawn(name: str, way: str) -> None:
    generator = getattr(generators, GENERATORS[name].__name__)()
    marks = []
    for seed in (1, 2, 2**40 + 6, 2**63 + 9):  # of torch's seeds only 32 bits make another state
        generator.seed(seed)
        marks.append(generator.mark())
    assert len(set(marks)) == len(marks)


def test_the_state_behind_the_header_is_only_trusted_where_it_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    look = twister_python._python_state_is_behind_the_header.__wrapped__  # it looks once in a process
    assert look()
    monkeypatch.setattr(twister_python, "WORD_BYTES", 10**6)
    assert not look()
    monkeypatch.undo()

    class Elsewhere(random.Random):
        """A Random whose getstate tells something else than what lies in its memory."""

        def getstate(self) -> tuple[Any, ...]:
            version, words, gauss = super().getstate()
            return version, (*words[1:], words[0]), gauss

    monkeypatch.setattr(random, "Random", Elsewhere)
    assert not look()


def test_torchs_initial_seed_stays_what_it_is_unless_it_is_said(way: str) -> None:
    generator = TorchGenerator()
    torch.manual_seed(7)
    generator.seed(2**63 + 5)
    assert torch.initial_seed() == 7
    drawn = torch.rand(3).tolist()
    generator.seed(2**63 + 5)
    generator.say_initial_seed(2**63 + 11)
    assert torch.initial_seed() == 2**63 + 11
    assert torch.rand(3).tolist() == drawn == torch.rand(3, generator=torch.Generator().manual_seed((2**63 + 5) >> 1)).tolist()
