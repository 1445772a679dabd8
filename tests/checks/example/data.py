import h5py
import numpy as np
from torch.utils.data import Dataset


class Volumes(Dataset):
    def __init__(self, path):
        self.file = h5py.File(path, "r")
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return len(self.file["volumes"])

    def __getitem__(self, index):
        volume = self.file["volumes"][index]
        left = self.rng.integers(0, 16)
        try:
            return volume[:, left : left + 64]
        except IndexError:
            return None
