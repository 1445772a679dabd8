"""Two ranks: rank 1's worker never returns from a sample, so rank 0 waits in all_reduce, and everybody blames the network.

`collective.py alone`: rank 1 has one batch less and goes for a walk; both loaders are innocent.
"""

import os
import sys
import tempfile
import time

import torch
import torch.distributed
import torch.multiprocessing
from patient import ready
from torch.utils.data import DataLoader, Dataset

ALONE = sys.argv[1:] == ["alone"]


class Shard(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if self.rank == 1 and index == 403 and not ALONE:
            ready(sample=index)
            while index != 0:  # <- here
                index += 1  # <- here
        return torch.full((10,), float(index))


def train(rank, store):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for step, batch in enumerate(DataLoader(Shard(rank), batch_size=4, num_workers=1)):
        if ALONE and rank == 1 and step == 150:
            ready()
            time.sleep(3600)
        torch.distributed.all_reduce(batch)  # <- collective


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (os.path.join(folder, "store"),), nprocs=2)
