"""Data sets for these tests, at a module's level so that fresh processes can have them; each notes in a file how often it was asked."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

COUNT = 60


class Sheep(Dataset[Any]):
    """Sample i is made of i, and a line in `log` tells that it was asked for."""

    def __init__(self, log: Path, count: int = COUNT, plus: float = 0.0) -> None:
        self.log, self.count, self.plus = log, count, plus

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        note(self.log, index)
        return self.made(index)

    def made(self, index: int) -> Any:
        return {
            "x": torch.full((3, 8), index + self.plus),
            "y": index,
            "a": np.arange(5, dtype=np.int16) + index,
            "name": f"sheep {index}",
            "parts": (torch.tensor(index), [index, None], float("nan")),
        }


class Flock(Sheep):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        note(self.log, *indices)
        return [self.made(index) for index in indices]


class Late(Sheep):
    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0.002)
        note(self.log, index)
        return self.made(index)


class LateFlock(Late):
    async def __getitems__(self, indices: list[int]) -> list[Any]:
        await asyncio.sleep(0.002)
        note(self.log, *indices)
        return [self.made(index) for index in indices]


class Drawing(Sheep):
    """Every third sample draws, from what is told."""

    source = "torch"

    def __getitem__(self, index: int) -> Any:
        note(self.log, index)
        return torch.tensor([index, self.draw() if index % 3 == 0 else 0.5])

    def draw(self) -> float:
        draws = {"torch": lambda: torch.rand(1).item(), "random": random.random, "numpy.random": np.random.rand}
        return float(draws[self.source]())


class DrawingLate(Late):
    """Every third sample draws, on both sides of a wait; the others do not, while those do."""

    async def __getitem__(self, index: int) -> Any:
        first = random.random() if index % 3 == 0 else 0.0
        await asyncio.sleep(0.001 * (index % 4))
        note(self.log, index)
        return torch.tensor([float(index), first, random.random() if index % 3 == 0 else 0.0])


class OwnGenerator(Sheep):
    """Random by a generator that nobody else knows."""

    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self.own = np.random.default_rng()

    def __getitem__(self, index: int) -> Any:
        note(self.log, index)
        return {"index": index, "noise": self.own.random(3)}


class Locked(Sheep):
    """Sample 7 holds a lock, which does not pickle."""

    def __getitem__(self, index: int) -> Any:
        note(self.log, index)
        return {"index": index, "lock": threading.Lock() if index == 7 else None}


class Augmented(Dataset[Any]):
    """What comes after a cache."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self.dataset[index]
        return sample["x"] + torch.randn(1) * random.random() + np.random.rand(), sample["y"]


def note(log: Path, *indices: int) -> None:
    with open(log, "a", encoding="ascii") as file:
        file.write("".join(f"{index}\n" for index in indices))


def asked(log: Path) -> list[int]:
    """And from now on none."""
    if not log.exists():
        return []
    lines = log.read_text().split()
    os.unlink(log)
    return [int(line) for line in lines]
