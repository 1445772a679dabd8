"""The same in native code (OpenMP, OpenCV, malloc …): a mutex that a thread of the parent held when the workers were forked."""

import ctypes
import threading

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset

libc = ctypes.CDLL(None)
MUTEX = ctypes.create_string_buffer(64)
held = threading.Event()


def compute_for_ever():
    libc.pthread_mutex_lock(MUTEX)
    held.set()
    threading.Event().wait()


class Decoded(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        ready(sample=index)
        libc.pthread_mutex_lock(MUTEX)  # <- here
        return torch.full((10,), index)


if __name__ == "__main__":
    threading.Thread(target=compute_for_ever, daemon=True).start()
    held.wait()
    for _batch in DataLoader(Decoded(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
        pass
