"""A thread of the training process blocks in native code without giving the GIL back: every other thread stands still."""

import ctypes
import json
import os
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Quick(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.full((10,), index)


def watch_the_hardware():
    say_and_sleep = f"sleep 1; echo 'ready {json.dumps({'pid': os.getpid()})}'; exec sleep 3600"  # it is said with the GIL held for a while
    ctypes.PyDLL(None).system(say_and_sleep.encode())  # PyDLL keeps the GIL; CDLL would give it back  # <- here


if __name__ == "__main__":
    for step, _batch in enumerate(DataLoader(Quick(), batch_size=4, num_workers=1)):
        if step == 20:
            threading.Thread(target=watch_the_hardware, daemon=True).start()
        time.sleep(0.01)
