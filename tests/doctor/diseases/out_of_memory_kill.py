"""A worker outgrows the memory of its cgroup (container) and the kernel kills it; the loop catches torch's error and goes on.

Needs a memory cgroup: the test makes one of 700 MB, and gives its cgroup.procs as the first argument.
"""

import os
import re
import sys
import time

import torch
from patient import ready, worker_number
from torch.utils.data import DataLoader, Dataset

hoard = []


class Leaking(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        while worker_number() == 1 and index > 10:
            hoard.append(b"x" * 50_000_000)
        return torch.full((10,), index)


if __name__ == "__main__":
    with open(sys.argv[1], "w") as procs:
        procs.write(str(os.getpid()))
    batches = iter(DataLoader(Leaking(), batch_size=1, num_workers=2))
    try:
        for _batch in batches:
            pass
    except RuntimeError as error:
        ready(victim=int(re.search(r"pid\D*(\d+)", str(error)).group(1)))
    time.sleep(3600)  # "waiting for the workers to come back"  # <- here
