"""LitData: optimized chunks on disk, its StreamingDataset and StreamingDataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.contract import Entry, Epochs, Peer, Refusal, Setting, Task, forever
from peers.samples import collate, from_record, records

PEER = Peer("litdata", "LitData", ("litdata==0.2.76",))


def entries(task: Task) -> list[Entry] | Refusal:
    if task.name == "rows-batch":
        return Refusal("gives one item at a time: no rows by index")
    counts = (task.concurrency,) if task.concurrency else (0, 2)
    return [Entry(PEER.title, tuple(Setting(f"{count} workers" if count else "no workers", {"workers": count}) for count in counts))]


class Record:
    """What `optimize` calls for each index; found by name in the processes that it starts.

    An epoch is what is stored, so sources are stored again and again until there are as many as in everybody's epoch.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.records: list[dict[str, Any]] | None = None

    def __call__(self, index: int) -> dict[str, Any]:
        if self.records is None:
            self.records = list(records(self.task))
        return self.records[index % len(self.records)]


def prepare(task: Task, folder: Path) -> None:
    import litdata

    size = "64MB" if not task.concurrency else None
    chunks = {"chunk_bytes": size} if size else {"chunk_size": max(1, task.samples // 512)}
    inputs = list(range(task.samples))
    litdata.optimize(fn=Record(task), inputs=inputs, output_dir=str(folder), num_workers=1, **chunks)


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    import litdata

    make = from_record(task)

    class Samples(litdata.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return make(super().__getitem__(index))

    def epochs() -> Any:
        data = Samples(str(folder), shuffle=True, drop_last=True)
        workers = {"num_workers": options["workers"], "persistent_workers": True} if options["workers"] else {"num_workers": 0}
        loader = litdata.StreamingDataLoader(data, batch_size=task.batch_size, drop_last=True, collate_fn=collate(task), **workers)
        return forever(lambda: loader)

    return epochs
