"""antifreeze's own worker in an infinite loop, with its deadline switched off: the journal names the sample even without a stack."""

import torch
from patient import ready
from torch.utils.data import Dataset

from antifreeze import DataLoader


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
    for _batch in DataLoader(Squares(), batch_size=4, num_workers=2, sample_timeout_s=None, stall_report_s=None):
        pass
