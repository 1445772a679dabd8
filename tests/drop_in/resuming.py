"""Data sets and samplers that know where they are, and what it means to resume: a new loader, in what could be another process."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
    get_worker_info,
)

from .contract import Case, Ours, build, drain, seed_all, tree_bytes
from .datasets import Samples, random_sample


class OwnOrder(Sampler):  # type: ignore[type-arg]
    """A sampler with `state_dict` of its own: shuffles with a generator nobody else knows."""

    def __init__(self, n: int) -> None:
        self.n, self.rng, self.order, self.at = n, random.Random(5), list[int](), 0

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        if not self.order:
            self.order, self.at = self.rng.sample(range(self.n), self.n), 0
        while self.at < self.n:
            self.at += 1
            yield self.order[self.at - 1]
        self.order = []

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self.order), "at": self.at, "rng": self.rng.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.at = list(state["order"]), state["at"]
        version, words, gauss = state["rng"]
        self.rng.setstate((version, tuple(words), gauss))


class BatchByBatch(Sampler):  # type: ignore[type-arg]
    """Draws each sample (or batch of them) from all of the process's generators, when it is asked for it and not before."""

    def __init__(self, n: int, size: int | None = None) -> None:
        self.n, self.size = n, size

    def __len__(self) -> int:
        return 7 if self.size else self.n

    def __iter__(self) -> Iterator[Any]:
        for _ in range(len(self)):
            drawn = [self._draw() for _ in range(self.size or 1)]
            yield drawn if self.size else drawn[0]

    def _draw(self) -> int:
        return (random.randrange(self.n) + int(np.random.randint(self.n)) + int(torch.randint(self.n, ()))) % self.n


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Shared out among workers; without a word about where it is, so that it must be replayed."""

    def __init__(self, n: int = 23) -> None:
        self.n, self.loaded = n, torch.zeros(n, dtype=torch.int64).share_memory_()

    def share(self) -> range:
        info = get_worker_info()
        return range(info.id, self.n, info.num_workers) if info else range(self.n)

    def sample(self, index: int) -> torch.Tensor:
        self.loaded[index] += 1
        return random_sample(index)

    def __iter__(self) -> Iterator[Any]:
        for index in self.share():
            yield self.sample(index)


class StatefulStream(Stream):
    """As torchdata wants it: the data set says where it is, and starts there."""

    at = 0

    def __iter__(self) -> Iterator[Any]:
        share = self.share()
        while self.at < len(share):
            self.at += 1
            yield self.sample(share[self.at - 1])
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class StreamOfStatefulIterators(Stream):
    """The other way torchdata knows: the iterator says where it is."""

    def __iter__(self) -> Any:
        return StatefulIterator(self)


class StatefulIterator:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.share, self.at = stream, stream.share(), 0

    def __iter__(self) -> StatefulIterator:
        return self

    def __next__(self) -> Any:
        if self.at == len(self.share):
            raise StopIteration
        self.at += 1
        return self.stream.sample(self.share[self.at - 1])

    def state_dict(self) -> dict[str, Any]:
        return {"at": torch.tensor(self.at)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = int(state["at"])


class Counted(Samples):
    """Random samples, and how often each was loaded, by whatever process."""

    def __init__(self, n: int = 23) -> None:
        super().__init__(n, random_sample)
        self.loaded = torch.zeros(n, dtype=torch.int64).share_memory_()

    def __getitem__(self, index: int) -> Any:
        self.loaded[index] += 1
        return super().__getitem__(index)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(77)


def distributed(data: Any) -> dict[str, Any]:
    return {"sampler": DistributedSampler(data, num_replicas=2, rank=1), "batch_size": 2}


def mixing(samples: list[Any]) -> Any:
    """A collate function that draws."""
    return torch.stack(samples) * random.random() + float(np.random.rand()) * float(torch.rand(()))


MAPS = [
    Case("plain", Counted, lambda _: {"batch_size": 4}),
    Case("shuffle", Counted, lambda _: {"batch_size": 4, "shuffle": True}),
    Case("drop_last", Counted, lambda _: {"batch_size": 4, "shuffle": True, "drop_last": True}),
    Case("generator", Counted, lambda _: {"batch_size": 4, "shuffle": True, "generator": generator()}),
    Case("no batches", lambda: Counted(6), lambda _: {"batch_size": None, "shuffle": True}),
    Case("batch_sampler", Counted, lambda data: {"batch_sampler": BatchSampler(RandomSampler(data), 4, False)}),
    Case("list of batches", Counted, lambda _: {"batch_sampler": [[3, 1], [4], [1, 5, 9], [2, 6], [5, 3]]}),
    Case("list of indices", Counted, lambda _: {"sampler": [3, 1, 4, 1, 5, 9, 2, 6], "batch_size": 3}),
    Case("replacement", Counted, lambda data: {"sampler": RandomSampler(data, replacement=True, num_samples=20), "batch_size": 4}),
    Case(
        "replacement, generator", Counted, lambda data: {"sampler": RandomSampler(data, True, 40, generator=generator()), "batch_size": 8}
    ),
    Case("weighted", Counted, lambda data: {"sampler": WeightedRandomSampler([1.0, 5.0, 2.0] * 5, 20), "batch_size": 4}),
    Case("distributed", Counted, distributed),
    Case("sampler with a state", Counted, lambda data: {"sampler": OwnOrder(len(data)), "batch_size": 4}),
    Case("sampler that draws batch by batch", Counted, lambda data: {"sampler": BatchByBatch(len(data)), "batch_size": 4}),
    Case("batch sampler that draws batch by batch", Counted, lambda data: {"batch_sampler": BatchByBatch(len(data), 3)}),
    Case("collate that draws", Counted, lambda _: {"batch_size": 4, "shuffle": True, "collate_fn": mixing}),
]
STREAMS = [
    Case("stream", Stream, lambda _: {"batch_size": 3}),
    Case("stream with a state", StatefulStream, lambda _: {"batch_size": 3}),
    Case("stream of iterators with a state", StreamOfStatefulIterators, lambda _: {"batch_size": 3}),
    Case("stream without batches", lambda: StatefulStream(7), lambda _: {"batch_size": None}),
    Case("stream, drop_last", Stream, lambda _: {"batch_size": 3, "drop_last": True}),
]


@dataclass
class Saved:
    """What a checkpoint holds."""

    state: Any
    rng: tuple[Any, Any, torch.Tensor]
    taken: int
    """Batches delivered when it was taken."""
    epoch: int = 0
    """The one that comes next, for samplers that must be told."""


@dataclass
class Uninterrupted:
    """Two epochs, saved after every batch of the first: before it began, after iter(), after each batch, and after its end."""

    first: list[Any] = field(default_factory=list)
    second: list[Any] = field(default_factory=list)
    saved: dict[str, Saved] = field(default_factory=dict)


def new_loader(case: Case, num_workers: int, cls: Any = Ours, **more: Any) -> Any:
    dataset = case.make()
    return build(cls, dataset, **{"num_workers": num_workers, **case.kwargs(dataset), **more})


def uninterrupted(case: Case, num_workers: int, cls: Any = Ours, **more: Any) -> Uninterrupted:
    seed_all(13)
    loader, whole = new_loader(case, num_workers, cls, **more), Uninterrupted()

    def save(name: str) -> None:
        whole.saved[name] = Saved(through_a_file(loader.state_dict()), rng_now(), len(whole.first))

    save("before")
    batches = iter(loader)
    save("0")
    for number, batch in enumerate(batches, 1):
        whole.first.append(batch)
        save(str(number))
    save("end")
    whole.saved["end"].epoch = 1
    whole.second = drain_epoch(loader, 1)
    return whole


def rng_now() -> tuple[Any, Any, torch.Tensor]:
    """Of the process's generators, as users save them beside a state."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def through_a_file(state: Any) -> Any:
    """As users save it; torch.load takes plain data only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resume(case: Case, saved: Saved, num_workers: int, cls: Any = Ours, *, restore_rng: bool = True, **more: Any) -> tuple[Any, list[Any]]:
    """In a new loader over a new data set, in a process whose generators stand elsewhere: that loader, and two epochs of it."""
    seed_all(999)
    loader = new_loader(case, num_workers, cls, **more)
    loader.load_state_dict(saved.state)
    if restore_rng:
        for put_back, state in zip((random.setstate, np.random.set_state, torch.set_rng_state), saved.rng, strict=True):
            put_back(state)
    return loader, [drain_epoch(loader, saved.epoch), drain_epoch(loader, saved.epoch + 1)]


def drain_epoch(loader: Any, epoch: int) -> list[Any]:
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)
    return drain(loader)


def bytes_of(batches: list[Any]) -> list[bytes]:
    return [tree_bytes(batch) for batch in batches]
