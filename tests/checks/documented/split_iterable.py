"""As in the documentation of IterableDataset: a range that splits itself in __iter__, and one that is split in worker_init_fn."""

import math

import torch
from torch.utils.data import DataLoader, IterableDataset


class MyIterableDataset(IterableDataset):
    def __init__(self, start, end):
        super().__init__()
        assert end > start
        self.start = start
        self.end = end

    def __iter__(self):
        worker_info = torch.utils.data.get_worker_info()
        if worker_info is None:
            iter_start, iter_end = self.start, self.end
        else:
            per_worker = math.ceil((self.end - self.start) / float(worker_info.num_workers))
            iter_start = self.start + worker_info.id * per_worker
            iter_end = min(iter_start + per_worker, self.end)
        return iter(range(iter_start, iter_end))


class PlainIterableDataset(IterableDataset):
    def __init__(self, start, end):
        self.start = start
        self.end = end

    def __iter__(self):
        return iter(range(self.start, self.end))


def worker_init_fn(worker_id):
    worker_info = torch.utils.data.get_worker_info()
    dataset = worker_info.dataset
    per_worker = math.ceil((dataset.end - dataset.start) / float(worker_info.num_workers))
    dataset.start = dataset.start + worker_id * per_worker
    dataset.end = min(dataset.start + per_worker, dataset.end)


print(list(DataLoader(MyIterableDataset(start=3, end=7), num_workers=2)))
print(list(DataLoader(PlainIterableDataset(start=3, end=7), num_workers=0)))
plain = PlainIterableDataset(start=3, end=7)
print(list(DataLoader(plain, num_workers=12, worker_init_fn=worker_init_fn)))
