"""A worker writes more into a helper program than a pipe holds, and the helper does not read."""

import subprocess

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset


class Decoded(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        helper = subprocess.Popen(["sleep", "3600"], stdin=subprocess.PIPE, bufsize=0)
        ready(helper=helper.pid, sample=index)
        helper.stdin.write(b"x" * 200_000)  # <- here
        return torch.tensor(index)


if __name__ == "__main__":
    for _batch in DataLoader(Decoded(), batch_size=4, num_workers=1):
        pass
