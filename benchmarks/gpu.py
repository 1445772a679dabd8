"""On a machine with an NVIDIA GPU: batches are right whatever streams read them, and how fast they reach the device.

    PYTHONPATH=src python benchmarks/gpu.py [--parts right,guard,speed,scaling] [--quick]

needs torch and numpy only. A ratio compares two loaders in the same run, in interleaved rounds, by their medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from antifreeze import DataLoader
from antifreeze.delivery.pinning import PageLock

BATCH = 128
PICTURE = (3, 224, 224)
PICTURE_BYTES = 4 * 3 * 224 * 224


class Pictures(Dataset[Any]):
    """602 KB of float32 each, views of 64 pictures in memory: what is measured is the way from there to the device."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.source = torch.randn(64, *PICTURE)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.source[index % 64], index


class Numbered(Dataset[Any]):
    """Every value of a sample is its index: a batch that was overwritten shows it anywhere."""

    def __init__(self, count: int, size: int = 1 << 16) -> None:
        self.count = count
        self.size = size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((self.size,), float(index)), index


def device_descriptors_of_workers() -> list[str]:
    found = []
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        for child in (task / "children").read_text().split():
            for name in os.listdir(f"/proc/{child}/fd"):
                target = os.readlink(f"/proc/{child}/fd/{name}")
                if target.startswith("/dev/nvidia"):
                    found.append(target)
    return found


# --- right ------------------------------------------------------------------------------------------------------------


def show_right(quick: bool) -> None:
    for given in ({"pin_memory": True}, {"device": "cuda"}, {"device": "cuda", "pin_memory": True}):
        for workers in (0, 4):
            loader = DataLoader(Pictures(512), batch_size=64, num_workers=workers, **given)  # type: ignore[arg-type]
            held: list[str] = []
            for number, (pictures, indices) in enumerate(loader):
                if "device" not in given:
                    assert pictures.is_pinned() and indices.is_pinned()
                else:
                    assert pictures.is_cuda and indices.is_cuda
                expected = loader.dataset.source[indices.cpu() % 64]  # type: ignore[attr-defined]
                assert torch.equal(pictures.to("cuda").cpu(), expected)
                held += device_descriptors_of_workers() if number == 2 else []
            assert not held, held
            loader.close()
    print("right: pinned views and device batches, with and without workers; no worker holds the device", flush=True)
    captured()


def captured() -> None:
    """A user's CUDA graph over static buffers, filled from our batches."""
    static, result = torch.zeros(64, 1 << 16, device="cuda"), torch.zeros(64, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        result.copy_(static.mean(1))
    torch.cuda.synchronize()
    loader = DataLoader(Numbered(640), batch_size=64, num_workers=2, device="cuda")
    batches = iter(loader)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result.copy_(static.mean(1))
    for x, indices in batches:
        static.copy_(x)
        graph.replay()
        assert torch.equal(result, indices.float())
    loader.close()
    print("right: a captured graph fed from device batches", flush=True)


# --- guard ------------------------------------------------------------------------------------------------------------


def wrong_batches(batches: int, guarded: bool, **given: Any) -> int:
    """How many batches were overwritten before what reads them, behind slow work (a pinned one's copy on a side stream), had run."""
    loader = DataLoader(Numbered(16 * batches, 1 << 14), batch_size=16, num_workers=4, **given)
    if not guarded:
        mark = PageLock.mark
        PageLock.mark = lambda self, slot: None  # type: ignore[method-assign]
    side, wrong, waiting = torch.cuda.Stream(), 0, []
    try:
        for x, indices in loader:
            with torch.cuda.stream(torch.cuda.current_stream() if x.is_cuda else side):
                torch.cuda._sleep(2_000_000)  # about 1 ms: what reads the batch runs after the loop has let it go
                copied = x.to("cuda", non_blocking=True)
                expected = indices.to("cuda", non_blocking=True)
                waiting.append((copied != expected[:, None]).any())
            del x, indices
            if len(waiting) == 64:
                torch.cuda.synchronize()
                wrong += int(torch.stack(waiting).sum())
                waiting.clear()
        torch.cuda.synchronize()
        wrong += int(torch.stack(waiting).sum()) if waiting else 0
    finally:
        if not guarded:
            PageLock.mark = mark  # type: ignore[method-assign]
        loader.close()
    return wrong


def show_guard(quick: bool) -> None:
    batches = 1_000 if quick else 10_000
    for given in ({"pin_memory": True}, {"device": "cuda"}):
        print(f"guard: {given}: {wrong_batches(batches, True, **given)} of {batches:,} batches wrong", flush=True)
    print(f"guard switched off, pin_memory: {wrong_batches(1_000, False, pin_memory=True)} of 1,000 batches wrong", flush=True)


# --- speed ------------------------------------------------------------------------------------------------------------


def pinned_limit_gb_s() -> float:
    host, device = torch.empty(BATCH, *PICTURE).pin_memory(), torch.empty(BATCH, *PICTURE, device="cuda")
    best = 0.0
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, 20 * host.nbytes / (time.perf_counter() - began) / 1e9)
    return best


def rate(make: Callable[[], Any], samples: int, epochs: int = 2) -> tuple[float, float]:
    """(samples/s of the last epoch, seconds to the first batch of the first)."""
    loader, first_s, best = make(), 0.0, 0.0
    for epoch in range(epochs):
        total = torch.zeros((), device="cuda")
        began = time.perf_counter()
        for number, (pictures, _) in enumerate(loader):
            total += pictures.to("cuda", non_blocking=True)[0, 0, 0, 0]
            if epoch == 0 and number == 0:
                first_s = time.perf_counter() - began
        torch.cuda.synchronize()
        best = samples / (time.perf_counter() - began)
    if hasattr(loader, "close"):
        loader.close()
    return best, first_s


def loader_of(kind: Any, dataset: Any, workers: int, **more: Any) -> Callable[[], Any]:
    return lambda: kind(dataset, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0, **more)


def show_speed(quick: bool) -> None:
    limit = pinned_limit_gb_s()
    print(f"speed: a pinned copy reaches {limit:.1f} GB/s = {limit * 1e9 / PICTURE_BYTES:,.0f} samples/s", flush=True)
    samples, fewer, rounds = (2_560, 2_560, 1) if quick else (51_200, 6_400, 3)
    settings: dict[str, Callable[[], Any]] = {}
    data, few, small = Pictures(samples), Pictures(fewer), Pictures(2_560)
    settings["torch 0w pinned"] = loader_of(TorchLoader, small, 0, pin_memory=True)
    for workers in (4, 8, 14):
        settings[f"torch {workers}w pinned"] = loader_of(TorchLoader, few, workers, pin_memory=True)
    settings["ours 0w device"] = loader_of(DataLoader, small, 0, device="cuda")
    for workers in (4, 8, 14):
        settings[f"ours {workers}w pinned"] = loader_of(DataLoader, data, workers, pin_memory=True)
        settings[f"ours {workers}w device"] = loader_of(DataLoader, data, workers, device="cuda")
    found: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(rounds):
        for name, make in settings.items():
            count = 2_560 if " 0w" in name else fewer if name.startswith("torch") else samples
            found[name].append(rate(make, count)[0])
    best_torch = max(statistics.median(rates) for name, rates in found.items() if name.startswith("torch"))
    for name, rates in found.items():
        median = statistics.median(rates)
        share = median * PICTURE_BYTES / 1e9 / limit
        print(
            f"speed: {name:<16} {median:>9,.0f} samples/s  {share:>5.0%} of the limit  {median / best_torch:>5.1f}× torch's best",
            flush=True,
        )


def show_scaling(quick: bool) -> None:
    samples = 2_560 if quick else 6_400
    data = Pictures(samples)
    for workers in (1, 2, 4, 8, 12, 16):
        torchs, torch_first = rate(loader_of(TorchLoader, data, workers, pin_memory=True), samples)
        ours, our_first = rate(loader_of(DataLoader, data, workers, device="cuda"), samples)
        print(
            f"scaling: {workers:>2} workers: torch {torchs:>8,.0f} samples/s, first batch {torch_first * 1e3:>5.0f} ms; "
            f"ours {ours:>8,.0f} samples/s, first batch {our_first * 1e3:>5.0f} ms",
            flush=True,
        )


PARTS = {"right": show_right, "guard": show_guard, "speed": show_speed, "scaling": show_scaling}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"comma-separated, of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="shows that it works; its figures mean little")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to measure")
        return 2
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {len(os.sched_getaffinity(0))} cores", flush=True)
    torch.ones(1, device="cuda")
    for part in chosen.parts.split(","):
        PARTS[part](chosen.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
