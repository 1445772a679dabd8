"""A worker never comes back from one sample: a loop whose end condition cannot be met."""

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if index == 403:
            ready(sample=index)
            while index != 0:  # <- here
                index += 1  # <- here
        return torch.full((10,), index)


if __name__ == "__main__":
    for _batch in DataLoader(Squares(), batch_size=4, num_workers=2):
        pass
