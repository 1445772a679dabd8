"""On a machine with an accelerator: pinned batches are right, workers hold no device, and how fast batches reach the device.

PYTHONPATH=src python benchmarks/gpu_check.py        needs torch and numpy only
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from antifreeze import DataLoader


class Pictures(Dataset[Any]):
    def __init__(self, count: int) -> None:
        self.count = count
        self.source = torch.randn(64, 3, 224, 224)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.source[index % 64].clone(), index


def descriptors_of_workers() -> list[str]:
    found = []
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        for child in (task / "children").read_text().split():
            for name in os.listdir(f"/proc/{child}/fd"):
                target = os.readlink(f"/proc/{child}/fd/{name}")
                if target.startswith("/dev/nvidia"):
                    found.append(target)
    return found


def throughput(kind: Any, workers: int, samples: int) -> float:
    dataset = Pictures(samples)
    loader = kind(dataset, batch_size=128, num_workers=workers, pin_memory=True)
    began = time.perf_counter()
    total = torch.zeros((), device="cuda")
    for pictures, _ in loader:
        total += pictures.to("cuda", non_blocking=True)[0, 0, 0, 0]
    torch.cuda.synchronize()
    return samples / (time.perf_counter() - began)


def main() -> None:
    print("torch", torch.__version__, torch.cuda.get_device_name(), os.cpu_count(), "cores")
    torch.ones(1, device="cuda")
    loader = DataLoader(Pictures(512), batch_size=64, num_workers=4, pin_memory=True)
    held: list[str] = []
    for number, (pictures, indices) in enumerate(loader):
        assert pictures.is_pinned() and indices.is_pinned()
        assert torch.equal(pictures.to("cuda").cpu(), loader.dataset.source[indices % 64])  # type: ignore[attr-defined]
        held += descriptors_of_workers() if number == 2 else []
    print("pinned batches are right; device descriptors held by workers:", len(held))
    for workers in (0, 4, 8, 14):
        samples = 1280 if workers == 0 else 12800
        torchs, ours = throughput(TorchLoader, workers, samples), throughput(DataLoader, workers, samples)
        print(
            f"{workers:>2} workers, pinned, to the device: torch {torchs:,.0f} samples/s, ours {ours:,.0f} samples/s, {ours / torchs:.1f}×"
        )


if __name__ == "__main__":
    main()
