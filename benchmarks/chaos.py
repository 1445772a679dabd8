"""Workers are killed and stopped at random while an epoch runs; every sample must come exactly once, in order, with the right bytes.

    python benchmarks/chaos.py                 100,000 samples, three epochs, rows and parcels, ordered and not
    python benchmarks/chaos.py --samples 5000  a short one
    python benchmarks/chaos.py --hedge         the same, and what a stopped worker holds is loaded a second time

Prints a line per run: samples, restarts, silent losses, doubled samples, wrong bytes, growth of descriptors and memory of the parent.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing import Process
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader

MODES = {"rows": (False, True), "parcels": (True, True), "rows-any-order": (False, False), "parcels-any-order": (True, False)}


class Numbers(Dataset[Any]):
    """Sample i is a row that only i can have; it takes a while, so that there is time to be killed in."""

    def __init__(self, count: int, takes_s: float) -> None:
        self.count, self.takes_s = count, takes_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        time.sleep(self.takes_s)
        return index, torch.arange(16) * index


def as_objects(samples: list[Any]) -> dict[str, Any]:
    """A collate function, so that batches travel as parcels."""
    return {"index": [index for index, _ in samples], "row": torch.stack([row for _, row in samples]), "name": f"{len(samples)} samples"}


def trouble(parent: int, seed: int, stop_share: float) -> None:
    """In a process of its own: kills or stops a random worker every 50 to 200 ms until it is killed itself."""
    rng = random.Random(seed)
    while os.getppid() == parent:
        time.sleep(rng.uniform(0.05, 0.2))
        workers = list(workers_of(parent))
        if workers:
            number = signal.SIGSTOP if rng.random() < stop_share else signal.SIGKILL
            try:
                os.kill(rng.choice(workers), number)
            except ProcessLookupError:
                continue


def workers_of(parent: int) -> Iterator[int]:
    for task in Path(f"/proc/{parent}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            try:
                if Path(f"/proc/{child}/comm").read_text().strip() == "af_worker":
                    yield int(child)
            except OSError:
                continue


def run(samples: int, parcels: bool, in_order: bool, seed: int, epochs: int, hedge: bool, takes_s: float) -> bool:
    loader = DataLoader(
        Numbers(samples, takes_s),
        batch_size=64,
        num_workers=2,
        in_order=in_order,
        collate_fn=as_objects if parcels else None,
        max_restarts_per_minute=100_000,
        hedge=hedge,
    )
    troubler = Process(target=trouble, args=(os.getpid(), seed, 0.2), daemon=True)
    troubler.start()
    lost = doubled = wrong = 0
    ordered = True
    descriptors, memory = [], []
    began = time.monotonic()
    try:
        for _ in range(epochs):
            seen: list[int] = []
            for batch in loader:
                indices = batch["index"] if parcels else batch[0].tolist()
                rows = batch["row"] if parcels else batch[1]
                wrong += int((rows != torch.tensor(indices)[:, None] * torch.arange(16)).any(1).sum())
                seen += indices
            lost += samples - len(set(seen))
            doubled += len(seen) - len(set(seen))
            ordered &= seen == list(range(samples))
            descriptors.append(len(os.listdir("/proc/self/fd")))
            memory.append(private_mib())
    finally:
        troubler.kill()
        troubler.join()
        loader.close()
    fine = not (lost or doubled or wrong) and (ordered or not in_order) and descriptors[-1] <= descriptors[0] + 2
    report = loader.report()
    hedges = f"{report.hedges} hedges  " if hedge else ""
    print(
        f"{'parcels' if parcels else 'rows':<8}{'ordered' if in_order else 'any order':<11}{samples * epochs:>9,} samples  "
        f"{report.restarts:>5} restarts  {hedges}lost {lost}  doubled {doubled}  wrong bytes {wrong}  "
        f"descriptors {descriptors[0]}→{descriptors[-1]}  private {memory[0]:.0f}→{memory[-1]:.0f} MiB  "
        f"{time.monotonic() - began:5.1f} s  {'ok' if fine else 'NOT OK'}",
        flush=True,
    )
    return fine


def private_mib() -> float:
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hedge", action="store_true")
    parser.add_argument("--sample-us", type=float, default=100.0, help="what a sample takes at least (default 100)")
    parser.add_argument("--only", choices=list(MODES), help="one of the four runs")
    args = parser.parse_args()
    results = [
        run(args.samples, parcels, in_order, args.seed + number, args.epochs, args.hedge, args.sample_us / 1e6)
        for number, (name, (parcels, in_order)) in enumerate(MODES.items())
        if args.only in (None, name)
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
