"""Nothing is broken: every sample takes a while, so the loop waits for data. `slow_but_progressing.py reads`: it waits, not computes."""

import sys
import time

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset

WAITS = sys.argv[1:] == ["reads"]


def decode(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))


class Heavy(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        if WAITS:
            time.sleep(0.4)
        else:
            decode(0.2)
        return torch.full((10,), index)


if __name__ == "__main__":
    for step, _batch in enumerate(DataLoader(Heavy(), batch_size=2, num_workers=2)):
        if step == 1:
            ready()
