"""Silent traps: what runs without an error and gives wrong or slow results. Each is said once per loader, as a warning.

1. A handle opened before the fork (a file, a zip, a database, a socket): workers move each other's position.
2. A random generator made before the fork: every worker draws the same numbers.
3. Every worker of an iterable data set delivers the same samples.
4. A DistributedSampler that is never given set_epoch: every epoch has the same order; we advance it.
5. Workers that may use one core only.
6. More workers than the cgroup's quota has cores (torch itself says it where there are more than the machine has).
7. Workers whose thread pools together are more than the cores.
8. Lengths, given to BatchesByLength, that are those of another data set.
9. A lock of asyncio's that the event loops of several threads share: it wakes nobody in another loop, who waits until the deadline.
10. Without workers and batching, a data set that hands out its own storage: what the loop changes in place, it changes there.
"""

from __future__ import annotations

import io
import os
import random
import socket
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from antifreeze.batching.by_length import BatchesByLength
from antifreeze.delivery.crowding import crowded_workers
from antifreeze.errors import AntifreezeWarning
from antifreeze.parts import named_parts
from antifreeze.torch_private import is_datapipe

_HANDLES = (io.IOBase, zipfile.ZipFile, tarfile.TarFile, socket.socket)
_HANDLES_BY_NAME = {
    "h5py._hl.files.File",
    "h5py._hl.files.Group",
    "h5py._hl.dataset.Dataset",
    "builtins.Environment",
    "lmdb.Environment",
    "sqlite3.Connection",
}
"""Of modules that are not imported for their sake."""

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_OF_ONE_LOOP = ("asyncio.locks", "asyncio.queues")
_LEAVES = (str, bytes, int, float, bool, type(None), torch.Tensor, np.ndarray)
_NOT_ENTERED = (*_GENERATORS, type)
_DEPTH = 4
_WIDTH = 64


class Traps:
    """What one loader has said already."""

    def __init__(self, usable_cores: Callable[[], int]) -> None:
        self._usable_cores = usable_cores
        self._said: set[str] = set()
        self._first_batches: dict[int, int] = {}
        self._alike: int | None = None  # with what two streams began
        self._last_storage = (0, 0)
        self._used_epoch: int | None = None
        self._epoch_is_set = False  # by the user, between two passes

    def say(self, trap: str, text: str) -> None:
        if trap not in self._said:
            self._said.add(trap)
            warnings.warn(f"antifreeze: {text}", AntifreezeWarning, stacklevel=6)

    def before_start(self, dataset: Any, workers: int, forks: bool, threads: bool = False) -> None:
        if threads and workers > 1:
            for path, value in walk(dataset, "dataset"):
                self._look_at_shared(path, value)
        if not threads and (forks or workers > 1) and not is_datapipe(dataset):  # DataPipes seed their own generators in each worker
            for path, value in walk(dataset, "dataset"):
                self._look_at(path, value, workers, forks)
        if hasattr(os, "sched_getaffinity") and workers > 1 and len(os.sched_getaffinity(0)) == 1 and (os.cpu_count() or 1) > 1:
            self.say("core", f"this process and its {workers} workers may use one CPU core of {os.cpu_count()} (see os.sched_getaffinity)")

        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        cores = self._usable_cores()
        if cores < allowed and workers > cores:
            self.say(
                "quota",
                f"{workers} workers share the {cores} CPU cores that the cgroup's quota grants (of {allowed} on the machine): where they "
                f"compute, more than {cores} only wait for each other",
            )

    def busy_threads(self, threads: list[int]) -> None:
        """`threads`: how many of each worker's compute."""
        if max(threads, default=1) > 1:
            said = crowded_workers(threads, self._usable_cores())
            if said is not None:
                self.say("threads", said)

    def _look_at(self, path: str, value: Any, workers: int, forks: bool) -> None:
        kind = kind_of(value)
        if forks and is_handle(value):  # a fresh process is given a pickle, which a handle has not
            self.say(
                path,
                f"{path} ({kind}) was opened before the workers are forked: what they share of it (a position, a lock, a connection) may "
                "give them each other's data; open it in the worker, on first use in __getitem__",
            )
        elif workers > 1 and is_generator(value):
            when = "forked" if forks else "started"
            self.say(
                path,
                f"{path} ({kind}) is a random generator made before the workers are {when}: each of them draws the same numbers; "
                "use the global generators (seeded for each sample), or make it in worker_init_fn",
            )

    def _look_at_shared(self, path: str, value: Any) -> None:
        if isinstance(value, (io.RawIOBase, io.BufferedIOBase, io.TextIOBase, zipfile.ZipFile, tarfile.TarFile)):
            self.say(
                path,
                f"{path} ({kind_of(value)}) is used by all worker threads at once: they move each other's position in it; keep one per "
                "thread (threading.local), or guard it with a lock",
            )
        elif belongs_to_a_loop(value):
            self.say(
                path,
                f"{path} ({kind_of(value)}) is used by all worker threads at once, but belongs to one event loop, and each of them has its "
                "own: samples that have to wait for it fail, or wait until their deadline; keep one per thread (threading.local)",
            )
        elif is_generator(value):
            self.say(
                path,
                f"{path} ({kind_of(value)}) is a random generator that all worker threads draw from at once: which sample gets which "
                'numbers depends on their timing; use the global generators (seeded for each sample), or workers="process"',
            )

    def other_lengths(self, sampler: Any, samples: int | None) -> None:
        if isinstance(sampler, BatchesByLength) and samples is not None and len(sampler.lengths) != samples:
            self.say(
                "lengths",
                f"BatchesByLength has the lengths of {len(sampler.lengths):,} samples, but the data set has {samples:,}: some never "
                "come, or come as long as another one is; of a Subset they are lengths[subset.indices]",
            )

    def advance_epoch(self, sampler: Any) -> None:
        """A DistributedSampler whose epoch is still the one of the last pass is given the next one, unless the user was seen to set it
        himself: then the same again is what he wants. BatchesByLength is meant to count."""
        if isinstance(sampler, BatchesByLength):
            sampler.ready_epoch()
        if not isinstance(sampler, DistributedSampler) or not sampler.shuffle:
            return
        self._epoch_is_set |= self._used_epoch is not None and sampler.epoch != self._used_epoch
        if sampler.epoch == self._used_epoch and not self._epoch_is_set:
            sampler.set_epoch(sampler.epoch + 1)
            self.say(
                "set_epoch",
                "sampler.set_epoch() was not called with another number, so every epoch would have the same order; it was advanced",
            )
        self._used_epoch = sampler.epoch

    def resumes_in(self, sampler: Any, epoch: int, finished: bool) -> None:
        """An epoch that was begun by an earlier run, or that is over: then the next one follows."""
        self._used_epoch = epoch
        if finished and isinstance(sampler, BatchesByLength):
            sampler.end_epoch()

    def nothing_came(self, last: object) -> None:
        """Of an epoch: `last` is the last of its bad samples."""
        self.say("nothing", f"no batch came in this epoch, because all samples were bad; the last one: {last}")

    def first_of_stream(self, stream: int, content: Any) -> None:
        """`content`: the bytes of a batch that a stream delivered. Where two streams begin alike, the next batch tells whether the samples
        are all alike anyway, which is no reason to say anything."""
        if self._alike is None and (stream in self._first_batches or len(self._first_batches) > _WIDTH):
            return
        check_sum = zlib.crc32(content)
        if stream not in self._first_batches:
            if check_sum in self._first_batches.values():
                self._alike = check_sum
            self._first_batches[stream] = check_sum
            return
        alike, self._alike = self._alike, None
        if alike != check_sum:
            self.say(
                "repeats",
                "two workers began with the same samples: it seems that every worker repeats the whole iterable data set; "
                "split it by torch.utils.data.get_worker_info() in __iter__",
            )

    def handed_out(self, sample: Any) -> None:
        """Two samples in one storage: it is the data set's own; and what was written to it since the first one, the loop wrote."""
        if type(sample) is not torch.Tensor or sample.layout is not torch.strided or sample.is_nested or sample.is_inference():
            return
        storage, written = sample.untyped_storage().data_ptr(), sample._version
        shared = storage != 0 and storage == self._last_storage[0] and sample.untyped_storage().nbytes() > sample.nbytes
        if shared and written != self._last_storage[1]:
            self.say("storage", "the data set hands out its own storage: what the loop changes in place is changed in the data set too")
        self._last_storage = storage, written


def kind_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def is_handle(value: Any) -> bool:
    """It has a position, a lock or a connection that a fork does not copy."""
    return isinstance(value, _HANDLES) or any(f"{kind.__module__}.{kind.__qualname__}" in _HANDLES_BY_NAME for kind in type(value).__mro__)


def belongs_to_a_loop(value: Any) -> bool:
    return any(kind.__module__ in _OF_ONE_LOOP for kind in type(value).__mro__)


def is_generator(value: Any) -> bool:
    return isinstance(value, _GENERATORS)


def walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(path, part) for what a data set is made of, as far as attributes, lists and dicts lead; not what is only data."""
    return _walk(value, path, _DEPTH, set())


def _walk(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _LEAVES) or id(value) in seen:
        return
    seen.add(id(value))
    yield path, value
    if not depth or is_handle(value) or isinstance(value, _NOT_ENTERED):
        return
    for name, part in named_parts(value, _WIDTH):
        yield from _walk(part, f"{path}{name}", depth - 1, seen)
