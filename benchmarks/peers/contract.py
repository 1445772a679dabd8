"""What a peer's file must say, and the pieces of work that all of them are given.

A peer's file has
    PEER                              who it is and what pip installs for it
    entries(task)                     its rows of the table: settings to choose the best from, or a Refusal with the reason
    prepare(task, folder)             writes the task in the peer's own format, once; only where it has one
    open_epochs(task, options, folder)  imports the package and builds the data set (not timed), and returns what starts it:
                                      a function that gives one iterable of batches per epoch, again and again (timed)
Packages of the peer are imported inside functions: the file itself is also read where they are not installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from peers import NAMES
from workloads import READ_S

Epochs = Callable[[], Iterator[Iterable[Any]]]


@dataclass(frozen=True)
class Task:
    """One row of the issue's table: a workload of workloads.py, how much of it, and how many reads may wait at a time."""

    name: str
    title: str
    workload: str
    samples: int
    batch_size: int
    must_reach: float | None
    """How many times the rate of torch with 2 workers ours must have; None where only the best peer counts."""
    concurrency: int = 0
    """Reads that may wait at the same time; 0 where nothing waits."""

    @property
    def limit(self) -> float | None:
        """Samples a second that so many reads can be at the most."""
        return self.concurrency / READ_S if self.concurrency else None

    @property
    def warm_s(self) -> float:
        """Workers by the hundred come up for seconds, and what they had begun before the window must not be what counts in it."""
        return 3.0 if self.concurrency else 0.0

    @property
    def looks_s(self) -> float:
        return 6.0 if self.concurrency else 0.0


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("rows", "16 floats + label, batch 256, by __getitem__", "rows", 200_000, 256, 3.5),
        Task("rows-batch", "the same rows, array-backed or by __getitems__", "rows-batch", 200_000, 256, 26.0),
        Task("images", "3×224×224 float32, batch 64", "images", 4096, 64, 6.0),
        Task("jpeg", "JPEG 500×375, random-resized-crop 224, flip, batch 64", "jpeg", 4096, 64, 1.5),
        Task("reads-32", "3 KB in 10 ms, batch 32, 32 reads at a time", "slow-reads", 65_536, 32, None, concurrency=32),
        Task("reads-64", "3 KB in 10 ms, batch 32, 64 reads at a time", "slow-reads", 65_536, 32, None, concurrency=64),
        Task("reads-256", "3 KB in 10 ms, batch 32, 256 reads at a time", "slow-reads", 65_536, 32, None, concurrency=256),
        Task("tokens", "16 to 1024 int64 ids, batch 64, padded by a collate function", "tokens", 65_536, 64, 6.0),
    )
}


@dataclass(frozen=True)
class Peer:
    name: str
    """Its folder below the environments."""
    title: str
    requirements: tuple[str, ...]
    """For pip, beside torch==2.13.0, numpy and simplejpeg, which every environment has."""
    gives: str = "torch tensors"
    pip_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """One way to run a peer: its name in the table, what its open_epochs is given, what its environment has beside ours."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    warm_s: float = 0.0
    """Its warm-up is at least so long."""
    looks_s: float = 0.0
    """And so is the time that counts."""
    whole_epochs: bool = False
    """For one that loads far ahead while an epoch begins: the beginnings count, or what is measured is how fast it hands over."""


A_CALL_A_ROW = "a call for each row"
"""At the end of the title of a row of ours whose `__getitem__` is not seen through."""

STORED_ORDER, MORE_READS = "in stored order", "more reads at a time"
"""At the end of the title of a row that is not shuffled, or not at the same concurrency: shown, but nobody is compared with it."""

TUNES_ITSELF_S = 4.0
"""What settings that look for the best by themselves get as a warm-up, whoever's they are."""


@dataclass(frozen=True)
class Entry:
    """One row of a table: the best of some settings."""

    title: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Refusal:
    """A task that a peer cannot do, with the reason."""

    reason: str


WARM_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_TOP_PAD_": "67108864"}
"""glibc keeps freed memory: worth more than any other setting wherever samples are large and made in threads."""

WARM = "malloc kept warm"


def with_warm_malloc(task: Task, settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Each setting as it is and, where samples are large, also with WARM_MALLOC."""
    if task.workload not in ("images", "jpeg"):
        return settings
    warm = (replace(setting, name=f"{setting.name}, {WARM}", environment={**setting.environment, **WARM_MALLOC}) for setting in settings)
    return (*settings, *warm)


def one_thread_each(options: dict[str, Any]) -> None:
    """torch's own threads would fight with the peer's: one for each of these, where it has several."""
    import torch

    if max(options.get("threads", 0), options.get("workers", 0), 2 * abs(options.get("calls", 0))) > 1:
        torch.set_num_threads(1)


def load_peer(name: str) -> Any:
    """The module of that name."""
    if name not in NAMES:
        raise LookupError(f"no peer {name!r}; there are {', '.join(NAMES)}")
    return importlib.import_module(f"peers.{name}")


def forever(make: Callable[[], Iterable[Any]]) -> Iterator[Iterable[Any]]:
    """An epoch after another."""
    while True:
        yield make()


def data_folder(home: Path, peer: Peer, task: Task) -> Path:
    """Where the peer's own files of that task lie; tasks over the same samples share them."""
    return home / "data" / peer.name / f"{task.workload}-{task.samples}"
