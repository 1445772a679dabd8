"""A worker reads from a helper program that does not answer."""

import subprocess

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset


class FromProgram(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        with subprocess.Popen(["sleep", "3600"], stdout=subprocess.PIPE) as decoder:
            ready(helper=decoder.pid, sample=index)
            return torch.tensor(list(decoder.stdout.read(10)))  # <- here


if __name__ == "__main__":
    for _batch in DataLoader(FromProgram(), batch_size=4, num_workers=1):
        pass
