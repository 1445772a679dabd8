"""DALI on the CPU: samples from Python through external_source, or its own JPEG decoder, crop and normalization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.contract import Entry, Epochs, Peer, Refusal, Setting, Task
from peers.samples import as_numpy, data_set

PEER = Peer("dali", "DALI (CPU)", ("nvidia-dali-cuda130==2.4.0",), gives="views of its own buffers")


def entries(task: Task) -> list[Entry] | Refusal:
    if task.concurrency > 64:
        return Refusal("one process per read that waits: 256 processes beside each other are not what it is made for")
    if task.concurrency:
        return [Entry(PEER.title, (Setting(f"{task.concurrency} processes", {"threads": 2, "processes": task.concurrency}),))]
    inline = [Setting(f"external_source, {count} threads", {"threads": count}) for count in (1, 2)[task.workload == "jpeg" :]]
    deep = Setting("external_source, 2 threads, no copy", {"threads": 2, "no_copy": True})
    processes = Setting("external_source, 2 processes", {"threads": 2, "processes": 2})
    if task.workload == "jpeg":
        own = tuple(Setting(f"own decoder, {count} threads", {"threads": count, "own": True}) for count in (2, 4))
        return [Entry(PEER.title, (*inline, processes)), Entry("DALI (CPU), own decoder", own)]
    if task.workload == "rows-batch":
        return [Entry(PEER.title, (*inline, deep))]
    return [Entry(PEER.title, (*inline, deep, processes))]


class Samples:
    """A callable source: one sample for a SampleInfo, in random order; with a batch at a time where rows are an array."""

    def __init__(self, task: Task) -> None:
        import numpy as np

        self.task, self.samples = task, data_set(task)
        self.order = np.random.default_rng(0).permutation(task.samples).tolist()

    def __call__(self, info: Any) -> Any:
        sample = as_numpy(self.samples[self.order[info.idx_in_epoch % self.task.samples]])
        return sample if isinstance(sample, tuple) else (sample,)


class Batches:
    def __init__(self, task: Task) -> None:
        import numpy as np

        rows = data_set(task)
        self.task, self.x, self.y = task, rows.x.numpy(), rows.y.numpy()
        self.order = np.random.default_rng(0).permutation(task.samples)

    def __call__(self, info: Any) -> Any:
        first = info.iteration * self.task.batch_size % (self.task.samples - self.task.batch_size)
        chosen = self.order[first : first + self.task.batch_size]
        return self.x[chosen], self.y[chosen]


class Files:
    """JPEG files, for its own decoder."""

    def __init__(self, task: Task) -> None:
        import numpy as np

        self.files = [np.frombuffer(file, np.uint8) for file in data_set(task).files]

    def __call__(self, info: Any) -> Any:
        import numpy as np

        return self.files[info.idx_in_epoch % len(self.files)], np.array(info.idx_in_epoch % 1000)


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    whole = task.workload == "rows-batch"
    source = Files(task) if options.get("own") else Batches(task) if whole else Samples(task)
    outputs = 1 if task.workload in ("tokens", "slow-reads") else 2
    kinds = {
        "tokens": [types.INT64],
        "slow-reads": [types.UINT8],
        "jpeg": [types.UINT8 if options.get("own") else types.FLOAT, types.INT64],
    }
    given: dict[str, Any] = {"num_outputs": outputs, "batch": whole, "dtype": kinds.get(task.workload, [types.FLOAT, types.INT64])}
    if whole:
        given["batch_info"] = True
    if options.get("no_copy"):
        given["no_copy"] = True
    workers: dict[str, Any] = {}
    if options.get("processes"):
        given |= {"parallel": True, "prefetch_queue_depth": 2}
        # forked after torch computed with threads (the pictures), its workers hang in OpenMP
        workers = {"py_num_workers": options["processes"], "py_start_method": "spawn" if task.workload == "jpeg" else "fork"}

    @pipeline_def(batch_size=task.batch_size, num_threads=options["threads"], device_id=None, prefetch_queue_depth=2, **workers)
    def pipeline() -> Any:
        found = fn.external_source(source=source, **given)
        if task.workload == "tokens":
            return fn.pad(found[0], axes=(0,), fill_value=0), fn.shapes(found[0])
        if not options.get("own"):
            return tuple(found)
        area, aspect = [0.08, 1.0], [0.75, 4 / 3]
        image = fn.decoders.image_random_crop(found[0], random_area=area, random_aspect_ratio=aspect, device="cpu")
        image = fn.resize(image, resize_x=224, resize_y=224)
        image = fn.crop_mirror_normalize(image, mirror=fn.random.coin_flip(), mean=[0.0], std=[255.0], dtype=types.FLOAT)
        return image, found[1]

    def epochs() -> Any:
        built = pipeline()
        built.build()
        if options.get("processes"):
            built.start_py_workers()
        yield one_epoch(built, np)

    return epochs


def one_epoch(built: Any, np: Any) -> Any:
    """As arrays over DALI's own memory, which it uses again."""
    while True:
        yield tuple(np.asarray(part.as_tensor()) for part in built.run())
