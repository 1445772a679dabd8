"""What frameworks do with a loader, in small: run by python and by `antifreeze run`, it prints the same.

Lightning wraps `__init__` of every loader class while loaders are made, and makes a loader anew from its attributes and the signature of
its class; accelerate derives a class that iterates by itself, and hands attributes over; PyTorch Geometric one with its own collate.
"""

import functools
import inspect

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, SequentialSampler


class Numbers(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([index])


def all_subclasses(kind):
    return {kind}.union(*(all_subclasses(each) for each in kind.__subclasses__()))


def wrapped(init):
    @functools.wraps(init)
    def wrapper(loader, *args, **kwargs):
        names = [name for name in inspect.signature(init).parameters if name != "self"]
        object.__setattr__(loader, "__saved", (args, kwargs, names[: len(args)]))
        init(loader, *args, **kwargs)

    return wrapper


class Variadic(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def made_anew(loader, sampler):
    """lightning.fabric.utilities.data: _get_dataloader_init_args_and_kwargs"""
    attributes = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    parameters = dict(inspect.signature(loader.__init__).parameters)
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        parameters |= {name: each for name, each in inspect.signature(DataLoader.__init__).parameters.items() if name != "self"}
    changed = {name for name, each in parameters.items() if name in attributes and each.default is not attributes[name]}
    words = {name: attributes[name] for name in changed | {"dataset"}}
    words |= {"batch_sampler": None, "sampler": sampler, "shuffle": False, "batch_size": loader.batch_size, "drop_last": loader.drop_last}
    return type(loader)(**words)


class Shard(DataLoader):
    """accelerate.data_loader.DataLoaderShard"""

    def __init__(self, dataset, device=None, skip_batches=0, **kwargs):
        super().__init__(dataset, **kwargs)
        self.device, self.skip_batches = device, skip_batches

    def __iter__(self):
        yield from list(super().__iter__())[self.skip_batches :]


class Geometric(torch.utils.data.DataLoader):
    def __init__(self, dataset, batch_size=1, shuffle=False, follow_batch=None, **kwargs):
        self.follow_batch = follow_batch
        super().__init__(dataset, batch_size, shuffle, collate_fn=torch.cat, **kwargs)


if __name__ == "__main__":
    kinds = [kind for kind in all_subclasses(DataLoader) if "__init__" in kind.__dict__]
    originals = {kind: kind.__init__ for kind in kinds}
    for kind in kinds:
        kind.__init__ = wrapped(kind.__init__)
    loaders = [
        DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=1),
        Variadic(Numbers(), 4, num_workers=1, persistent_workers=True),
    ]
    for kind, init in originals.items():
        kind.__init__ = init
    for loader in loaders:
        again = made_anew(loader, DistributedSampler(loader.dataset, num_replicas=2, rank=1, shuffle=False))
        print(type(again).__name__, torch.cat(list(again)).flatten().tolist(), again.num_workers, again.persistent_workers)
    first = loaders[0]
    batches = BatchSampler(SequentialSampler(first.dataset), 4, False)
    shard = Shard(first.dataset, batch_sampler=batches, skip_batches=1, num_workers=first.num_workers, pin_memory=first.pin_memory)
    print([batch.flatten().tolist() for batch in shard], len(shard))
    print([batch.tolist() for batch in Geometric(Numbers(), batch_size=10, num_workers=1)])
