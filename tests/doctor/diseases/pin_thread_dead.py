"""The pin-memory thread dies of what it was given (a batch that cannot be unpickled), and timeout= makes torch wait for it all the same.

Without a timeout torch sees within five seconds that the thread is gone, and raises. On a machine without an accelerator torch starts
no such thread; so the patient says that it has one, which is all that the thread needs.
"""

from patient import as_if_there_were_an_accelerator, ready_soon
from torch.utils.data import DataLoader, Dataset

as_if_there_were_an_accelerator()


def open_again(path):
    ready_soon()
    raise OSError(f"{path} is not there any more")


class Reader:
    def __reduce__(self):
        return open_again, ("shard-017.tar",)


class Texts(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return Reader() if index == 403 else "text"


def as_list(samples):
    return samples


if __name__ == "__main__":
    for _batch in DataLoader(Texts(), batch_size=4, num_workers=2, collate_fn=as_list, pin_memory=True, timeout=3600):  # <- here
        pass
