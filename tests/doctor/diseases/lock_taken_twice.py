"""A worker takes a lock that it already holds: threading.Lock is not reentrant."""

import threading

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset

LOCK = threading.Lock()


def read_header(index):
    ready(sample=index)
    with LOCK:  # <- here
        return index


class Nested(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        with LOCK:
            return torch.full((10,), read_header(index))


if __name__ == "__main__":
    for _batch in DataLoader(Nested(), batch_size=4, num_workers=1):
        pass
