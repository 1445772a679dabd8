"""Which samples make which batch: data sets, samplers, batch samplers, collate functions, in the parent and in workers."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    IterableDataset,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

from .contract import REPEATS, Case, Ours, Torchs, assert_same, assert_same_outcome, drain, ours_only, rows, run, tree_bytes
from .datasets import (
    Count,
    Echo,
    Lopsided,
    NoGetItems,
    OwnBatch,
    OwnIterator,
    Remembering,
    Samples,
    Sharded,
    SizedCount,
    Squares,
    StackedBatch,
    WholeBatch,
)

pytestmark = REPEATS


class Backwards(Sampler):  # type: ignore[type-arg]
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n - 1, -1, -1))

    def __len__(self) -> int:
        return self.n


class OldProtocol:
    """Iterable by `__getitem__` alone."""

    def __getitem__(self, index: int) -> int:
        if index >= 4:
            raise IndexError
        return 3 - index


class Reserved:
    """Fails, where others have no such attribute."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        return self.source[index]


class Doubling:
    def __call__(self, samples: list[Any]) -> Any:
        return default_collate([(x * 2, y) for x, y in samples])

    def method(self, samples: list[Any]) -> Any:
        return {"n": len(samples), "batch": default_collate(samples)}


def padded(samples: list[Any], *, fill: int = 0) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.full((1 + y,), y) for _, y in samples], batch_first=True, padding_value=fill)


def squares(n: int = 10) -> Callable[[], Squares]:
    return lambda: Squares(n)


DATA_SETS = [
    Case("batch of 1", Squares),
    Case("batch of 3", Squares, lambda _: {"batch_size": 3}),
    Case("batch of all", Squares, lambda _: {"batch_size": 10}),
    Case("batch of more than all", Squares, lambda _: {"batch_size": 100}),
    Case("drop_last", Squares, lambda _: {"batch_size": 4, "drop_last": True}),
    Case("drop_last drops all", squares(3), lambda _: {"batch_size": 4, "drop_last": True}),
    Case("empty", squares(0), lambda _: {"batch_size": 4}),
    Case("one sample", squares(1), lambda _: {"batch_size": 4}),
    Case("three epochs", Squares, lambda _: {"batch_size": 4}, epochs=3),
    Case("no batches", Squares, lambda _: {"batch_size": None}, epochs=2),
    Case("many batches", squares(120), lambda _: {"batch_size": 2}),
    Case("a list", lambda: [torch.ones(2) * i for i in range(7)], lambda _: {"batch_size": 3}),
    Case("a tuple", lambda: tuple(range(7)), lambda _: {"batch_size": 3}),
    Case("a string", lambda: "antifreeze", lambda _: {"batch_size": 3}),
    Case("a dict", lambda: {i: float(i) for i in range(7)}, lambda _: {"batch_size": 3}),
    Case("a range", lambda: range(7), lambda _: {"batch_size": 3}),
    Case("a tensor", lambda: torch.arange(14).reshape(7, 2), lambda _: {"batch_size": 3}),
    Case("an array", lambda: np.arange(14).reshape(7, 2), lambda _: {"batch_size": 3}),
    Case("__getitems__ gets whole batches", WholeBatch, lambda _: {"batch_size": 4}),
    Case("__getitems__ gets the batch sampler's own type", WholeBatch, lambda _: {"batch_sampler": [(1, 2, 3), (4,)]}),
    Case("__getitems__ gives what collate takes", OwnBatch, lambda _: {"batch_size": 4, "collate_fn": lambda batch: batch}),
    Case("__getitems__ gives one tensor", StackedBatch, lambda _: {"batch_size": 4, "collate_fn": lambda batch: batch}),
    Case("__getitems__ gives one tensor, default collate", StackedBatch, lambda _: {"batch_size": 4}),
    Case("__getitems__ is not asked without batches", WholeBatch, lambda _: {"batch_size": None}),
    Case("__getitems__ is None", NoGetItems, lambda _: {"batch_size": 4}),
    Case("Subset", lambda: Subset(Squares(), [7, 1, 1, 3]), lambda _: {"batch_size": 3}),
    Case("Subset of __getitems__", lambda: Subset(WholeBatch(), [7, 1, 1, 3]), lambda _: {"batch_size": 3}),
    Case("Subset of a Subset", lambda: Subset(Subset(Squares(), range(2, 9)), [5, 0]), lambda _: {"batch_size": 2, "shuffle": True}),
    Case("ConcatDataset", lambda: ConcatDataset([Squares(3), Squares(4, 2.0)]), lambda _: {"batch_size": 2, "shuffle": True}),
    Case("StackDataset", lambda: StackDataset(Squares(5), torch.arange(5)), lambda _: {"batch_size": 2}),
    Case("StackDataset by name", lambda: StackDataset(a=Squares(5), b=WholeBatch(5)), lambda _: {"batch_size": 2}),
    Case("TensorDataset", lambda: TensorDataset(torch.rand(7, 3), torch.arange(7)), lambda _: {"batch_size": 3, "shuffle": True}),
    Case("random_split", lambda: random_split(Squares(9), [5, 4])[1], lambda _: {"batch_size": 3}),
    Case("stream", Count, lambda _: {"batch_size": 3}, epochs=2),
    Case("stream without batches", Count, lambda _: {"batch_size": None}),
    Case("stream, drop_last", Count, lambda _: {"batch_size": 4, "drop_last": True}),
    Case("stream with a length", lambda: SizedCount(7, 7), lambda _: {"batch_size": 2}),
    Case("empty stream", lambda: Count(0), lambda _: {"batch_size": 2}),
    Case("sharded stream", lambda: Sharded(11), lambda _: {"batch_size": 2}, epochs=2),
    Case("lopsided stream", Lopsided, lambda _: {"batch_size": 2}),
    Case("lopsided stream without batches", Lopsided, lambda _: {"batch_size": None}),
    Case("a stream that is its own iterator", OwnIterator, lambda _: {"batch_size": 3}, epochs=3),
    Case("ChainDataset", lambda: ChainDataset([Count(3), Sharded(4)]), lambda _: {"batch_size": 2}),
    Case("IterDataPipe", lambda: IterableWrapper(range(9)).map(float), lambda _: {"batch_size": 2}),
    Case("IterDataPipe, sharded", lambda: IterableWrapper(range(11)).sharding_filter(), lambda _: {"batch_size": 2}),
    Case("IterDataPipe, shuffled", lambda: IterableWrapper(range(11)).shuffle().sharding_filter(), lambda _: {"batch_size": 2}, epochs=2),
    Case("IterDataPipe, shuffle=True", lambda: IterableWrapper(range(11)).shuffle(), lambda _: {"shuffle": True}, epochs=2),
    Case("IterDataPipe, shuffle=False", lambda: IterableWrapper(range(11)).shuffle(), lambda _: {"shuffle": False}),
    Case("no attribute but its own", lambda: Reserved(Squares()), lambda _: {"batch_size": None}),
    Case("MapDataPipe", lambda: SequenceWrapper(range(9)).map(float), lambda _: {"batch_size": 2, "shuffle": True}),
]

SAMPLERS = [
    Case("Sampler", Squares, lambda data: {"sampler": Backwards(len(data)), "batch_size": 3}, epochs=2),
    Case("Sampler without batches", Squares, lambda data: {"sampler": Backwards(len(data)), "batch_size": None}),
    Case("list", Squares, lambda _: {"sampler": [3, 1, 1, 2], "batch_size": 3}),
    Case("numpy integers", Echo, lambda _: {"sampler": np.arange(4), "batch_size": 3}),
    Case("range", Echo, lambda _: {"sampler": range(4), "batch_size": 3}),
    Case("generator, once", Squares, lambda _: {"sampler": (i for i in range(7)), "batch_size": 3}, epochs=2),
    Case("old protocol", Squares, lambda _: {"sampler": OldProtocol(), "batch_size": 3}),
    Case("set and string keys", Echo, lambda _: {"sampler": ["a", "bc", ""], "batch_size": 2}),
    Case(
        "all sorts of keys",
        Echo,
        lambda _: {"sampler": [True, -1, 2**70, -(2**70), 0.5, None, (1, "a"), b"x", slice(1, 2)], "batch_size": 2},
    ),
    Case("all sorts of keys, no batches", Echo, lambda _: {"sampler": [True, -1, 2**70, 0.5, None, (1, "a"), [1, 2]], "batch_size": None}),
    Case("negative indices", lambda: list(range(7)), lambda _: {"sampler": [-1, -7, 3], "batch_size": 2}),
    Case("BatchSampler", Squares, lambda data: {"batch_sampler": BatchSampler(Backwards(len(data)), 4, True)}, epochs=2),
    Case(
        "BatchSampler as sampler",
        Echo,
        lambda data: {"sampler": BatchSampler(SequentialSampler(data), 4, False), "batch_size": None},
    ),
    Case(
        "BatchSampler as sampler, a subset",
        lambda: Subset(torch.arange(40), [5, 3, 3, 19, 0]),
        lambda data: {"sampler": BatchSampler(SequentialSampler(data), 2, False), "batch_size": None},
    ),
    Case("list of lists", Squares, lambda _: {"batch_sampler": [[3], [1, 2, 4], [9, 9]]}),
    Case("list of tuples", Echo, lambda _: {"batch_sampler": [(3,), (1, 2, 4)]}),
    Case("list of arrays", Echo, lambda _: {"batch_sampler": [np.array([3]), np.array([1, 2])]}),
    Case("generator of lists", Squares, lambda _: {"batch_sampler": ([i, i] for i in range(4))}, epochs=2),
    Case("batches of mixed length", Squares, lambda _: {"batch_sampler": [[i] * (1 + 7 * i % 5) for i in range(9)]}),
    Case("an empty batch", Squares, lambda _: {"batch_sampler": [[], [1]], "collate_fn": list}),
    Case("an empty batch, default collate", Squares, lambda _: {"batch_sampler": [[1], []]}),
    Case("weighted", Squares, lambda _: {"sampler": WeightedRandomSampler([0.1, 0.9, 0.4], 8), "batch_size": 3}, epochs=2),
    Case("subset random", Squares, lambda _: {"sampler": SubsetRandomSampler([2, 4, 6, 8]), "batch_size": 3}, epochs=2),
]

TENSOR_INDICES = [
    Case("a tensor", Echo, lambda _: {"sampler": torch.arange(4), "batch_size": 3}),
    Case("list of tensors", Echo, lambda _: {"batch_sampler": list(torch.arange(6).reshape(3, 2))}),
]

COLLATES = [
    Case("default_collate by name", Squares, lambda _: {"batch_size": 3, "collate_fn": default_collate}),
    Case("lambda", Squares, lambda _: {"batch_size": 3, "collate_fn": lambda samples: samples}),
    Case("partial", Squares, lambda _: {"batch_size": 3, "collate_fn": functools.partial(padded, fill=7)}),
    Case("callable", Squares, lambda _: {"batch_size": 3, "collate_fn": Doubling()}),
    Case("method", Squares, lambda _: {"batch_size": 3, "collate_fn": Doubling().method}),
    Case("without batches", Squares, lambda _: {"batch_size": None, "collate_fn": str}),
    Case("of a stream", Count, lambda _: {"batch_size": 3, "collate_fn": tuple}),
    Case("gives None", Squares, lambda _: {"batch_size": 3, "collate_fn": lambda samples: None}),
    Case("gives a string", Squares, lambda _: {"batch_size": 3, "collate_fn": str}),
    Case("gives a growing batch", squares(40), lambda _: {"batch_size": 4, "collate_fn": padded}),
    Case("gives numpy", Squares, lambda _: {"batch_size": 3, "collate_fn": lambda samples: np.stack([x for x, _ in samples])}),
]

EXPECTED_ERRORS = {
    "an empty batch, default collate",
    "__getitems__ gets the batch sampler's own type",
    "__getitems__ gives one tensor, default collate",
}


@pytest.mark.parametrize("num_workers", [0, 2])
@rows(DATA_SETS + SAMPLERS + COLLATES)
def test_the_same_batches(case: Case, num_workers: int) -> None:
    stream = isinstance(case.make(), IterableDataset)
    torchs = run(Torchs, case, num_workers if stream else 0)  # of map-style data torch's workers make the same batches, slowly
    if case.name not in EXPECTED_ERRORS:
        assert torchs.error is None, torchs.error
    assert_same_outcome(run(Ours, case, num_workers), torchs)


@ours_only
@rows([case for case in DATA_SETS + SAMPLERS + COLLATES if "DataPipe" not in case.name])
def test_the_same_batches_from_threads(case: Case) -> None:
    stream = isinstance(case.make(), IterableDataset)
    assert_same_outcome(run(Ours, case, 2, workers="thread"), run(Torchs, case, 2 if stream else 0))


@pytest.mark.leaves("thread", "descriptor", why="torch sends a tensor to its workers through a thread that never ends")
@pytest.mark.parametrize("num_workers", [0, 2])
@rows(TENSOR_INDICES)
def test_indices_that_are_tensors(case: Case, num_workers: int) -> None:
    assert_same_outcome(run(Ours, case, num_workers), run(Torchs, case, num_workers))


@pytest.mark.parametrize("kwargs", [{"prefetch_factor": 1}, {"prefetch_factor": 5}, {"timeout": 30}, {"persistent_workers": True}], ids=str)
def test_options(kwargs: dict[str, Any]) -> None:
    for make in (lambda: Squares(23), lambda: Sharded(23)):
        case = Case("", make, lambda data: {"batch_size": 3, "shuffle": isinstance(data, Squares)}, epochs=2)
        assert_same_outcome(run(Ours, case, 2, **kwargs), run(Torchs, case, 2, **kwargs))


@pytest.mark.parametrize("num_workers", [1, 3])
@rows([DATA_SETS[1], *(case for case in DATA_SETS if case.name in ("sharded stream", "lopsided stream", "IterDataPipe, shuffled"))])
def test_the_same_batches_with_other_numbers_of_workers(case: Case, num_workers: int) -> None:
    assert_same_outcome(run(Ours, case, num_workers), run(Torchs, case, num_workers))


@rows([DATA_SETS[1], *(case for case in DATA_SETS if case.name in ("many batches", "sharded stream", "no batches"))])
def test_out_of_order_gives_the_same_batches_in_any_order(case: Case) -> None:
    ours, torchs = run(Ours, case, 2, in_order=False), run(Torchs, case, 2)
    assert ours.error is None
    assert Counter(map(tree_bytes, ours.batches)) == Counter(map(tree_bytes, torchs.batches))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_several_iterators_over_one_loader(num_workers: int) -> None:
    def interleaved(cls: Any) -> list[Any]:
        torch.manual_seed(5)
        loader = cls(Squares(), batch_size=3, shuffle=True, num_workers=num_workers)
        first, second = iter(loader), iter(loader)
        taken = [next(first), next(second), next(second), next(first)]
        return [taken, list(zip(loader, loader, strict=True)), drain(second), drain(first)]

    assert_same(interleaved(Ours), interleaved(Torchs))


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_change_of_the_data_set_between_epochs(num_workers: int, persistent: bool) -> None:
    """Seen by the next epoch, but for persistent workers, which keep their copy."""

    def epochs(cls: Any) -> list[Any]:
        dataset = Squares(6)
        loader = cls(dataset, batch_size=4, num_workers=num_workers, persistent_workers=persistent)
        seen = [drain(loader)]
        dataset.scale = 10.0
        seen.append(drain(loader))
        dataset.n = 9  # the sampler in the parent asks the parent's data set
        seen.append(drain(loader))
        return seen

    ours = epochs(Ours)
    assert_same(ours, epochs(Torchs))
    assert (difference_of_first(ours) == 0) == persistent


def difference_of_first(epochs: list[Any]) -> float:
    return float((epochs[1][0][0] - epochs[0][0][0]).abs().sum())


def test_without_workers_a_change_is_seen_at_once() -> None:
    def changed(cls: Any) -> list[Any]:
        dataset = Remembering(9)
        taken = []
        for batch in cls(dataset, batch_size=2):
            taken.append(batch)
            dataset.asked += 100
        return [*taken, dataset.asked]

    assert_same(changed(Ours), changed(Torchs))


def test_without_workers_samples_are_loaded_when_asked_for() -> None:
    dataset = Remembering(9)
    batches = iter(Ours(dataset, batch_size=2))
    assert dataset.asked == 0
    next(batches)
    assert dataset.asked == 2


def test_without_workers_everything_happens_in_this_process_and_on_this_data_set() -> None:
    seen: list[int] = []

    def note(index: int) -> int:
        seen.append(index)
        return index

    assert len(list(Ours(Samples(5, note), batch_size=2))) == 3
    assert seen == [0, 1, 2, 3, 4]
