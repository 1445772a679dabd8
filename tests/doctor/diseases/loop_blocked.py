"""The loader is innocent: the loop itself waits for something, here a full queue that a logger thread no longer empties."""

import queue

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset

log = queue.Queue(maxsize=3)


class Quick(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.full((10,), index)


if __name__ == "__main__":
    for step, _batch in enumerate(DataLoader(Quick(), batch_size=4, num_workers=2)):
        if step == 3:
            ready()
        log.put(step)  # <- here
