"""MosaicML Streaming: MDS shards on disk, its StreamingDataset in torch's DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.contract import Entry, Epochs, Peer, Refusal, Setting, Task, forever
from peers.samples import collate, from_record, records

PEER = Peer("streaming", "MosaicML Streaming", ("mosaicml-streaming==0.13.0",))


def entries(task: Task) -> list[Entry] | Refusal:
    if task.name == "rows-batch":
        return Refusal("gives one sample at a time: no rows by index in one call")
    counts = (task.concurrency,) if task.concurrency else (0, 2)
    return [Entry(PEER.title, tuple(Setting(f"{count} workers" if count else "no workers", {"workers": count}) for count in counts))]


COLUMNS = {
    "rows": {"x": "ndarray:float32:16", "y": "int"},
    "images": {"x": "ndarray:float32:3,224,224", "y": "int"},
    "jpeg": {"jpg": "bytes", "y": "int"},
    "slow-reads": {"index": "int"},
    "tokens": {"x": "ndarray:int64"},
}


def let_torchvision_import() -> None:
    """It imports torchvision, whose operators are built for CUDA only: the two that are looked up at import are declared, none is used."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    KEPT.append(library)


KEPT: list[Any] = []


def prepare(task: Task, folder: Path) -> None:
    let_torchvision_import()
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns=COLUMNS[task.workload]) as writer:
        for record in records(task):
            writer.write(record)


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    let_torchvision_import()
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    make = from_record(task)

    class Samples(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return make(super().__getitem__(index))

    def epochs() -> Any:
        data = Samples(local=str(folder), shuffle=True, batch_size=task.batch_size, epoch_size=task.samples)
        workers = {"num_workers": options["workers"], "persistent_workers": True} if options["workers"] else {"num_workers": 0}
        loader = DataLoader(data, batch_size=task.batch_size, drop_last=True, collate_fn=collate(task), **workers)
        return forever(lambda: loader)

    return epochs
