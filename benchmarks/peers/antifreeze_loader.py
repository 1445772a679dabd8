"""Ours, from this source tree, in torch's environment. Settings that this version does not have yet are no rows."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from torch.utils.data import TensorDataset

from peers.contract import Entry, Epochs, Peer, Setting, Task, forever
from workloads import WORKLOADS, SlowReadsAsync, rows

PEER = Peer("torch", "antifreeze", ())


def entries(task: Task) -> list[Entry]:
    auto = Setting("auto", {"num_workers": "auto"})
    if task.concurrency:
        return [*one_each(task, (auto, *waiting(task.concurrency))), Entry("antifreeze, 2 workers", (workers(2),))]
    return one_each(task, (workers(2), auto, Setting("no workers", {"num_workers": 0})))


def workers(count: int) -> Setting:
    return Setting(f"{count} workers", {"num_workers": count, "persistent_workers": True})


def waiting(concurrency: int) -> list[Setting]:
    """So many reads at a time: as processes, and as threads and in an async data set where there are such."""
    offered = inspect.signature(ours().__init__).parameters
    found = [workers(concurrency)]
    if "workers" in offered:
        threads = {"num_workers": concurrency, "workers": "thread", "persistent_workers": True}
        found.append(Setting(f"{concurrency} threads", threads))
    if "concurrency" in offered:
        for processes in (1, 2):
            given = {"num_workers": processes, "concurrency": concurrency // processes, "persistent_workers": True, "async": True}
            found.append(Setting(f"async, {processes} × {concurrency // processes}", given))
    return found


def one_each(task: Task, settings: tuple[Setting, ...]) -> list[Entry]:
    """A row for every setting; where the rows may be an array or answer to `__getitems__`, the better of the two."""
    kinds = ("TensorDataset", "__getitems__") if task.name == "rows-batch" else ("",)
    return [
        Entry(
            f"antifreeze, {setting.name}",
            tuple(Setting(" ".join(filter(None, (setting.name, kind))), {**setting.options, "kind": kind}) for kind in kinds),
        )
        for setting in settings
    ]


def ours() -> Any:
    from antifreeze import DataLoader

    return DataLoader


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    options = dict(options)
    arguments = WORKLOADS[task.workload].loader_arguments(task.samples) | {"batch_size": task.batch_size, "drop_last": True}
    if options.pop("kind", "") == "TensorDataset":
        arguments |= {"dataset": TensorDataset(*rows(task.samples)), "collate_fn": None}
    if options.pop("async", False):
        arguments |= {"dataset": SlowReadsAsync(task.samples)}
    loader_class = ours()

    def epochs() -> Any:
        loader = loader_class(**arguments, **options)
        try:
            yield from forever(lambda: loader)
        finally:
            loader.close()

    return epochs
