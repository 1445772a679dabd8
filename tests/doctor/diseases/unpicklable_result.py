"""pytorch#142884: what the worker made cannot be pickled; the batch vanishes in the queue's thread and the loop waits for ever."""

import threading

from patient import ready_soon
from torch.utils.data import DataLoader, Dataset


class Handles(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"index": index, "handle": threading.Lock()}


def first(samples):
    return samples[0]


if __name__ == "__main__":
    batches = iter(DataLoader(Handles(), batch_size=4, num_workers=2, collate_fn=first))
    ready_soon()
    next(batches)  # <- here
