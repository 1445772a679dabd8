"""torchdata.nodes, built as its migration guide builds a map-style loader: sampler, batcher, parallel mapper, prefetcher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.contract import Entry, Epochs, Peer, Setting, Task, forever, one_thread_each, with_warm_malloc
from peers.samples import collate, data_set, whole_batch

PEER = Peer("torchdata", "torchdata nodes", ("torchdata==0.11.0",))


def entries(task: Task) -> list[Entry]:
    if task.concurrency:
        each = Setting(f"{task.concurrency} threads", {"workers": task.concurrency, "method": "thread", "by": "sample"})
        unordered = Setting(f"{task.concurrency} threads, in any order", {**each.options, "in_order": False})
        return [Entry(PEER.title, (each, unordered))]
    threads = tuple(
        Setting(f"{count} threads, a batch each", {"workers": count, "method": "thread", "by": "batch"})
        for count in ((2, 4) if task.workload == "jpeg" else (1, 2, 4))
    )
    inline = Setting("no workers", {"workers": 0, "method": "thread", "by": "batch"})
    processes = Setting("2 processes, a batch each", {"workers": 2, "method": "process", "by": "batch"})
    return [Entry(PEER.title, (inline, *with_warm_malloc(task, threads), processes))]


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    from torch.utils.data import RandomSampler
    from torchdata.nodes import Batcher, Loader, Mapper, ParallelMapper, Prefetcher, SamplerWrapper

    one_thread_each(options)
    source = data_set(task)

    def epochs() -> Any:
        node: Any = SamplerWrapper(RandomSampler(source))
        given = {"num_workers": options["workers"], "method": options["method"], "in_order": options.get("in_order", True)}
        if options["by"] == "sample":
            node = ParallelMapper(node, map_fn=source.__getitem__, **given)
            node = Batcher(node, task.batch_size, drop_last=True)
            node = Mapper(node, collate(task))
        elif options["workers"]:
            node = Batcher(node, task.batch_size, drop_last=True)
            if options["method"] == "process":
                given["multiprocessing_context"] = "fork"
            node = ParallelMapper(node, map_fn=whole_batch(task, source), prebatch=None, **given)
        else:
            node = Mapper(Batcher(node, task.batch_size, drop_last=True), whole_batch(task, source))
        loader = Loader(Prefetcher(node, prefetch_factor=4) if options["workers"] else node)
        return forever(lambda: loader)

    return epochs
