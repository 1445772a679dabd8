"""Ours, from this source tree, in torch's environment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import TensorDataset

from peers.contract import A_CALL_A_ROW, MORE_READS, TUNES_ITSELF_S, Entry, Epochs, Peer, Setting, Task, forever
from workloads import WORKLOADS, Rows, SlowReadsAsync, rows

OURS = "antifreeze"
PEER = Peer("torch", OURS, ())


def entries(task: Task) -> list[Entry]:
    if task.concurrency:
        return waiting(task.concurrency)
    auto = Setting("auto", {"num_workers": "auto"}, warm_s=TUNES_ITSELF_S)
    shared = (Setting("2 threads", {**workers(2).options, "workers": "thread"}),) if task.workload == "images" else ()
    return one_each(task, (workers(2), auto, Setting("no workers", {"num_workers": 0}), *shared))


def workers(count: int) -> Setting:
    return Setting(f"{count} workers", {"num_workers": count, "persistent_workers": True})


def waiting(concurrency: int) -> list[Entry]:
    """So many reads at a time: as processes, as threads, in an async data set; and with nothing chosen."""
    threads = Setting(f"{concurrency} threads", {**workers(concurrency).options, "workers": "thread"})
    either = Setting('auto, workers="auto"', {"num_workers": "auto", "workers": "auto"}, warm_s=TUNES_ITSELF_S)
    asynchronous = (
        Setting("no workers", {"num_workers": 0, "concurrency": concurrency, "async": True}),
        *(
            Setting(f"{count} × {concurrency // count}", {**workers(count).options, "concurrency": concurrency // count, "async": True})
            for count in (1, 2)
        ),
        Setting(f"1 thread × {concurrency}", {**workers(1).options, "workers": "thread", "concurrency": concurrency, "async": True}),
    )
    tuned = Setting(f"auto × {concurrency}", {"num_workers": "auto", "concurrency": concurrency, "async": True}, warm_s=TUNES_ITSELF_S)
    return [
        Entry(f"{OURS}, processes", (workers(concurrency),)),
        Entry(f"{OURS}, threads", (threads,)),
        Entry(f"{OURS}, async", asynchronous),
        Entry(f"{OURS}, auto", (either,)),
        Entry(f"{OURS}, async, auto, {MORE_READS}", (tuned,)),
    ]


def one_each(task: Task, settings: tuple[Setting, ...]) -> list[Entry]:
    """A row for every setting; where the rows may be an array or answer to `__getitems__`, the better of the two. Where they come by
    `__getitem__`, a row of its own for a data set that can be seen through, and for one that cannot."""
    if task.name == "rows":
        return [
            Entry(f"{OURS}, {setting.name}{named}", (replace(setting, options={**setting.options, "kind": kind}),))
            for setting in settings
            for kind, named in (("picked", ""), ("", f", {A_CALL_A_ROW}"))
        ]
    kinds = ("TensorDataset", "__getitems__") if task.name == "rows-batch" else ("",)
    return [
        Entry(
            f"{OURS}, {setting.name}",
            tuple(
                replace(setting, name=" ".join(filter(None, (setting.name, kind))), options={**setting.options, "kind": kind})
                for kind in kinds
            ),
        )
        for setting in settings
    ]


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    from antifreeze import DataLoader

    options = dict(options)
    arguments = WORKLOADS[task.workload].loader_arguments(task.samples) | {"batch_size": task.batch_size, "drop_last": True}
    kind = options.pop("kind", "")
    if kind == "TensorDataset":
        arguments |= {"dataset": TensorDataset(*rows(task.samples)), "collate_fn": None}
    if kind == "picked":
        arguments |= {"dataset": Rows(task.samples)}
    if options.pop("async", False):
        arguments |= {"dataset": SlowReadsAsync(task.samples)}
    return lambda: epochs_of(DataLoader, arguments | options)


def epochs_of(loader_class: Any, arguments: dict[str, Any]) -> Any:
    loader = loader_class(**arguments)
    try:
        yield from forever(lambda: loader)
    finally:
        loader.close()
