"""Without workers, torch's loader against ours in turn: `python benchmarks/turns.py` prints the table of docs/benchmarks.md.

For each workload one process holds an iterator of either, and lets them make some batches each, in turn, for about as long as a blink;
the figure is what a batch takes, and a ratio the median over all turns of the ratio within one turn. So what is measured is a few
hundred nanoseconds more or less, which fresh processes would hide behind the noise of the machine. The same for whole epochs of few
batches, with their beginning and their end.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import machine
from runs import in_own_process
from table import quantity, ratio, render
from workloads import WORKLOADS, as_it_is

LIMIT_S = 300.0
TURN_S = 0.005
EPOCH_BATCHES = 16


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """32×32 pictures, shifted by up to 4 pixels and flipped half of the time: `draw` gives three numbers from 0 to 1."""

    SOURCES = 512

    def __init__(self, samples: int, draw: Callable[[], Sequence[float]]) -> None:
        self.samples = samples
        self.source = torch.rand(self.SOURCES, 3, 40, 40, generator=torch.Generator().manual_seed(8))
        self.draw = draw

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        down, right, flip = self.draw()
        y, x = int(down * 9), int(right * 9)
        picture = self.source[index % self.SOURCES][:, y : y + 32, x : x + 32]
        return picture.flip(2) if flip < 0.5 else picture, index % 10

    def __len__(self) -> int:
        return self.samples


class Indices(Dataset[int]):
    """Nothing to load: what is left is the loader."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return self.samples


def draw_none() -> Sequence[float]:
    return 0.3, 0.6, 0.4


def draw_python() -> Sequence[float]:
    return random.random(), random.random(), random.random()


def draw_torch() -> Sequence[float]:
    drawn: list[float] = torch.rand(3).tolist()
    return drawn


def draw_numpy() -> Sequence[float]:
    drawn: list[float] = np.random.rand(3).tolist()
    return drawn


def drawing(draw: Callable[[], Sequence[float]]) -> Callable[[int], dict[str, Any]]:
    return lambda samples: {"dataset": Pictures(samples, draw), "batch_size": 128, "shuffle": True}


def indices(batch_size: int | None) -> Callable[[int], dict[str, Any]]:
    return lambda samples: {"dataset": Indices(samples), "batch_size": batch_size, "collate_fn": as_it_is}


SMALL: dict[str, tuple[int, Callable[[int], dict[str, Any]]]] = {
    "pictures": (8_192, drawing(draw_none)),
    "pictures-random": (8_192, drawing(draw_python)),
    "pictures-torch": (8_192, drawing(draw_torch)),
    "pictures-numpy": (8_192, drawing(draw_numpy)),
    "indices-256": (131_072, indices(256)),
    "indices-16": (32_768, indices(16)),
    "indices-1": (16_384, indices(1)),
    "indices-none": (16_384, indices(None)),
}
"""(samples, arguments): where the loader is a large part of what a batch takes."""

OF_ALL = {name: (workload.samples, workload.loader_arguments) for name, workload in WORKLOADS.items() if name != "slow-reads"}
CHOICES = {**OF_ALL, **SMALL}


class Turns:
    """One loader, epoch after epoch; what lies between two epochs is not timed."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._batches: Iterator[Any] = iter(loader)

    def take(self, count: int) -> float:
        """Seconds a batch."""
        spent, begun = 0.0, time.perf_counter()
        for _ in range(count):
            if next(self._batches, self) is self:
                spent += time.perf_counter() - begun
                self._batches = self.loader.__iter__()
                begun = time.perf_counter()
                next(self._batches)
        return (spent + time.perf_counter() - begun) / count


def epoch_s(loader: Any) -> float:
    begun = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - begun


def in_turn(take: Callable[[int], float], seconds: float) -> list[list[float]]:
    """What take(0) and take(1) gave, each of them first every other time."""
    found: list[list[float]] = [[], []]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[0]) < 8:
        for number in (0, 1) if len(found[0]) % 2 else (1, 0):
            found[number].append(take(number))
    return found


def measure(name: str, seconds: float) -> dict[str, list[list[float]]]:
    import antifreeze

    torch.set_num_threads(1)
    samples, arguments = CHOICES[name]
    given = arguments(samples)
    loaders = [torch.utils.data.DataLoader(**given), antifreeze.DataLoader(**given)]
    both = [Turns(loader) for loader in loaders]
    count = max(1, round(TURN_S / min(each.take(50) for each in both)))
    batches = in_turn(lambda number: both[number].take(count), seconds)
    few = arguments(EPOCH_BATCHES * (given["batch_size"] or 1))
    short = [torch.utils.data.DataLoader(**few), antifreeze.DataLoader(**few)]
    epochs = in_turn(lambda number: epoch_s(short[number]), seconds / 2)
    return {"batches": batches, "epochs": epochs}


def row(name: str, found: dict[str, list[list[float]]]) -> list[str]:
    cells = [name]
    for both in found.values():
        cells += [f"{quantity(statistics.median(times) * 1e6)}" for times in both]
        cells.append(ratio(statistics.median(one / two for one, two in zip(*both, strict=True))))
    return cells


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", default=",".join(CHOICES), help="comma-separated; all of: %(default)s")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each workload (default %(default)s)")
    parser.add_argument("--markdown", action="store_true", help="the table as markdown")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args(given)
    unknown = [name for name in chosen.workloads.split(",") if name not in CHOICES]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(CHOICES)}")
    return chosen


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    if chosen.child:
        print(json.dumps(measure(*json.loads(chosen.child))))
        return 0
    rows, notes = [], []
    for name in chosen.workloads.split(","):
        missing = WORKLOADS[name].missing() if name in WORKLOADS else None
        found = missing or in_own_process(__file__, [name, chosen.seconds], LIMIT_S)
        if isinstance(found, str):
            notes.append(f"{name}: {'skipped' if missing else 'failed'}: {found}")
            continue
        rows.append(row(name, found))
        print(f"{name}: {rows[-1][3]}, {rows[-1][6]}", file=sys.stderr, flush=True)
    head = ["workload", "torch, µs a batch", "ours", "speed", f"torch, µs an epoch of {EPOCH_BATCHES} batches", "ours", "speed"]
    print("\n".join([*machine.description(), "", render(head, rows, chosen.markdown), *notes]))
    return 1 if any(": failed: " in note for note in notes) else 0


if __name__ == "__main__":
    sys.exit(main())
