"""Ours over an HF table in torch format, in the environment of HF datasets: rows are gathered straight into the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers import hf_datasets
from peers.antifreeze_loader import OURS, epochs_of
from peers.contract import TUNES_ITSELF_S, Entry, Epochs, Peer, Setting, Task

PEER = Peer(hf_datasets.PEER.name, f"{OURS} over HF", hf_datasets.PEER.requirements)


def entries(task: Task) -> list[Entry]:
    """Only where the rows lie in a table."""
    if task.name != "rows-batch":
        return []
    settings = (
        Setting("HF table, no workers", {"num_workers": 0}),
        Setting("HF table, 2 workers", {"num_workers": 2, "persistent_workers": True}),
        Setting("HF table, auto", {"num_workers": "auto"}, warm_s=TUNES_ITSELF_S),
    )
    return [Entry(PEER.title, settings)]


def prepare(task: Task, folder: Path) -> None:
    hf_datasets.prepare(task, folder)


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    from datasets import load_from_disk

    from antifreeze import DataLoader

    table = load_from_disk(str(folder / "table")).with_format("torch")
    arguments = {"dataset": table, "batch_size": task.batch_size, "shuffle": True, "drop_last": True}
    return lambda: epochs_of(DataLoader, arguments | options)
