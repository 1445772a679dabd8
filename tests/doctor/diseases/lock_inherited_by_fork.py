"""A thread of the parent holds a lock while the workers are forked: their copy is locked, and nobody will ever open it."""

import threading

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset

LOCK = threading.Lock()
held = threading.Event()


def write_the_cache_for_ever():
    with LOCK:
        held.set()
        threading.Event().wait()


class Cached(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        ready(sample=index)
        with LOCK:  # <- here
            return torch.full((10,), index)


if __name__ == "__main__":
    threading.Thread(target=write_the_cache_for_ever, daemon=True).start()
    held.wait()
    for _batch in DataLoader(Cached(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
        pass
