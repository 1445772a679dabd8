"""A worker runs an event loop (asyncio) that waits for something nobody sends.

`event_loop.py poll`: it wakes again and again to look whether it has come
"""

import asyncio
import sys

import torch
from patient import ready
from torch.utils.data import DataLoader, Dataset


async def download():
    arrived = asyncio.Event()
    while "poll" in sys.argv and not arrived.is_set():
        await asyncio.sleep(0.05)
    await arrived.wait()


class Remote(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == 403:
            ready(sample=index)
            asyncio.run(download())  # <- here
        return torch.tensor(index)


if __name__ == "__main__":
    for _batch in DataLoader(Remote(), batch_size=4, num_workers=2):
        pass
