"""A worker reads a named pipe whose writer has nothing more to say. `fifo_read.py open`: a named pipe that nobody ever opens to write."""

import os
import sys
import tempfile

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset

ONLY_OPEN = sys.argv[1:] == ["open"]


class FromFifo(Dataset):
    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 100

    def __getitem__(self, index):
        ready(path=self.path, sample=index)
        with open(self.path, "rb") as fifo:  # <- open
            return torch.tensor(list(fifo.read(10)))  # <- here


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "samples.fifo")
        os.mkfifo(path)
        writer = None if ONLY_OPEN else os.open(path, os.O_RDWR)
        for _batch in DataLoader(FromFifo(path), batch_size=4, num_workers=1):
            pass
