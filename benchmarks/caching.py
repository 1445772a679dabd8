"""Samples of slow storage, plain and kept by `antifreeze.cached`: `python benchmarks/caching.py` prints a table of docs/benchmarks.md.

*reads*: each sample waits 10 ms, and is a tensor of 3 KB. *pictures*: each waits 10 ms, and is an array of 600 KB that is read from a file
of its own. Every contender in turn, in every round with a folder of its own: its first epoch, in which the cache is filled, then epochs for
--warm seconds, and those of the --seconds after them. Workers stay from epoch to epoch. What was written lies in the page cache of the
machine, as it does where samples were just written or fit into memory; a cold disk is another matter.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import machine
from antifreeze import DataLoader, cached
from table import quantity, ratio, render

BATCH = 16
WAIT_S = 0.01
BASE = "torch, 2 workers"


class Reads(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(WAIT_S)
        return torch.full((3, 16, 16), float(index)), index


class Pictures(Reads):
    def __init__(self, count: int, folder: Path) -> None:
        super().__init__(count)
        self.folder = folder
        for index in range(count):
            np.save(folder / f"{index}.npy", np.full((3, 448, 448), index % 256, dtype=np.uint8))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(WAIT_S)
        return torch.from_numpy(np.load(self.folder / f"{index}.npy")), index


def contenders(data: Any) -> dict[str, Callable[[Path], Any]]:
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}
    stay: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, **options}
    return {
        BASE: lambda folder: TorchDataLoader(data, **stay),
        "torch, 2 workers, cached": lambda folder: TorchDataLoader(cached(data, folder), **stay),
        "ours, 2 workers": lambda folder: DataLoader(data, **stay),
        "ours, 2 workers, cached": lambda folder: DataLoader(cached(data, folder), **stay),
        "ours, auto": lambda folder: DataLoader(data, num_workers="auto", **options),
        "ours, auto, cached": lambda folder: DataLoader(cached(data, folder), num_workers="auto", **options),
    }


def rate(loader: Any, samples: int, seconds: float) -> float:
    """Samples a second, of whole epochs: one, and as many as begin within `seconds`."""
    began_s, epochs = time.perf_counter(), 0
    while not epochs or time.perf_counter() - began_s < seconds:
        assert sum(len(numbers) for _, numbers in loader) == samples
        epochs += 1
    return epochs * samples / (time.perf_counter() - began_s)


def measure(make: Callable[[Path], Any], folder: Path, samples: int, warm_s: float, seconds: float) -> tuple[float, float]:
    """Samples a second: of the first epoch, and of later ones."""
    loader = make(folder)
    first = rate(loader, samples, 0.0)
    rate(loader, samples, warm_s)
    later = rate(loader, samples, seconds)
    if isinstance(loader, DataLoader):
        loader.close()
    del loader
    shutil.rmtree(folder, ignore_errors=True)
    return first, later


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--warm", type=float, default=2.0, help="seconds of later epochs that are not measured")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of later epochs that are")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true", help="the table as markdown")
    chosen = parser.parse_args(given)
    if chosen.rounds < 1 or chosen.samples < 2 * BATCH:
        parser.error(f"--rounds must be 1 or more, --samples {2 * BATCH} or more")
    said = (
        f"{chosen.rounds} rounds, {chosen.samples} samples; later epochs: {chosen.seconds:g} s of them, {chosen.warm:g} s after the first"
    )
    print("\n".join([*machine.description(), said, ""]), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "pictures").mkdir()
        workloads = {"reads": Reads(chosen.samples), "pictures": Pictures(chosen.samples, Path(made) / "pictures")}
        for workload, data in workloads.items():
            ways = contenders(data)
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for _ in range(chosen.rounds):
                for name, make in ways.items():
                    found[name].append(measure(make, Path(made) / "cache", chosen.samples, chosen.warm, chosen.seconds))
            for name, measured in found.items():
                first, later = (statistics.median(column) for column in zip(*measured, strict=True))
                of_base = [
                    statistics.median(mine[part] / base[part] for mine, base in zip(measured, found[BASE], strict=True)) for part in (0, 1)
                ]
                rows.append([workload, name, quantity(first), ratio(of_base[0]), quantity(later), ratio(of_base[1])])
    head = ["samples", "loader", "first epoch, samples/s", "torch = 1", "later epochs, samples/s", "torch = 1"]
    print(render(head, rows, chosen.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
