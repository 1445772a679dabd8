"""The parent was killed; a worker blocked in a pipe write never notices, and keeps memory, descriptors and the GPU."""

import os
import signal
import sys
import time

from patient import ready
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return "x" * 4_000_000


def first(samples):
    return samples[0]


if __name__ == "__main__":
    batches = iter(DataLoader(Texts(), batch_size=1, num_workers=1, collate_fn=first))
    next(batches)
    time.sleep(1.0)
    (worker,) = batches._workers
    ready(parent=os.getpid(), pid=worker.pid)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
