"""WebDataset: tar shards, shuffled and batched inside the workers of its WebLoader, as its documentation recommends."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from peers.contract import Entry, Epochs, Peer, Refusal, Setting, Task, forever
from peers.samples import collate, from_record, records

PEER = Peer("webdataset", "WebDataset", ("webdataset==1.0.2",))
SHARDS = 8


def entries(task: Task) -> list[Entry] | Refusal:
    if task.name == "rows-batch":
        return Refusal("reads tar files one member after the other: no rows by index")
    counts = (task.concurrency,) if task.concurrency else (0, 2)
    return [Entry(PEER.title, tuple(Setting(f"{count} workers" if count else "no workers", {"workers": count}) for count in counts))]


def shards(task: Task) -> int:
    """Every worker reads shards of its own."""
    return max(SHARDS, task.concurrency)


def prepare(task: Task, folder: Path) -> None:
    import webdataset

    writers = [webdataset.TarWriter(str(folder / f"{number:06}.tar")) for number in range(256 if task.concurrency else SHARDS)]
    for number, record in enumerate(records(task)):
        stored = {"__key__": f"{number:08}"}
        for name, value in record.items():
            stored |= {"x": {"x.npy": value}, "jpg": {"jpg": value}, "y": {"y.cls": value}, "index": {"index.cls": value}}[name]
        writers[number % len(writers)].write(stored)
    for writer in writers:
        writer.close()


def record_of(stored: dict[str, Any]) -> dict[str, Any]:
    """From the bytes of a member: an array is read as numpy wrote it, a number as text."""
    found: dict[str, Any] = {}
    for name, data in stored.items():
        if name == "x.npy":
            found["x"] = np.load(io.BytesIO(data))
        elif name.endswith(".cls"):
            found[name.removesuffix(".cls")] = int(data)
        elif name == "jpg":
            found["jpg"] = data
    return found


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    import webdataset

    urls = sorted(str(path) for path in folder.glob("*.tar"))
    make = from_record(task)

    def epochs() -> Any:
        data = (
            webdataset.WebDataset(urls, resampled=True, shardshuffle=False)
            .shuffle(1000 if task.workload in ("rows", "tokens", "slow-reads") else 64)
            .map(lambda stored: make(record_of(stored)))
            .batched(task.batch_size, collation_fn=collate(task), partial=False)
        )
        workers = {"num_workers": options["workers"], "persistent_workers": True} if options["workers"] else {"num_workers": 0}
        loader = webdataset.WebLoader(data, batch_size=None, **workers)
        return forever(lambda: loader)

    return epochs
