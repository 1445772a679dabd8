"""The pin-memory thread does not come back from pinning a batch: here a batch type whose own pin_memory() waits for a lock.

On a machine without an accelerator torch starts no such thread; so the patient says that it has one, which is all that the thread needs.
"""

import threading

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset

if not torch.accelerator.is_available():
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cpu")
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda device: None


class Graph:
    def pin_memory(self):
        ready()
        pinned = threading.Event()
        pinned.wait()  # <- here
        return self


class Graphs(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return index


def as_graph(samples):
    return Graph()


if __name__ == "__main__":
    for _batch in DataLoader(Graphs(), batch_size=4, num_workers=1, collate_fn=as_graph, pin_memory=True):
        pass
