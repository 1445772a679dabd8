"""A worker is killed half-way through sending a batch, the loop catches torch's error and goes on: the rest of that message never comes.

torch raises at once when a worker dies ("worker exited unexpectedly"). Loops that survive it (`except RuntimeError: continue`) then
freeze: the pipe holds half a message, and every other worker waits for the queue's lock, which the dead one took with it.
"""

import os
import pathlib
import signal
import time

from patient import ready_soon, worker_number
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return {"worker": worker_number(), "pid": os.getpid(), "text": "x" * 4_000_000 if worker_number() == 0 else "x"}


def first(samples):
    return samples[0]


def is_sending(pid):
    return any("pipe_write" in wchan.read_text() for wchan in pathlib.Path(f"/proc/{pid}/task").glob("*/wchan"))


if __name__ == "__main__":
    batches = iter(DataLoader(Texts(), batch_size=1, num_workers=2, collate_fn=first))
    victim = next(batches)["pid"]
    next(batches)
    try:
        while not is_sending(victim):  # a training step, in which worker 0 fills its pipe
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)
        time.sleep(60.0)
    except RuntimeError as error:
        print(f"ignored: {error}", flush=True)
    ready_soon(victim=victim)
    for _batch in batches:  # <- here
        pass
