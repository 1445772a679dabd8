"""The loader is innocent: every worker waits for work while the loop computes.

`slow_model.py save`: it saves checkpoints. `slow_model.py log`: it waits for its logger.
"""

import logging
import sys
import tempfile
import time

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[1] if sys.argv[1:] else "model"


class Quick(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.full((10,), index)


def train_step(weights):
    for _ in range(20):
        weights = weights @ weights  # <- model
        weights = weights / weights.norm()
    return weights


def save_checkpoint(weights):
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(50):
            torch.save({"weights": weights, "optimizer": [weights] * 8}, file)
            file.truncate(0)


class SlowHandler(logging.Handler):
    def emit(self, record):
        time.sleep(1.5)


if __name__ == "__main__":
    logging.getLogger().addHandler(SlowHandler())
    weights = torch.eye(1500) + 0.01 * torch.randn(1500, 1500)
    for step, _batch in enumerate(DataLoader(Quick(), batch_size=4, num_workers=2)):
        if step == 1:
            ready()
        if KIND == "model":
            train_step(weights)
        elif KIND == "save":
            save_checkpoint(weights)
        else:
            logging.getLogger().warning("step %d", step)
