"""Four workers may use one core only: an affinity inherited from the launcher, or set by a library that was imported."""

import os
import time

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset


class Busy(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            sum(range(1000))
        return torch.full((10,), index)


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for step, _batch in enumerate(DataLoader(Busy(), batch_size=2, num_workers=4)):
        if step == 4:
            ready()
