"""Randomness is keyed on the sample: the number of workers, their speed, and how batches are cut change no augmentation.

What torch does not promise, and ours does; so these are not against torch, but for the last part (a user who seeds by himself).
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler, get_worker_info

from antifreeze.worker.twister_python import PythonGenerator

from .contract import Ours, Torchs, assert_same, build, drain, ours_only, rng_states, seed_all, tree_bytes
from .datasets import Samples, random_sample

WORKERS = [0, 1, 2, 3, 5]


def from_random(index: int) -> float:
    return random.random()


def from_numpy(index: int) -> Any:
    return np.random.rand(2)


def from_torch(index: int) -> torch.Tensor:
    return torch.rand(3)


def from_two(index: int) -> Any:
    return {"a": random.gauss(0, 1), "b": torch.randn(2)}


def varying_count(index: int) -> float:
    """Draws more for some samples, so that a shared sequence would shift."""
    return [random.random() for _ in range(1 + index % 4)][-1] + float(torch.rand(1 + index % 3)[-1])


def ever_more(index: int) -> Any:
    """From one word of each generator to more than any of them is dealt, and back."""
    count = 1 + (index * index) % 90
    return sum(random.random() for _ in range(count)), np.random.rand(count).sum(), torch.rand(count).sum()


def late(index: int) -> float:
    """The first draw of the whole data set is at index 70."""
    return random.random() + np.random.rand() + float(torch.rand(())) if index >= 70 else float(index)


def only_once(index: int) -> float:
    return float(np.random.rand()) if index == 70 else float(index)


def other_generator_late(index: int) -> float:
    return float(torch.rand(())) + (random.random() if index > 50 else 0)


def numpy_integers(index: int) -> Any:
    return np.random.randint(0, 1000, 3), np.random.permutation(4), random.choice("abc"), random.getrandbits(60)


SAMPLES = [
    from_random,
    from_numpy,
    from_torch,
    from_two,
    random_sample,
    varying_count,
    ever_more,
    late,
    only_once,
    other_generator_late,
    numpy_integers,
]


def epochs_bytes(
    sample: Callable[[int], Any], num_workers: int, *, n: int = 100, epochs: int = 2, seed: int = 1, **kwargs: Any
) -> list[bytes]:
    seed_all(seed)
    dataset = Samples(n, sample)
    given = {"batch_size": 7, **{key: value(dataset) if key == "sampler" else value for key, value in kwargs.items()}}
    loader = build(Ours, dataset, num_workers=num_workers, **given)
    return [tree_bytes(drain(loader)) for _ in range(epochs)]


@ours_only
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda fn: fn.__name__)
def test_the_number_of_workers_changes_nothing(sample: Callable[[int], Any]) -> None:
    workers = WORKERS if sample in (random_sample, varying_count, late) else [0, 2, 3]
    runs = {num_workers: epochs_bytes(sample, num_workers) for num_workers in workers}
    assert runs[0][0] != runs[0][1], "every epoch is new"
    assert {num_workers: run == runs[0] for num_workers, run in runs.items()} == dict.fromkeys(workers, True)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "batches of 1": {"batch_size": 1, "n": 40},
    "batches of 64": {"batch_size": 64, "n": 130},
    "shuffled": {"shuffle": True},
    "no batches": {"batch_size": None, "n": 40},
    "drop_last": {"drop_last": True},
    "persistent": {"persistent_workers": True},
    "far ahead": {"prefetch_factor": 6},
    "own collate": {"collate_fn": list},
    "with replacement": {"sampler": lambda data: RandomSampler(data, replacement=True)},
}


@ours_only
@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_no_argument_changes_that(name: str) -> None:
    kwargs = ARGUMENTS[name]
    of_workers_only = {"persistent_workers", "prefetch_factor"} & set(kwargs)
    epochs = 3 if "persistent_workers" in kwargs else 2
    runs = [epochs_bytes(random_sample, n, epochs=epochs, **({} if of_workers_only and not n else kwargs)) for n in (0, 2, 3)]
    assert len(set(runs[1])) == epochs, "every epoch is new"
    if "persistent_workers" in kwargs:  # torch draws a base seed per epoch only where workers are new, and so do we
        assert runs[1] == runs[2]
        assert runs[0][0] == runs[1][0]
    else:
        assert runs[0] == runs[1] == runs[2]


@ours_only
def test_how_batches_are_cut_changes_no_sample() -> None:
    assert len({epochs_bytes(random_sample, 2, batch_size=size)[0] for size in (1, 7, 64)}) == 1


@ours_only
@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_index_drawn_twice_is_augmented_twice(num_workers: int) -> None:
    torch.manual_seed(3)
    drawn = torch.cat(drain(Ours(Samples(3, random_sample), batch_size=4, num_workers=num_workers, sampler=[1] * 30)))
    for column in (1, 2, 3):
        assert len(set(drawn[:, column].tolist())) == 30


@ours_only
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_differ_from_each_other_and_generators_from_each_other(num_workers: int) -> None:
    torch.manual_seed(3)
    drawn = torch.cat(drain(Ours(Samples(50, random_sample), batch_size=8, num_workers=num_workers)))
    assert len(set(drawn[:, 1:].flatten().tolist())) == 150
    assert 0.3 < float(drawn[:, 1:].mean()) < 0.7


@ours_only
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_seed_decides(num_workers: int) -> None:
    runs = [epochs_bytes(random_sample, num_workers, seed=seed, n=20) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]
    with_generator = [
        epochs_bytes(random_sample, num_workers, seed=seed, n=20, generator=torch.Generator().manual_seed(4)) for seed in (1, 2)
    ]
    assert with_generator[0] == with_generator[1]


def mixing_collate(samples: list[Any]) -> torch.Tensor:
    """A collate function that augments: mixup."""
    batch = torch.stack(samples)
    return batch * random.random() + batch[torch.randperm(len(batch))] * np.random.rand()


class RandomBatches(Samples):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.sample(index) * random.random() for index in indices]


@ours_only
@pytest.mark.parametrize("make", [Samples, RandomBatches])
@pytest.mark.parametrize("sample", [random_sample, lambda index: torch.ones(3)], ids=["random", "still"])
def test_collate_functions_and_whole_batches_that_draw(make: Any, sample: Any) -> None:
    runs = []
    for num_workers in (0, 1, 2, 3):
        seed_all(5)
        loader = build(Ours, make(40, sample), batch_size=6, num_workers=num_workers, collate_fn=mixing_collate)
        runs.append([[tree_bytes(batch) for batch in drain(loader)] for _ in range(2)])
    assert runs[0] == runs[1] == runs[2] == runs[3]
    assert len({batch for epoch in runs[0] for batch in epoch}) == 14


@ours_only
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_parents_generators_are_left_as_torchs_workers_leave_them(num_workers: int) -> None:
    def told(cls: Any, workers: int) -> list[Any]:
        seed_all(8)
        states = []
        for _ in cls(Samples(12, random_sample), batch_size=4, shuffle=True, num_workers=workers):
            states.append(rng_states())
            random.random(), np.random.rand(), torch.rand(1)
        return [*states, rng_states()]

    assert told(Ours, num_workers) == told(Torchs, 2)


@ours_only
@pytest.mark.parametrize("stops", [KeyboardInterrupt, ValueError])
def test_a_sample_that_draws_and_ends_the_batch_leaves_the_parents_generators_too(stops: type[BaseException]) -> None:
    def sample(index: int) -> Any:
        drawn = random_sample(index)
        if index == 25:
            raise stops
        return drawn

    batches = iter(Ours(Samples(40, sample), batch_size=4))
    for _ in range(6):
        next(batches)
    before = rng_states()
    with pytest.raises(stops):
        next(batches)
    assert rng_states() == before


@ours_only
def test_a_loop_that_draws_changes_no_sample() -> None:
    def drawn(draws: int, num_workers: int) -> list[bytes]:
        seed_all(8)
        told = []
        for batch in Ours(Samples(20, random_sample), batch_size=4, num_workers=num_workers):
            told.append(tree_bytes(batch))
            for _ in range(draws):
                random.random(), np.random.rand(), torch.rand(1)
        return told

    assert drawn(0, 0) == drawn(3, 0) == drawn(3, 2)


def seeds_all_himself(worker_id: int) -> None:
    seed_all(100 + worker_id)


def seeds_as_torchs_documentation_says(worker_id: int) -> None:
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def seeds_from_worker_info(worker_id: int) -> None:
    np.random.seed(get_worker_info().seed % 2**32)


ROWS = [
    (seeds_all_himself, random_sample),
    (seeds_as_torchs_documentation_says, from_numpy),
    (seeds_as_torchs_documentation_says, from_random),
    (seeds_from_worker_info, from_numpy),
]


@pytest.mark.parametrize(("init", "sample"), ROWS, ids=[f"{init.__name__}-{sample.__name__}" for init, sample in ROWS])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_who_seeds_by_himself_gets_what_torch_gives_him(
    init: Callable[[int], None], sample: Callable[[int], Any], num_workers: int
) -> None:
    def batches(cls: Any) -> list[Any]:
        torch.manual_seed(6)
        return drain(build(cls, Samples(25, sample), batch_size=3, num_workers=num_workers, worker_init_fn=init))

    assert_same(batches(Ours), batches(Torchs))


def seeds_nothing(worker_id: int) -> None:
    get_worker_info().dataset.n += 0


@ours_only
def test_an_init_function_that_seeds_nothing_changes_nothing() -> None:
    assert len({epochs_bytes(random_sample, n, n=30, worker_init_fn=seeds_nothing)[0] for n in (0, 1, 2, 3)}) == 1


class Agreed(IterableDataset):  # type: ignore[type-arg]
    """Its workers agree on an order by the seed that torch says, and each gives its share."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        generator = torch.Generator().manual_seed(torch.initial_seed() - number)
        yield from torch.randperm(24, generator=generator).tolist()[number::workers]


@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_workers_that_agree_by_torchs_seed_share_out_everything_as_with_torch(num_workers: int) -> None:
    def epochs(cls: Any) -> list[Any]:
        seed_all(3)
        loader = build(cls, Agreed(), batch_size=2, num_workers=num_workers)
        return [drain(loader), drain(loader), torch.initial_seed()]

    torchs = epochs(Torchs)
    assert sorted(torch.cat(torchs[0]).tolist()) == list(range(24))
    assert_same(epochs(Ours), torchs)


@ours_only
@pytest.mark.parametrize("resumed_with", [0, 1])
def test_streams_of_a_resumed_run_agree_too(resumed_with: int) -> None:
    seed_all(3)
    loader = Ours(Agreed(), batch_size=2, num_workers=2)
    batches = iter(loader)
    came = next(batches).tolist()
    state = loader.state_dict()
    seed_all(4)
    resumed = Ours(Agreed(), batch_size=2, num_workers=resumed_with)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in batches]
    assert len(came) == 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchs_initial_seed_of_a_sample(num_workers: int) -> None:
    def seeds(cls: Any, sample: Any) -> list[Any]:
        seed_all(3)
        return [drain(cls(Samples(12, sample), batch_size=2, num_workers=num_workers)), torch.initial_seed(), torch.rand(1)]

    assert_same(seeds(Ours, lambda i: torch.initial_seed()), seeds(Torchs, lambda i: torch.initial_seed()))
    if not num_workers:
        assert all(seed == 3 for batch in seeds(Ours, lambda i: (torch.rand(1), torch.initial_seed()))[0] for seed in batch[1].tolist())


@ours_only
def test_a_late_first_use_costs_one_batch_a_second_time_and_no_more() -> None:
    asked: list[int] = []

    def late(index: int) -> Any:
        asked.append(index)
        return index, random.random() if index > 12 else 0.0

    drain(Ours(Samples(24, late), batch_size=4))
    assert sorted(asked) == sorted([*range(24), *range(12, 16)])


@ours_only
@pytest.mark.parametrize("first", [0, 13])
def test_what_a_data_set_draws_is_found_out_once(first: int) -> None:
    """Also that it draws much: of the samples that the first batch begins with, without loading any of them again."""
    asked: list[int] = []

    def much(index: int) -> Any:
        asked.append(index)
        return index, sum(random.random() for _ in range(100)) if index >= first else 0.0

    loader = Ours(Samples(24, much), batch_size=4)
    seed_all(1)
    drain(loader)
    assert sorted(asked) == sorted([*range(24), *(range(12, 16) if first else ()), *(range(12, 16) if first else ())])
    asked.clear()
    second = drain(loader)
    assert asked == list(range(24))
    fresh = Ours(Samples(24, much), batch_size=4, num_workers=2)
    seed_all(1)
    drain(fresh)
    assert_same(drain(fresh), second)


class Alarmed(Exception):
    pass


@ours_only
def test_an_alarm_while_the_generators_are_put_back_leaves_them_as_the_user_had_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def ring(*_: object) -> None:
        raise Alarmed

    def restore(self: PythonGenerator, saved: Any) -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)

    random.seed(3)
    loader = Ours(Samples(40, from_random), batch_size=4)
    batches = iter(loader)
    seen = [next(batches) for _ in range(3)]
    expected = random.getstate()
    before = signal.signal(signal.SIGUSR1, ring)
    monkeypatch.setattr(PythonGenerator, "restore", restore)
    try:
        with pytest.raises(Alarmed):
            next(batches)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert random.getstate() == expected
    assert len(seen) + len(list(batches)) == len(loader)
    assert random.getstate() == expected
