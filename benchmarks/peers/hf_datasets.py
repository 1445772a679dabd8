"""HF datasets: an Arrow table on disk, in torch format, in torch's DataLoader, which asks it for whole batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.contract import STORED_ORDER, Entry, Epochs, Peer, Setting, Task, forever
from peers.samples import collate, from_record, records

PEER = Peer("huggingface", "HF datasets", ("datasets==5.2.0",))


def entries(task: Task) -> list[Entry]:
    counts = (task.concurrency,) if task.concurrency else (0, 2)
    settings = [Setting(f"{count} workers" if count else "no workers", {"workers": count}) for count in counts]
    if task.name == "rows":
        settings.insert(0, Setting("one row at a time, no workers", {"workers": 0, "single": True}))
    if task.workload not in ("rows", "rows-batch", "images"):
        return [Entry(PEER.title, tuple(settings))]
    streamed = Setting("to_iterable_dataset, shuffle 1,000, no workers", {"workers": 0, "stream": True})
    stored = tuple(Setting(f"{kind} format, Dataset.iter", {"iter": kind}) for kind in ("numpy", "torch"))
    return [Entry(PEER.title, (*settings, streamed)), Entry(f"{PEER.title}, {STORED_ORDER}", stored)]


def prepare(task: Task, folder: Path) -> None:
    from datasets import Array3D, Dataset, Features, List, Value

    features: dict[str, Any] = {
        "rows": {"x": List(Value("float32"), length=16), "y": Value("int64")},
        "rows-batch": {"x": List(Value("float32"), length=16), "y": Value("int64")},
        "images": {"x": Array3D((3, 224, 224), "float32"), "y": Value("int64")},
        "jpeg": {"jpg": Value("binary"), "y": Value("int64")},
        "slow-reads": {"index": Value("int64")},
        "tokens": {"x": List(Value("int64"))},
    }
    Dataset.from_generator(lambda: records(task), features=Features(features[task.workload]), cache_dir=str(folder / "cache")).save_to_disk(
        str(folder / "table")
    )


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    from datasets import load_from_disk
    from torch.utils.data import DataLoader, RandomSampler

    table = load_from_disk(str(folder / "table"))
    if options.get("iter"):
        return lambda: iter_batches(table.with_format(options["iter"]), task)
    if options.get("stream"):
        stream = table.with_format("torch").to_iterable_dataset(num_shards=8).shuffle(buffer_size=1000)
        return lambda: forever(lambda: DataLoader(stream, batch_size=task.batch_size, drop_last=True))
    make = from_record(task)
    if task.workload in ("jpeg", "slow-reads", "tokens"):
        kept = table.with_format("numpy") if task.workload == "tokens" else table

        def transform(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
            names = list(columns)
            return {"sample": [make(dict(zip(names, values, strict=True))) for values in zip(*columns.values(), strict=True)]}

        data = table.with_transform(transform) if kept is table else Numbers(kept)
        joined = collate(task)
        given = {"collate_fn": (lambda got: joined([each["sample"] for each in got])) if kept is table else joined}
    else:
        data, given = table.with_format("torch"), {}

    def epochs() -> Any:
        workers = {"num_workers": options["workers"], "persistent_workers": True} if options["workers"] else {"num_workers": 0}
        sampler = RandomSampler(data, num_samples=task.samples, replacement=len(data) < task.samples)
        source = data if not options.get("single") else OneByOne(data)
        loader = DataLoader(source, batch_size=task.batch_size, sampler=sampler, drop_last=True, **given, **workers)
        return forever(lambda: loader)

    return epochs


class Numbers:
    """Tokens, a list of tensors for a batch of indices."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        import torch

        return [torch.as_tensor(ids) for ids in self.table[indices]["x"]]


class OneByOne:
    """The table without `__getitems__`, so that every row is asked for by itself."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        row = self.table[index]
        return row["x"], row["y"]


def iter_batches(table: Any, task: Task) -> Any:
    """Whole stored batches, not shuffled: the fastest way the table can be read."""
    while True:
        yield table.iter(batch_size=task.batch_size, drop_last_batch=True)
