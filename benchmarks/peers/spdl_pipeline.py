"""SPDL's Pipeline, in threads as its guide recommends: indices in, samples decoded concurrently, aggregated, collated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.contract import Entry, Epochs, Peer, Setting, Task, one_thread_each, with_warm_malloc
from peers.samples import batches_of_indices, collate, data_set, whole_batch

PEER = Peer("spdl", "SPDL", ("spdl==0.8.0",))


def entries(task: Task) -> list[Entry]:
    if task.concurrency:
        each = Setting(f"{task.concurrency} threads", {"threads": task.concurrency, "by": "sample"})
        asynchronous = Setting(f"async, {task.concurrency} at a time", {"threads": task.concurrency, "by": "coroutine"})
        return [Entry(PEER.title, (each, asynchronous))]
    batches = tuple(Setting(f"{count} threads, a batch each", {"threads": count, "by": "batch"}) for count in counts(task))
    return [Entry(PEER.title, with_warm_malloc(task, batches))]


def counts(task: Task) -> tuple[int, ...]:
    return (2, 4) if task.workload == "jpeg" else (1, 2, 4)


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    import torch
    from spdl.pipeline import PipelineBuilder

    from workloads import read_slowly_async

    one_thread_each(options)
    source = data_set(task)
    threads = options["threads"]

    async def read(index: int) -> Any:
        return await read_slowly_async(source.source, index)

    def pipeline() -> Any:
        builder = PipelineBuilder()
        if options["by"] == "batch":
            builder.add_source(batches_of_indices(task)).pipe(whole_batch(task, source), concurrency=threads)
        else:
            step = source.__getitem__ if options["by"] == "sample" else read
            builder.add_source(iter(torch.randperm(task.samples).tolist())).pipe(step, concurrency=threads)
            builder.aggregate(task.batch_size, drop_last=True).pipe(collate(task))
        return builder.add_sink(4).build(num_threads=threads + 1 if options["by"] == "sample" else threads)

    def one_epoch() -> Iterator[Any]:
        built = pipeline()
        with built.auto_stop():
            yield from built

    def epochs() -> Any:
        while True:
            yield one_epoch()

    return epochs
