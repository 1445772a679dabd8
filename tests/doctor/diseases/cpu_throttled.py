"""The container may use a fifth of one core, and four workers want more: the kernel lets them run for 20 ms of every 100.

Needs a cpu cgroup: the test makes one, and gives its cgroup.procs as the first argument.
"""

import os
import sys
import time

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset


class Busy(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            sum(range(1000))
        return torch.full((10,), index)


if __name__ == "__main__":
    with open(sys.argv[1], "w") as procs:
        procs.write(str(os.getpid()))
    for step, _batch in enumerate(DataLoader(Busy(), batch_size=2, num_workers=4)):
        if step == 0:
            ready()
