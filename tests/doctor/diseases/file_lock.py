"""A worker waits for a file lock (flock) that another program holds. `file_lock.py fcntl` does the same with fcntl locks."""

import fcntl
import subprocess
import sys
import tempfile

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset

TAKE = fcntl.lockf if sys.argv[1:] == ["fcntl"] else fcntl.flock
HOLD = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.{}(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"


class Locked(Dataset):
    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 100

    def __getitem__(self, index):
        with open(self.path, "r+") as file:
            ready(path=self.path, holder=holder.pid, sample=index)
            TAKE(file, fcntl.LOCK_EX)  # <- here
            return torch.full((10,), index)


if __name__ == "__main__":
    with tempfile.NamedTemporaryFile(suffix=".lock") as lock_file:
        command = [sys.executable, "-c", HOLD.format(TAKE.__name__), lock_file.name]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        holder.stdout.readline()
        for _batch in DataLoader(Locked(lock_file.name), batch_size=4, num_workers=1, multiprocessing_context="fork"):
            pass
