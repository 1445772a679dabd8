"""Sentences of different lengths, batch by batch: `python benchmarks/lengths.py` prints the table of docs/benchmarks.md.

Ids that lie in memory, lengths as in text (log-normal, median 180, at most 1024). Every contender in turn, a moment each, medians over
rounds. *Tokens* are real ones, without filling; *padding* is the part of what is delivered (and what a model would compute) that is
filling. Batches of contenders by number have 64 sentences, those by tokens at most as many tokens, filling included, as 64 of mean
length.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import machine
from antifreeze import BatchesByLength, DataLoader, Join, Pad
from table import quantity, ratio, render

BATCH = 64
BASE = "torch, 2 workers, pad_sequence"


class Sentences(Dataset[torch.Tensor]):
    def __init__(self, count: int) -> None:
        random = np.random.default_rng(0)
        self.lengths = np.clip(random.lognormal(np.log(180), 0.8, count), 4, 1024).astype(np.int64)
        self.begins = np.append(0, np.cumsum(self.lengths))
        self.ids = torch.randint(1, 50_000, (int(self.begins[-1]),))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.ids[self.begins[index] : self.begins[index + 1]]


def padded_by_hand(samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return pad_sequence(samples, batch_first=True), torch.tensor([len(sample) for sample in samples])


def contenders(data: Sentences) -> dict[str, Callable[[], Any]]:
    by_number: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}
    most = int(BATCH * data.lengths.mean())

    def by_length(**options: Any) -> BatchesByLength:
        return BatchesByLength(data.lengths, shuffle=True, **options)

    return {
        BASE: lambda: TorchDataLoader(data, num_workers=2, persistent_workers=True, collate_fn=padded_by_hand, **by_number),
        "torch, no workers, pad_sequence": lambda: TorchDataLoader(data, collate_fn=padded_by_hand, **by_number),
        "ours, auto, Pad": lambda: DataLoader(data, num_workers="auto", collate_fn=Pad(lengths=True), **by_number),
        "the same, BatchesByLength(batch_size=64)": lambda: DataLoader(
            data, batch_sampler=by_length(batch_size=BATCH), num_workers="auto", collate_fn=Pad(lengths=True)
        ),
        "the same, BatchesByLength(max_tokens)": lambda: DataLoader(
            data, batch_sampler=by_length(max_tokens=most), num_workers="auto", collate_fn=Pad(lengths=True)
        ),
        "the same, Join(offsets=True)": lambda: DataLoader(
            data, batch_sampler=by_length(max_tokens=most, padded=False), num_workers="auto", collate_fn=Join(offsets=True)
        ),
    }


class Run:
    def __init__(self, loader: Any) -> None:
        self._batches = self._endless(loader)

    def _endless(self, loader: Any) -> Iterator[Any]:
        while True:
            yield from loader

    def measure(self, seconds: float) -> tuple[float, float, float]:
        """Batches and real tokens a second, and the part of what came that is filling."""
        batches = delivered = real = 0
        began_s = time.perf_counter()
        while (took_s := time.perf_counter() - began_s) < seconds:
            ids, sizes = next(self._batches)
            batches += 1
            delivered += ids.numel()
            real += ids.numel() if ids.ndim == 1 else int(sizes.sum())
        return batches / took_s, real / took_s, 1 - real / delivered


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sentences", type=int, default=65_536)
    parser.add_argument("--warm", type=float, default=5.0, help="seconds of each loader before anything counts (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one loader in one round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", action="store_true", help="the table as markdown")
    chosen = parser.parse_args(given)
    if chosen.rounds < 1 or chosen.seconds <= 0 or chosen.sentences < 2 * BATCH:
        parser.error(f"--rounds must be 1 or more, --seconds more than 0, --sentences {2 * BATCH} or more")
    runs = {name: Run(make()) for name, make in contenders(Sentences(chosen.sentences)).items()}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in runs}
    for run in runs.values():
        run.measure(chosen.warm)
    for _ in range(chosen.rounds):
        for name, run in runs.items():
            found[name].append(run.measure(chosen.seconds))
    rows = []
    for name, measured in found.items():
        batches, tokens, padding = (statistics.median(column) for column in zip(*measured, strict=True))
        of_base = statistics.median(mine[1] / base[1] for mine, base in zip(measured, found[BASE], strict=True))
        rows.append([name, quantity(batches), quantity(tokens), ratio(of_base), f"{padding:.1%}"])
    head = ["loader", "batches/s", "tokens/s", "torch, 2 workers = 1", "padding"]
    print(
        "\n".join([*machine.description(), f"{chosen.rounds} rounds of {chosen.seconds:g} s each", "", render(head, rows, chosen.markdown)])
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
