"""Worker 1 waits for a multiprocessing.Lock that worker 0 took and does not give back."""

import multiprocessing
import os
import time

import torch
from patient import ready, worker_number
from torch.utils.data import DataLoader, Dataset


class Guarded(Dataset):
    def __init__(self):
        self.lock = multiprocessing.Lock()
        self.taken = multiprocessing.Event()

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if worker_number() == 0:
            with self.lock:
                self.taken.set()
                ready(holder=os.getpid(), sample=index)
                time.sleep(3600)
        self.taken.wait()
        ready(waiter=os.getpid(), sample=index)
        with self.lock:  # <- here
            return torch.full((10,), index)


if __name__ == "__main__":
    for _batch in DataLoader(Guarded(), batch_size=4, num_workers=2):
        pass
