"""One measurement, in a process of its own: `measure.py '{"workload": "rows", ...}'` prints one JSON object.

    loader.py                        this process                       workers
       | start, own session             |
       |------------------------------->| data set built, not timed
       |      "ready"                   |
       |<-------------------------------|
       |  (samples PSS, if asked)       | first epoch: start, first batch |
       |                                | next epochs: steady rate        |  until min_steady_s
       |      result as JSON            | close                           |
       |<-------------------------------|

1. The class is imported and the data set is built before the clock starts.
2. "start" is construction and `iter()`; "first batch" is both of these and the first `next()`.
3. "second epoch" is `iter()` and the first `next()` of the second epoch over the same loader.
4. The rate is that of the epochs after the first, each from its first tenth to its last batch: no start, no end.
5. CPU and page faults are those of everything from construction to close, workers and their start included, per sample.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from process_tree import own_usage
from workloads import WORKLOADS, FloatImages

CLASSES = {"torch": "torch.utils.data:DataLoader", "ours": "antifreeze:DataLoader"}


@dataclass(frozen=True)
class Request:
    workload: str
    loader: str
    """A name in CLASSES, "module:Class", or "copy" for the limit."""
    workers: int
    quick: bool = False
    min_steady_s: float = 1.0
    persistent: bool = False


@dataclass(frozen=True)
class Result:
    samples: int
    samples_per_s: float
    bytes_per_s: float
    start_s: float
    first_batch_s: float
    second_epoch_s: float
    close_s: float
    cpu_s_per_1000: float
    faults_per_sample: float
    digest: int
    """Of the first batch: loaders that agree have the same."""


@dataclass(frozen=True)
class Epoch:
    """Seconds since `iter()` was called, for one pass over the loader."""

    started_s: float
    first_batch_s: float
    batches: int
    steady_batches: int
    steady_s: float
    first_batch: tuple[int, int]
    """Digest and bytes."""


def measure(request: Request) -> Result:
    workload = WORKLOADS[request.workload]
    samples = workload.quick_samples if request.quick else workload.samples
    arguments = workload.loader_arguments(samples)
    if request.workers:
        arguments |= {"num_workers": request.workers, "persistent_workers": request.persistent}
    loader_class = load_class(request.loader)
    torch.manual_seed(0)
    gc.collect()  # the first full collection, due to what was imported, would fall into somebody's first batch
    gc.freeze()  # and later ones, 80 ms each, into one steady second or the other
    print("ready", flush=True)

    before, started_s = own_usage(), time.perf_counter()
    loader = loader_class(**arguments)
    built_s = time.perf_counter() - started_s
    epochs = [run_epoch(loader, digest=True)]
    while len(epochs) < 2 or sum(epoch.steady_s for epoch in epochs[1:]) < request.min_steady_s:
        epochs.append(run_epoch(loader))
    closing_s = time.perf_counter()
    if hasattr(loader, "close"):
        loader.close()
    del loader
    close_s = time.perf_counter() - closing_s
    used = own_usage() - before

    delivered = len(epochs) * samples
    digest, batch_bytes = epochs[0].first_batch
    batches_per_s = sum(epoch.steady_batches for epoch in epochs[1:]) / sum(epoch.steady_s for epoch in epochs[1:])
    return Result(
        samples=delivered,
        samples_per_s=batches_per_s * workload.batch_size,
        bytes_per_s=batches_per_s * batch_bytes,
        start_s=built_s + epochs[0].started_s,
        first_batch_s=built_s + epochs[0].first_batch_s,
        second_epoch_s=epochs[1].first_batch_s,
        close_s=close_s,
        cpu_s_per_1000=used.cpu_s / delivered * 1000,
        faults_per_sample=used.faults / delivered,
        digest=digest,
    )


def run_epoch(loader: Any, digest: bool = False) -> Epoch:
    """As a user's loop does, the batch of before is held until the next one is here."""
    mark = max(1, len(loader) // 10)
    iter_s = time.perf_counter()
    batches = iter(loader)
    started_s = time.perf_counter() - iter_s
    batch = next(batches)
    first_batch_s = time.perf_counter() - iter_s
    first_batch = digest_of(batch) if digest else (0, 0)
    count, marked_s, last_s = 1, time.perf_counter(), 0.0
    for batch in batches:  # noqa: B007 - held, see above
        last_s = time.perf_counter()
        count += 1
        if count == mark:
            marked_s = last_s
    return Epoch(started_s, first_batch_s, count, count - mark, last_s - marked_s, first_batch)


def measure_copy(request: Request) -> Result:
    """The limit: one thread that copies the samples of a batch into one warm buffer."""
    workload = WORKLOADS[request.workload]
    data_set = FloatImages(workload.quick_samples if request.quick else workload.samples)
    buffer = torch.zeros(workload.batch_size, *data_set.source.shape[1:])
    torch.set_num_threads(1)
    print("ready", flush=True)
    before, started_s, samples = own_usage(), time.perf_counter(), 0
    while time.perf_counter() - started_s < request.min_steady_s:
        order = torch.randperm(FloatImages.SOURCES).tolist()
        for position, index in enumerate(order):
            buffer[position % workload.batch_size].copy_(data_set.source[index])
        samples += len(order)
    taken_s, used = time.perf_counter() - started_s, own_usage() - before
    rate = samples / taken_s
    sample_bytes = buffer[0].numel() * buffer.element_size()
    return Result(samples, rate, rate * sample_bytes, 0, 0, 0, 0, used.cpu_s / samples * 1000, used.faults / samples, 0)


def load_class(name: str) -> Any:
    module, _, attribute = CLASSES.get(name, name).partition(":")
    return getattr(importlib.import_module(module), attribute)


def digest_of(batch: Any) -> tuple[int, int]:
    """A checksum over the leaves in order, and their bytes; strings count for the checksum only."""
    checksum, total_bytes = 1, 0
    for leaf in leaves(batch):
        if isinstance(leaf, torch.Tensor):
            flat = leaf.contiguous().view(-1).view(torch.uint8).numpy()
            checksum, total_bytes = zlib.adler32(memoryview(flat), checksum), total_bytes + flat.nbytes
        else:
            checksum = zlib.adler32(repr(leaf).encode(), checksum)
    return checksum, total_bytes


def leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, dict):
        for key in sorted(batch):
            yield from leaves(batch[key])
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from leaves(part)
    else:
        yield batch


def main() -> None:
    request = Request(**json.loads(sys.argv[1]))
    result = measure_copy(request) if request.loader == "copy" else measure(request)
    print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
