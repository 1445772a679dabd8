"""On a machine with an NVIDIA GPU: batches are right whatever streams read them, and how fast they reach the device.

    PYTHONPATH=src python benchmarks/gpu.py [--parts right,guard,speed,scaling,jpeg,resnet] [--rounds N] [--quick]

needs torch and numpy only; `jpeg` and `resnet` say so where OpenCV or torchvision is missing. A ratio compares two loaders in the
same run, in interleaved rounds, by their medians. "auto" has some seconds, each time, to find its setting.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from antifreeze import DataLoader
from antifreeze.delivery.pinning import PageLock

BATCH = 128
PICTURE = (3, 224, 224)
PICTURE_BYTES = 4 * 3 * 224 * 224
AUTO_SETTLES_S = 6.0


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


def show_right(quick: bool, rounds: int) -> None:
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
        for number, (x, indices) in enumerate(loader):
            with torch.cuda.stream(torch.cuda.current_stream() if x.is_cuda else side):
                torch.cuda._sleep(2_000_000)  # about 1 ms: what reads the batch runs after the loop has let it go
                copied = x.to("cuda", non_blocking=True)
                expected = torch.arange(16 * number, 16 * number + 16, device="cuda")  # a slot that was used again has another batch, whole
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


def show_guard(quick: bool, rounds: int) -> None:
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
    loader, first_s, last = make(), 0.0, 0.0
    made, epoch = time.perf_counter(), 0
    while epoch < epochs or (is_auto(loader) and time.perf_counter() - made < AUTO_SETTLES_S):
        total = torch.zeros((), device="cuda")
        began = time.perf_counter()
        for number, (pictures, _) in enumerate(loader):
            total += pictures.to("cuda", non_blocking=True)[0, 0, 0, 0]
            if epoch == 0 and number == 0:
                first_s = time.perf_counter() - began
        torch.cuda.synchronize()
        last, epoch = samples / (time.perf_counter() - began), epoch + 1
    end(loader)
    return last, first_s


def is_auto(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and bool(loader.report().decided)


def end(loader: Any) -> None:
    if is_auto(loader):
        CHOSEN.append(str(loader.report().decided[-1]).split(" since ")[0])
    if hasattr(loader, "close"):
        loader.close()


CHOSEN: list[str] = []
"""By "auto", each time."""


def chosen_by_auto() -> str:
    found, CHOSEN[:] = ", ".join(CHOSEN), []
    return found


def loader_of(kind: Any, dataset: Any, workers: Any, **more: Any) -> Callable[[], Any]:
    return lambda: kind(dataset, batch_size=BATCH, num_workers=workers, persistent_workers=workers not in (0, "auto"), **more)


def show_speed(quick: bool, rounds: int) -> None:
    limit = pinned_limit_gb_s()
    print(f"speed: a pinned copy reaches {limit:.1f} GB/s = {limit * 1e9 / PICTURE_BYTES:,.0f} samples/s", flush=True)
    samples, fewer = (2_560, 2_560) if quick else (51_200, 6_400)
    settings: dict[str, Callable[[], Any]] = {}
    data, few, small = Pictures(samples), Pictures(fewer), Pictures(2_560)
    settings["torch 0w pinned"] = loader_of(TorchLoader, small, 0, pin_memory=True)
    for workers in (4, 8, 14):
        settings[f"torch {workers}w pinned"] = loader_of(TorchLoader, few, workers, pin_memory=True)
    settings["ours 0w device"] = loader_of(DataLoader, small, 0, device="cuda")
    for workers in (4, 8, 14):
        settings[f"ours {workers}w pinned"] = loader_of(DataLoader, data, workers, pin_memory=True)
        settings[f"ours {workers}w device"] = loader_of(DataLoader, data, workers, device="cuda")
    settings["ours auto device"] = loader_of(DataLoader, data, "auto", device="cuda")
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
    print(f"speed: auto chose {chosen_by_auto()}", flush=True)


def show_scaling(quick: bool, rounds: int) -> None:
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


# --- pictures that must be decoded, and a model that eats them -----------------------------------------------------------


class Jpegs(Dataset[Any]):
    """JPEG 500×375 → OpenCV → random-resized-crop 224 → flip → float: what a worker computes for every sample."""

    SOURCES = 64

    def __init__(self, count: int) -> None:
        import cv2

        self.count = count
        random = np.random.default_rng(0)
        self.files = []
        for _ in range(self.SOURCES):
            rough = random.integers(0, 255, (12, 16, 3), dtype=np.uint8)
            picture = cv2.resize(rough, (500, 375), interpolation=cv2.INTER_CUBIC)
            picture = np.clip(picture.astype(np.int16) + random.integers(-12, 12, picture.shape), 0, 255).astype(np.uint8)
            self.files.append(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90])[1])

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import cv2

        cv2.setNumThreads(1)
        picture = cv2.imdecode(self.files[index % self.SOURCES], cv2.IMREAD_COLOR_RGB)
        area, top, left, flip = torch.rand(4).tolist()
        side = (0.08 + 0.92 * area) ** 0.5
        height, width = int(375 * side), int(500 * side)
        y, x = int(top * (375 - height)), int(left * (500 - width))
        small = cv2.resize(picture[y : y + height, x : x + width], (224, 224), interpolation=cv2.INTER_LINEAR)
        small = small[:, ::-1] if flip < 0.5 else small
        return torch.from_numpy(np.ascontiguousarray(small.transpose(2, 0, 1))).float().div_(255), index % 1000


def missing(*modules: str) -> bool:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            print(f"{module} is not installed here: not measured", flush=True)
            return True
    return False


def show_jpeg(quick: bool, rounds: int) -> None:
    if missing("cv2"):
        return
    samples = 1_280 if quick else 5_120
    data = Jpegs(samples)
    settings: dict[str, Callable[[], Any]] = {}
    for workers in (8, 14, 16):
        settings[f"torch {workers}w pinned"] = loader_of(TorchLoader, data, workers, pin_memory=True)
        settings[f"ours {workers}w device"] = loader_of(DataLoader, data, workers, device="cuda")
    settings["ours auto device"] = loader_of(DataLoader, data, "auto", device="cuda")
    found: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(rounds):
        for name, make in settings.items():
            found[name].append(rate(make, samples)[0])
    best_torch = max(statistics.median(rates) for name, rates in found.items() if name.startswith("torch"))
    for name, rates in found.items():
        median = statistics.median(rates)
        print(f"jpeg: {name:<16} {median:>9,.0f} samples/s  {median / best_torch:>5.2f}× torch's best", flush=True)
    print(f"jpeg: auto chose {chosen_by_auto()}", flush=True)


def show_resnet(quick: bool, rounds: int) -> None:
    """ResNet-50 in bf16, trained: on one resident batch, and fed by each loader."""
    if missing("cv2", "torchvision"):
        return
    import torchvision

    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.backends.cudnn.benchmark = True

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(pictures.contiguous(memory_format=torch.channels_last)), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    warm, steps = (5, 15) if quick else (15, 120)

    def fed(batches: Any) -> float:
        began = 0.0
        for number, (pictures, labels) in enumerate(batches):
            if number == warm:
                torch.cuda.synchronize()
                began = time.perf_counter()
            step(pictures.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True))
            if number == warm + steps - 1:
                break
        torch.cuda.synchronize()
        return steps * BATCH / (time.perf_counter() - began)

    resident = (torch.rand(BATCH, *PICTURE, device="cuda"), torch.randint(0, 1000, (BATCH,), device="cuda"))
    data = Jpegs((warm + steps + 1) * BATCH)
    settings: dict[str, Callable[[], Any]] = {"resident batch": lambda: itertools.repeat(resident)}
    for workers in (8, 14):
        settings[f"torch {workers}w pinned"] = loader_of(TorchLoader, data, workers, pin_memory=True)
        settings[f"ours {workers}w device"] = loader_of(DataLoader, data, workers, device="cuda")
    settings["ours auto device"] = loader_of(DataLoader, data, "auto", device="cuda")
    found: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(rounds):
        for name, make in settings.items():
            loader, made = make(), time.perf_counter()
            while is_auto(loader) and time.perf_counter() - made < AUTO_SETTLES_S:
                fed(loader)
            found[name].append(fed(loader))
            end(loader)
            del loader
    limit = statistics.median(found["resident batch"])
    for name, rates in found.items():
        median = statistics.median(rates)
        print(f"resnet: {name:<16} {median:>7,.0f} samples/s  {median / limit:>5.1%} of a resident batch", flush=True)
    print(f"resnet: auto chose {chosen_by_auto()}", flush=True)


PARTS = {
    "right": show_right,
    "guard": show_guard,
    "speed": show_speed,
    "scaling": show_scaling,
    "jpeg": show_jpeg,
    "resnet": show_resnet,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"comma-separated, of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3, help="in which loaders are measured in turn (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="shows that it works; its figures mean little")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to measure")
        return 2
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {len(os.sched_getaffinity(0))} cores", flush=True)
    torch.ones(1, device="cuda")
    for part in chosen.parts.split(","):
        PARTS[part](chosen.quick, 1 if chosen.quick else chosen.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
