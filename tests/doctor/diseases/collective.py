"""Two ranks: rank 1's worker never returns from a sample, so rank 0 waits in all_reduce, and everybody blames the network.

`collective.py alone`: rank 1 has one batch less and goes for a walk; both loaders are innocent.
"""

import os
import subprocess
import sys
import tempfile
import time

if "RANK" not in os.environ:  # as torchrun does: one process per rank, its number in the environment
    with tempfile.TemporaryDirectory() as folder:
        settings = {**os.environ, "STORE": os.path.join(folder, "store")}
        ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**settings, "RANK": rank}) for rank in "01"]
        sys.exit(max(rank.wait() for rank in ranks))

import torch
import torch.distributed
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
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for step, batch in enumerate(DataLoader(Shard(rank), batch_size=4, num_workers=1)):
        if ALONE and step == 150:
            ready(**{"walker" if rank == 1 else "partner": os.getpid()})
            time.sleep(3600 * rank)
        torch.distributed.all_reduce(batch)  # <- collective


if __name__ == "__main__":
    train(int(os.environ["RANK"]), os.environ["STORE"])
