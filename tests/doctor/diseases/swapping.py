"""The data set is larger than the memory there is: samples wait until their pages are back from the disk.

Needs swap space and a memory cgroup: the test makes both, and gives the cgroup's cgroup.procs as the first argument.
"""

import os
import sys

import numpy
import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset

ROWS, WIDTH = 65_536, 4096  # 268 MB


class InMemory(Dataset):
    def __init__(self):
        self.rows = numpy.ones((ROWS, WIDTH), dtype=numpy.uint8)
        self.loaded = 0

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        self.loaded += 1
        if self.loaded == 1000:
            ready()
        return torch.tensor(int(self.rows[index].sum()))


if __name__ == "__main__":
    with open(sys.argv[1], "w") as procs:
        procs.write(str(os.getpid()))
    ready()
    loader = DataLoader(InMemory(), batch_size=64, num_workers=2, shuffle=True, persistent_workers=True)
    while True:
        for _batch in loader:
            pass
