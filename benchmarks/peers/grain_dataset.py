"""Grain's MapDataset: source, shuffle, map, batch; then its read threads, or its worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.contract import Entry, Epochs, Peer, Setting, Task, one_thread_each, with_warm_malloc
from peers.samples import as_numpy, data_set, pad_numpy

PEER = Peer("grain", "Grain", ("grain==0.2.18",), gives="numpy arrays")


def entries(task: Task) -> list[Entry]:
    if task.concurrency:
        return [Entry(PEER.title, tuple(Setting(f"{n} threads", {"threads": n, "buffer": n * 2}) for n in (task.concurrency,)))]
    threads = tuple(
        Setting(f"{n} threads, a batch each", {"threads": n, "buffer": 2 * n, "first": True})
        for n in ((2, 4) if task.workload == "jpeg" else (1, 2, 4))
    )
    processes = Setting("2 processes", {"threads": 1, "buffer": 2, "first": True, "processes": 2})
    inline = Setting("no threads", {"threads": 0, "buffer": 0, "first": True})
    return [Entry(PEER.title, (inline, *with_warm_malloc(task, threads), processes))]


class Source:
    """A data source as Grain wants it: random access, arrays."""

    def __init__(self, task: Task) -> None:
        self.samples = data_set(task)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        return as_numpy(self.samples[int(index)])


class BatchSource:
    """Rows of a batch by one index into the arrays; the order is drawn anew for every epoch."""

    def __init__(self, task: Task) -> None:
        import numpy as np

        self.rows, self.task = data_set(task), task
        self.x, self.y = self.rows.x.numpy(), self.rows.y.numpy()
        self.order = np.random.default_rng(0).permutation(task.samples)

    def __len__(self) -> int:
        return self.task.samples // self.task.batch_size

    def __getitem__(self, index: Any) -> Any:
        first = int(index) * self.task.batch_size
        chosen = self.order[first : first + self.task.batch_size]
        return self.x[chosen], self.y[chosen]


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    import grain

    one_thread_each(options)
    arrays = task.workload == "rows-batch"
    source = BatchSource(task) if arrays else Source(task)
    batch = {"batch_size": task.batch_size, "drop_remainder": True}
    if task.workload == "tokens":
        batch["batch_fn"] = pad_numpy

    def epochs() -> Any:
        chain = grain.MapDataset.source(source).shuffle(seed=1).repeat()
        if not arrays and options.get("first"):
            chain = chain.batch(**batch)
        chain = chain.to_iter_dataset(grain.ReadOptions(num_threads=options["threads"], prefetch_buffer_size=options["buffer"]))
        if not arrays and not options.get("first"):
            chain = chain.batch(**batch)
        if options.get("processes"):
            chain = chain.mp_prefetch(grain.MultiprocessingOptions(num_workers=options["processes"], per_worker_buffer_size=2))
        yield iter(chain)

    return epochs
