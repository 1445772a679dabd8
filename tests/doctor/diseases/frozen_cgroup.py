"""The container is paused (docker pause, a batch system that suspends): the kernel's freezer holds every process of it.

`frozen_cgroup.py v2`: the same with version 2 of the kernel's cgroups

Needs a cgroup that can be frozen: the test makes one, gives its cgroup.procs as the last argument, and freezes it when this is ready.
"""

import os
import sys
import time

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.tensor(index)


if __name__ == "__main__":
    with open(sys.argv[-1], "w") as procs:
        procs.write(str(os.getpid()))
    for step, _batch in enumerate(DataLoader(Samples(), batch_size=4, num_workers=2)):
        if step == 3:
            ready(folder=os.path.dirname(sys.argv[-1]))
