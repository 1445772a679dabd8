"""What is measured: a data set and how it is loaded now, and loaders made of it for one trial each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from antifreeze.checks.errors import NotCheckable
from antifreeze.checks.live.subject import Subject, is_iterable_dataset, subject_of
from antifreeze.loader import DataLoader
from antifreeze.profiling.model import Kind
from antifreeze.torch_private import TorchDataLoader

DEFAULT_BATCH = 32
SAMPLE_LIMIT_S = 30.0


@dataclass(frozen=True)
class Workload:
    name: str
    subject: Subject
    batch_size: int | None
    options: dict[str, Any]
    """Arguments of the present loader that stay as they are."""
    present_workers: int
    skip_bad: bool = False

    @property
    def length(self) -> int | None:
        try:
            return len(self.subject.dataset)
        except (TypeError, NotImplementedError):
            return None

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, _written(value)) for name, value in self.options.items())

    def cannot_be_loaded(self, with_what: str, why: str, *, could_skip: bool = True) -> str:
        hint = " (--skip-bad leaves bad samples out)" if could_skip and not self.skip_bad else ""
        return f"{self.name} cannot be loaded with {with_what}{hint}: {why}"

    def loader(self, kind: Kind, workers: int, batch_size: int | None, prefetch: int | None) -> Any:
        """Not started. torch's own for Kind.TORCH, with a limit of its own where it has workers."""
        options: dict[str, Any] = {**self.options, "batch_size": batch_size, "num_workers": workers}
        if "batch_sampler" in options:
            del options["batch_size"]
        if workers and kind is not Kind.THREAD:
            options["persistent_workers"] = True
        if workers and prefetch is not None:
            options["prefetch_factor"] = prefetch
        if not self.subject.is_iterable and not {"sampler", "batch_sampler"} & options.keys():
            options["sampler"] = Repeating(self.length or 0, shuffled=options.pop("shuffle", False))
        if kind is Kind.TORCH:
            return TorchDataLoader(self.subject.dataset, **options, timeout=SAMPLE_LIMIT_S if workers else 0)
        if kind is Kind.THREAD:
            options["workers"] = "thread"
            options.pop("multiprocessing_context", None)  # refused, and without a meaning there
        bad = "skip" if self.skip_bad else "raise"
        return DataLoader(self.subject.dataset, **options, on_bad_sample=bad, sample_timeout_s=SAMPLE_LIMIT_S, stall_report_s=None)


class Repeating(Sampler[int]):
    """Pass after pass without end, so that small data sets are not measured by how fast epochs begin."""

    def __init__(self, length: int, shuffled: bool) -> None:
        self.length = length
        self.shuffled = shuffled

    def __iter__(self) -> Iterator[int]:
        while self.length:
            yield from torch.randperm(self.length).tolist() if self.shuffled else range(self.length)


def workload_of(target: Any, name: str, batch_size: int | None, skip_bad: bool = False) -> Workload:
    """`batch_size` overrides the loader's; without either it is DEFAULT_BATCH."""
    subject = subject_of(target)
    if not subject.is_iterable:
        _check_length(subject.dataset, name)
    if not isinstance(target, TorchDataLoader):
        shuffled = {} if is_iterable_dataset(target) else {"shuffle": True}
        return Workload(name, subject, batch_size or DEFAULT_BATCH, dict(shuffled), 0, skip_bad)
    size = batch_size or subject.batch_size
    return Workload(name, subject, size, _options(target, keep_batches=batch_size is None), target.num_workers, skip_bad)


def _check_length(dataset: Any, name: str) -> None:
    try:
        len(dataset)
    except Exception as error:
        raise NotCheckable(f"the length of {name} is not known: {type(error).__name__}: {error}") from None


def _options(loader: Any, keep_batches: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}
    own_batches = loader.batch_size is None and loader.batch_sampler is not None
    if own_batches and keep_batches:
        options["batch_sampler"] = loader.batch_sampler
    elif isinstance(loader.sampler, RandomSampler):
        options["shuffle"] = True
    elif not is_iterable_dataset(loader.dataset) and not isinstance(loader.sampler, SequentialSampler):
        options["sampler"] = loader.sampler
    if subject_of(loader).has_own_collate:
        options["collate_fn"] = loader.collate_fn
    if loader.worker_init_fn is not None:
        options["worker_init_fn"] = loader.worker_init_fn
    if loader.drop_last and "batch_sampler" not in options:
        options["drop_last"] = True
    if loader.multiprocessing_context is not None:
        options["multiprocessing_context"] = loader.multiprocessing_context
    return options


def _written(value: Any) -> str:
    if isinstance(value, (bool, int, str)):
        return repr(value)
    if hasattr(value, "get_start_method"):
        return repr(value.get_start_method())
    return str(getattr(value, "__qualname__", type(value).__name__ + "(…)"))
