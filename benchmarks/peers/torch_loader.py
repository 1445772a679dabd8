"""torch's DataLoader: with 2 workers it is the measure of all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.contract import WARM_MALLOC, Entry, Epochs, Peer, Setting, Task, forever
from workloads import WORKLOADS

PEER = Peer("torch", "torch DataLoader", ())
BASE = "torch DataLoader, 2 workers"
BEST = "torch DataLoader, best"
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}


def entries(task: Task) -> list[Entry]:
    base = Entry(BASE, (measure_of_all(task),))
    if task.concurrency:
        return [base, Entry(BEST, (workers(task.concurrency), workers(task.concurrency, prefetch_factor=1)))]
    without = Setting("no workers", {"num_workers": 0})
    huge = Setting("no workers, huge pages", {"num_workers": 0}, HUGE_PAGES)
    warm = Setting("no workers, malloc kept warm", {"num_workers": 0}, WARM_MALLOC)
    deep = workers(2, prefetch_factor=8)
    deep_warm = Setting("2 workers, malloc kept warm", workers(2).options, WARM_MALLOC)
    large = (huge, warm, deep_warm) if task.workload in ("images", "jpeg") else ()
    return [base, Entry(BEST, (without, *large, workers(1), deep))]


def measure_of_all(task: Task) -> Setting:
    """2 workers; rows one at a time also where others may take them as an array, as in the issue's table."""
    if task.name != "rows-batch":
        return workers(2)
    return Setting("2 workers, one row at a time", {**workers(2).options, "workload": "rows"})


def workers(count: int, prefetch_factor: int = 2) -> Setting:
    name = f"{count} worker{'s' * (count > 1)}" + (f", prefetch_factor {prefetch_factor}" if prefetch_factor != 2 else "")
    return Setting(name, {"num_workers": count, "persistent_workers": True, "prefetch_factor": prefetch_factor})


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    from torch.utils.data import DataLoader

    options = dict(options)
    workload = WORKLOADS[options.pop("workload", task.workload)]
    arguments = workload.loader_arguments(task.samples) | {"batch_size": task.batch_size, "drop_last": True}

    def epochs() -> Any:
        loader = DataLoader(**arguments, **options)
        return forever(lambda: loader)

    return epochs
