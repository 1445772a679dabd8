"""What is checked: a data set, and how it will be loaded, as far as a loader says it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset, RandomSampler

from antifreeze.checks.errors import NotCheckable
from antifreeze.torch_private import TorchDataLoader, default_collate, is_datapipe, is_iterable_kind

ASSUMED_WORKERS = 4


@dataclass(frozen=True)
class Subject:
    dataset: Any
    is_iterable: bool
    workers: int
    """As the loader has it; ASSUMED_WORKERS where only the data set is known."""
    start: str
    """fork, spawn or forkserver"""
    is_ours: bool = False
    has_loader: bool = False
    batch_size: int | None = None
    prefetch: int = 2
    is_shuffled: bool = False
    collate: Callable[[list[Any]], Any] = default_collate
    has_own_collate: bool = False
    worker_init: Callable[[int], None] | None = None

    @property
    def is_pipe(self) -> bool:
        return is_datapipe(self.dataset)

    @property
    def starts_fresh(self) -> bool:
        return self.start in ("spawn", "forkserver")

    def describe(self) -> str:
        name = type(self.dataset).__name__
        if not self.has_loader:
            return f"{name} (no loader given: {self.workers} workers assumed)"
        return f"{name}, batch_size={self.batch_size}, {self.workers} workers by {self.start}"


def subject_of(target: Any) -> Subject:
    if isinstance(target, TorchDataLoader):
        return _of_loader(target)
    check_dataset(target)
    return Subject(target, is_iterable_dataset(target), ASSUMED_WORKERS, multiprocessing.get_start_method())


def is_iterable_dataset(dataset: Any) -> bool:
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def check_dataset(target: Any) -> None:
    """Refuses what no DataLoader could load from."""
    kind = type(target).__name__
    if isinstance(target, type):
        raise NotCheckable(f"{target.__name__} is a class: give an object of it, as {target.__name__}(…)")
    if isinstance(target, (str, bytes, int, float, dict, set)) or target is None:
        raise NotCheckable(
            f"{kind} is no data set: expected a DataLoader, or an object with __getitem__ and __len__, or an IterableDataset"
        )
    if isinstance(target, IterableDataset):
        return
    if not hasattr(target, "__getitem__"):
        hint = " (a function: call it)" if callable(target) else ""
        raise NotCheckable(f"{kind} is no data set{hint}: it has neither __getitem__ nor is it an IterableDataset")


def _of_loader(loader: Any) -> Subject:
    context = loader.multiprocessing_context
    start = context.get_start_method() if context is not None else multiprocessing.get_start_method()
    return Subject(
        dataset=loader.dataset,
        is_iterable=is_iterable_kind(loader),
        workers=loader.num_workers,
        start=start,
        is_ours=type(loader).__module__.startswith("antifreeze."),
        has_loader=True,
        batch_size=loader.batch_size if loader.batch_size is not None else getattr(loader.batch_sampler, "batch_size", None),
        prefetch=loader.prefetch_factor or 2,
        is_shuffled=isinstance(loader.sampler, RandomSampler),
        collate=loader.collate_fn,
        has_own_collate=loader.collate_fn is not default_collate and loader.batch_size is not None,
        worker_init=loader.worker_init_fn,
    )
