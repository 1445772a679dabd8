"""Ray Data: blocks in its object store, mapped by tasks on two cores, read with iter_torch_batches.

Its full shuffle is a job of its own; what is measured is the order of the blocks, as its documentation recommends for speed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.contract import Entry, Epochs, Peer, Refusal, Setting, Task
from peers.samples import as_numpy, data_set, pad_numpy

PEER = Peer("ray", "Ray Data", ("ray[data]==2.60.0", "pydantic"))


def entries(task: Task) -> list[Entry] | Refusal:
    if task.concurrency > 64:
        return Refusal("one process per read that waits: 256 processes beside each other are not what it is made for")
    if task.concurrency:
        return [Entry(PEER.title, (Setting(f"{task.concurrency} tasks at a time", {"cpus": 2, "each": 2 / task.concurrency, "prefetch": 4}),))]
    depths = tuple(Setting(f"2 cores, prefetch {depth}", {"cpus": 2, "prefetch": depth}) for depth in (1, 4))
    return [Entry(PEER.title, depths)]


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    import ray

    source = data_set(task)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", configure_logging=True)
    ray.data.DataContext.get_current().enable_progress_bars = False
    return lambda: run(ray, task, source, options)


def run(ray: Any, task: Task, source: Any, options: dict[str, Any]) -> Any:
    data = build(ray, task, source, options)
    given: dict[str, Any] = {"batch_size": task.batch_size, "prefetch_batches": options["prefetch"], "drop_last": True}
    while True:
        epoch = data.randomize_block_order()
        if task.workload == "tokens":
            yield (pad_numpy(batch["x"]) for batch in epoch.iter_batches(batch_format="numpy", **given))
        else:
            yield ({key: batch[key] for key in ("x", "y") if key in batch} for batch in epoch.iter_torch_batches(**given))


def build(ray: Any, task: Task, source: Any, options: dict[str, Any]) -> Any:
    """Rows and tokens lie in the object store; images, JPEGs and slow reads are made by the tasks."""
    import numpy as np

    if task.workload in ("rows", "rows-batch"):
        import pandas  # noqa: F401 - what ray's blocks of arrays need

        blocks = 16
        parts = zip(np.array_split(source.x.numpy(), blocks), np.array_split(source.y.numpy(), blocks), strict=True)
        return ray.data.from_blocks([block_of(x, y) for x, y in parts]).materialize()
    if task.workload == "tokens":
        return ray.data.from_items([{"x": source[index].numpy()} for index in range(task.samples)], override_num_blocks=16).materialize()
    kept = ray.put(source)

    def load(batch: Any) -> Any:
        samples = [as_numpy(ray.get(kept)[int(index)]) for index in batch["id"]]
        if isinstance(samples[0], tuple):
            return {"x": np.stack([each[0] for each in samples]), "y": np.stack([each[1] for each in samples])}
        return {"x": np.stack(samples)}

    tasks = {"num_cpus": options["each"]} if "each" in options else {}
    blocks = task.samples // task.batch_size
    return ray.data.range(task.samples, override_num_blocks=blocks).map_batches(load, batch_size=task.batch_size, **tasks)


def block_of(x: Any, y: Any) -> Any:
    import pyarrow
    from ray.data.extensions import ArrowTensorArray

    return pyarrow.table({"x": ArrowTensorArray.from_numpy(x), "y": y})
