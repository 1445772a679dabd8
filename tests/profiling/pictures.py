"""The data set of docs/profile.md: pictures that wait for a disk and are then decoded; a few files are much slower."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.03 if index % 97 == 0 else 0.001)  # the disk
        raw = np.random.default_rng(index).integers(0, 255, (224, 224, 3), dtype=np.uint8)  # the decoder
        return (torch.from_numpy(raw).permute(2, 0, 1).float() - 114.0) / 57.0, index % 10


train_loader = DataLoader(Pictures(), batch_size=64, shuffle=True, num_workers=1)
