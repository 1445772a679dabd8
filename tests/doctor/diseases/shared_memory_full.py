"""/dev/shm is full (docker gives 64 MB): a batch cannot be moved there, the error is lost in the queue's thread, the loop waits for ever.

Run it where /dev/shm is small: `unshare -m sh -c 'mount -t tmpfs -o size=8m tmpfs /dev/shm; exec python shared_memory_full.py'`.
"""

import torch
from patient import ready_soon
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.full((3, 512, 512), float(index))


def stack(samples):
    return torch.stack(samples)


if __name__ == "__main__":
    kept = []
    for step, batch in enumerate(DataLoader(Images(), batch_size=1, num_workers=1, collate_fn=stack)):  # <- loop
        kept.append(batch)
        if step == 0:
            ready_soon()
