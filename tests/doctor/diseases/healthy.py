"""A loop that trains while its workers load: nothing waits long for anything."""

import time

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset


class Quick(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.full((10,), index)


if __name__ == "__main__":
    for step, _batch in enumerate(DataLoader(Quick(), batch_size=4, num_workers=2)):
        if step == 10:
            ready()
        time.sleep(0.02)
