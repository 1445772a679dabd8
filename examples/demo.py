"""A small real training run over a data set with one bad, one slow and one stuck sample: first torch's loader, then ours.

Run it with ./demo; about half a minute on two cores.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

SAMPLES, BATCH, WORKERS, EPOCHS = 2048, 64, 2, 3
BAD, SLOW, STUCK = 700, 1100, 1500
SLOW_S = 1.5
PATIENCE_S = 5.0
SHAPES = ("ring", "cross", "stripes", "blob")
PIXELS = 20

Sample = tuple[Tensor, int, int]


class Shapes(Dataset[Sample]):
    """Noisy pictures of four shapes, drawn as they are asked for: (picture, label, index). Three of them are trouble."""

    def __init__(self, bad_is_repaired: bool = False) -> None:
        self.bad_is_repaired = bad_is_repaired
        self.rows, self.columns = torch.meshgrid(torch.arange(PIXELS), torch.arange(PIXELS), indexing="ij")

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Sample:
        if index == BAD and not self.bad_is_repaired:
            raise ValueError(f"picture {index} is truncated")
        if index == SLOW:
            time.sleep(SLOW_S)
        if index == STUCK:
            threading.Event().wait()  # like a read from a file server that is gone: it never returns
        return self.draw(index), index % len(SHAPES), index

    def draw(self, index: int) -> Tensor:
        random = torch.Generator().manual_seed(index)
        down, right = (torch.randint(-4, 5, (2,), generator=random) + PIXELS // 2).tolist()
        distance = ((self.rows - down) ** 2 + (self.columns - right) ** 2).sqrt()
        shape = {
            "ring": (distance - 5).abs() < 1,
            "cross": (self.rows == down) | (self.columns == right),
            "stripes": (self.rows + down) % 4 == 0,
            "blob": distance < 4,
        }[SHAPES[index % len(SHAPES)]]
        noise = torch.randn(1, PIXELS, PIXELS, generator=random)
        return noise.mul_(0.7).add_(shape)


class Training:
    """A small network and its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        side = ((PIXELS - 1) // 2 - 1) // 2
        first, second = nn.Conv2d(1, 8, 3, stride=2), nn.Conv2d(8, 16, 3, stride=2)
        self.network = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(16 * side * side, len(SHAPES)))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=4e-3)

    def epoch(self, loader: Iterable[list[Tensor]]) -> Iterator[tuple[list[int], float]]:
        """One step per batch; gives the indices of the batch and its loss."""
        for pictures, labels, indices in loader:
            loss = F.cross_entropy(self.network(pictures), labels)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            yield indices.tolist(), loss.item()


# ---- torch's loader, in a process of its own that can be ended


def train_with_torch(bad_is_repaired: bool) -> None:
    loader = TorchDataLoader(Shapes(bad_is_repaired), batch_size=BATCH, shuffle=True, num_workers=WORKERS)
    training = Training()
    print("ready", flush=True)
    for _ in range(EPOCHS):
        for _, loss in training.epoch(loader):
            print(f"loss {loss:.3f}", flush=True)


def show_torch(title: str, *options: str) -> None:
    print(f"  {title}", flush=True)
    with tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, __file__, "--only-torch", *options]
        # A session of its own: torch's stuck worker would outlive its killed parent, so they are killed together.
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        try:
            batches, silent_s = _follow(child)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
        errors.seek(0)
        said = [line.strip() for line in errors if "Error: " in line]
    print(f"    {batches} of {EPOCHS * SAMPLES // BATCH} batches came, then:")
    if silent_s:
        print(f"    FROZEN: no batch for {silent_s:.0f} s, and not a word about why; the demo killed it\n", flush=True)
    else:
        print(f"    DEAD, exit code {code}: {said[-1] if said else 'it said nothing'}\n", flush=True)


def _follow(child: subprocess.Popen[bytes]) -> tuple[int, float]:
    """(batches that came, seconds of silence at which we gave up, 0 when it ended by itself)."""
    assert child.stdout is not None
    batches, wait_s = 0, 60.0  # the first word comes after `import torch`
    while select.select([child.stdout], [], [], wait_s)[0]:
        words = os.read(child.stdout.fileno(), 4096)
        if not words:
            child.wait(timeout=10)
            return batches, 0.0
        batches += words.count(b"loss")
        wait_s = PATIENCE_S
    return batches, wait_s


# ---- ours


def show_ours() -> bool:
    """Whether every epoch delivered exactly what it should."""
    from antifreeze import DataLoader

    loader = DataLoader(
        Shapes(), batch_size=BATCH, shuffle=True, num_workers=WORKERS, on_bad_sample="skip", sample_timeout_s=2, stall_report_s=1
    )
    training = Training()
    all_right = True
    with loader:
        for number in range(1, EPOCHS + 1):
            all_right &= show_epoch(number, training, loader)
        print(
            "\n  the run FINISHED, without exactly the samples that could not be had" if all_right else "\n  WRONG samples were delivered"
        )
        heading("what the loader reports")
        print(loader.report())
    return all_right


def show_epoch(number: int, training: Training, loader: Iterable[list[Tensor]]) -> bool:
    started_s = time.monotonic()
    seen: Counter[int] = Counter()
    losses = []
    for indices, loss in training.epoch(loader):
        seen.update(indices)
        losses.append(loss)
    mean = sum(losses) / len(losses)
    missing = sorted(set(range(SAMPLES)) - set(seen))
    twice = sorted(index for index, times in seen.items() if times > 1)
    right = missing == sorted((BAD, STUCK)) and not twice
    print(f"  epoch {number}   loss {mean:.3f} {'#' * round(mean * 20):<28} {len(losses)} batches in {time.monotonic() - started_s:.1f} s")
    verdict = "exactly the bad and the stuck one" if right else f"WRONG: it should be {sorted((BAD, STUCK))} and none twice"
    print(f"            {len(seen)} of {SAMPLES} samples, missing {missing}, twice {twice}: {verdict}", flush=True)
    return right


def heading(text: str) -> None:
    print(f"\n== {text} {'=' * max(0, 96 - len(text))}\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only-torch", action="store_true", help="train with torch's loader in this process, with no limit of time")
    parser.add_argument("--repaired", action="store_true", help="with --only-torch: the bad sample is a good one")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.only_torch:
        train_with_torch(args.repaired)
        return 0

    print(f"{SAMPLES} pictures, {EPOCHS} epochs of batches of {BATCH}, {WORKERS} workers. Three samples are trouble:")
    print(f"  sample {BAD} raises ValueError, sample {SLOW} takes {SLOW_S} s, sample {STUCK} never returns")
    heading("1. torch.utils.data.DataLoader")
    show_torch("as it is")
    show_torch("with the bad sample repaired by hand, and the slow and the stuck one still there", "--repaired")
    heading('2. antifreeze.DataLoader(..., on_bad_sample="skip", sample_timeout_s=2, stall_report_s=1)')
    return 0 if show_ours() else 1


if __name__ == "__main__":
    sys.exit(main())
