"""The pin-memory thread does not come back from pinning a batch: here a batch type whose own pin_memory() waits for a lock.

`pin_thread_stuck.py loop`: it goes round for ever instead

On a machine without an accelerator torch starts no such thread; so the patient says that it has one, which is all that the thread needs.
"""

import sys
import threading

from patient import as_if_there_were_an_accelerator, ready
from torch.utils.data import DataLoader, Dataset

as_if_there_were_an_accelerator()


class Graph:
    def pin_memory(self):
        ready()
        pinned = threading.Event()
        while "loop" in sys.argv:  # <- loop
            pinned.is_set()  # <- loop
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
