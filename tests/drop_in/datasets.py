"""Data sets of the contracts; at module level, so that spawned workers can import them."""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

Pair = namedtuple("Pair", ["image", "label"])


class Typed(NamedTuple):
    x: Any
    y: Any = None


class Tagged(dict):  # type: ignore[type-arg]
    """A dict subclass that carries something beside its keys."""

    tag = "none"


@dataclass
class Point:
    """A type torch's collate does not know by itself."""

    x: torch.Tensor
    name: str


class Pinnable:
    """As in torch's documentation: a custom batch type with its own pin_memory."""

    def __init__(self, samples: Any) -> None:
        self.tensor = torch.cat(list(samples))
        self.pinned = False

    def pin_memory(self) -> Pinnable:
        self.pinned = True
        return self


class Marked(torch.Tensor):
    """A tensor subclass."""


class Samples(Dataset):  # type: ignore[type-arg]
    """`sample(i)` for i below n."""

    def __init__(self, n: int, sample: Callable[[int], Any]) -> None:
        self.n, self.sample = n, sample

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


class Squares(Dataset):  # type: ignore[type-arg]
    """Fixed-shape samples: (3 floats, label)."""

    def __init__(self, n: int = 10, scale: float = 1.0) -> None:
        self.n, self.scale = n, scale

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([index, index**2, 0.5], dtype=torch.float32) * self.scale, int(index)


class Echo(Dataset):  # type: ignore[type-arg]
    """Says which index it was asked for, and of what type."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> str:
        return f"{type(index).__name__} {index!r}"


class WholeBatch(Squares):
    """Has `__getitems__`, and says how it was called."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [(*self[index], len(indices), type(indices).__name__) for index in indices]


class OwnBatch(Squares):
    """`__getitems__` may give anything the collate function takes, not only a list."""

    def __getitems__(self, indices: list[int]) -> dict[str, Any]:
        return {"indices": tuple(indices), "sum": torch.tensor(indices).sum()}


class StackedBatch(Squares):
    """Its `__getitems__` has stacked the samples already: for a collate function that hands them on, and none that stacks."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.stack([self[index][0] for index in indices])


class NoGetItems(Squares):
    __getitems__ = None


class Count(IterableDataset):  # type: ignore[type-arg]
    """Every worker gives all of it."""

    def __init__(self, n: int = 10) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        for i in range(self.n):
            yield torch.tensor([i, i * i]), i


class SizedCount(Count):
    def __init__(self, n: int, said: int) -> None:
        super().__init__(n)
        self.said = said

    def __len__(self) -> int:
        return self.said


class Sharded(IterableDataset):  # type: ignore[type-arg]
    """Workers share it out, unevenly when `n` does not divide."""

    def __init__(self, n: int = 10) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, self.n, step):
            yield torch.tensor([i, i * i]), i


class Lopsided(IterableDataset):  # type: ignore[type-arg]
    """Worker w gives 5 * w samples: worker 0 none at all."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = info.id if info else 1
        for i in range(5 * worker):
            yield 100 * worker + i


class OwnIterator(IterableDataset):  # type: ignore[type-arg]
    """`__iter__` gives itself, so it starts where it stopped when it is not copied."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> OwnIterator:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at % 5 == 0:
            raise StopIteration
        return self.at


class Remembering(Dataset):  # type: ignore[type-arg]
    """Counts in its own process how often it was asked."""

    def __init__(self, n: int = 6) -> None:
        self.n, self.asked = n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.asked += 1
        return index, self.asked


class Info(Dataset):  # type: ignore[type-arg]
    """What get_worker_info() says."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if info is None:
            return ("parent", -1, -1, -1, True, torch.get_num_threads() >= 1)
        return (type(info).__name__, info.id, info.num_workers, info.seed, info.dataset is self, torch.get_num_threads() == 1)


class Failing(Dataset):  # type: ignore[type-arg]
    """Raises `make_error()` at index 4 of 10."""

    def __init__(self, make_error: Callable[[], BaseException]) -> None:
        self.make_error = make_error

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 4:
            raise self.make_error()
        return torch.tensor([index, index])


class FailingIterable(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, make_error: Callable[[], BaseException]) -> None:
        self.make_error = make_error

    def __iter__(self) -> Iterator[int]:
        yield from range(4)
        raise self.make_error()


def random_sample(index: int) -> Any:
    """Draws from all three generators."""
    return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)
