"""A worker was stopped (kill -STOP, Ctrl-Z, a debugger, a batch system that suspends) and nobody continued it."""

import os
import signal

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset


class Stopping(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if index == 403:
            ready(sample=index)
            os.kill(os.getpid(), signal.SIGSTOP)  # <- here
        return torch.full((10,), index)


if __name__ == "__main__":
    for _batch in DataLoader(Stopping(), batch_size=4, num_workers=2):
        pass
