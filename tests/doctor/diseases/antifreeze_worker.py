"""antifreeze's own worker in an infinite loop, with its deadline switched off: the journal names the sample even without a stack.

`antifreeze_worker.py thread`: the worker is a thread of the loop's own process
"""

import sys

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
    kind = "thread" if "thread" in sys.argv else "process"
    for _batch in DataLoader(Squares(), batch_size=4, num_workers=2, sample_timeout_s=None, stall_report_s=None, workers=kind):
        pass
