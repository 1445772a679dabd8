"""Ray Data: blocks in its object store, mapped by tasks on two cores, read with iter_torch_batches.

Its full shuffle is a job of its own. What is measured draws the order of stored blocks, as its documentation recommends for speed; blocks
that are made on the way come as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.contract import Entry, Epochs, Peer, Setting, Task
from peers.samples import as_numpy, data_set, pad_numpy

PEER = Peer("ray", "Ray Data", ("ray[data]==2.60.0", "pydantic"))


def entries(task: Task) -> list[Entry]:
    if task.concurrency:
        return [Entry(PEER.title, (setting(f"async actor, {task.concurrency} reads at a time", {"prefetch": 4}),))]
    return [Entry(PEER.title, (setting("2 cores, prefetch 1", {"prefetch": 1}),))]


def setting(name: str, options: dict[str, Any]) -> Setting:
    """Its tasks run ahead of whoever takes the batches, most of an epoch where the object store has room, however deep the prefetch."""
    return Setting(name, options, looks_s=6.0, whole_epochs=True)


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    import ray

    source = data_set(task)
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=3, _node_ip_address="127.0.0.1", **quiet)
    ray.data.DataContext.get_current().enable_progress_bars = False
    return lambda: run(ray, task, source, options)


def run(ray: Any, task: Task, source: Any, options: dict[str, Any]) -> Any:
    data = build(ray, task, source, options)
    made = task.workload in ("images", "jpeg", "slow-reads")  # drawing the order of such blocks would make all of them first
    given: dict[str, Any] = {"batch_size": task.batch_size, "prefetch_batches": options["prefetch"], "drop_last": True}
    while True:
        epoch = data if made else data.randomize_block_order()
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
    indices = ray.data.range(task.samples, override_num_blocks=max(16, task.samples // 1024))
    if task.concurrency:
        return indices.map_batches(Reads, fn_constructor_args=(task,), batch_size=task.batch_size, concurrency=1)
    return indices.map_batches(Loads, fn_constructor_args=(task,), batch_size=task.batch_size, concurrency=2)


class Loads:
    """An actor that has the data set, as its documentation recommends where setting it up is dear."""

    def __init__(self, task: Task) -> None:
        self.samples = data_set(task)

    def __call__(self, batch: Any) -> Any:
        import numpy as np

        x, y = zip(*(as_numpy(self.samples[int(index)]) for index in batch["id"]), strict=True)
        return {"x": np.stack(x), "y": np.stack(y)}


class Reads:
    """An async actor: reads of whichever batches it is given, so many at a time."""

    def __init__(self, task: Task) -> None:
        import asyncio

        self.source = data_set(task).source
        self.free = asyncio.Semaphore(task.concurrency)

    async def __call__(self, batch: Any) -> Any:
        import asyncio

        import numpy as np

        from workloads import read_slowly_async

        async def read(index: int) -> Any:
            async with self.free:
                return await read_slowly_async(self.source, index)

        found = await asyncio.gather(*(read(int(index)) for index in batch["id"]))
        yield {"x": np.stack([each.numpy() for each in found])}


def block_of(x: Any, y: Any) -> Any:
    import pyarrow
    from ray.data.extensions import ArrowTensorArray

    return pyarrow.table({"x": ArrowTensorArray.from_numpy(x), "y": y})
