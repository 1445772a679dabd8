"""The limit of open files is low and every tensor costs one: the worker cannot send, the error is lost, the loop waits for ever."""

import resource

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset


class Ragged(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return [torch.full((10,), part) for part in range(100)]


def first(samples):
    return samples[0]


def lower_the_limit(worker):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    ready()


if __name__ == "__main__":
    for _batch in DataLoader(Ragged(), batch_size=1, num_workers=1, collate_fn=first, worker_init_fn=lower_the_limit):  # <- loop
        pass
