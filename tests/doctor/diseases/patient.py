"""What every patient shares: it says "ready {…}" on its standard output once it is in its disease, and then stays there.

The line that is to blame carries the comment `# <- here`; the test reads the line number from the source.
"""

from __future__ import annotations

import json
import os
import threading


def ready(**said: object) -> None:
    """One write, so that lines of several workers do not mix; `pid` is the caller unless said otherwise."""
    os.write(1, f"ready {json.dumps({'pid': os.getpid(), **said})}\n".encode())


def ready_soon(**said: object) -> None:
    """For a disease that begins in the caller's next line, where nothing of ours can run any more."""
    timer = threading.Timer(1.5, ready, kwargs=said)
    timer.daemon = True
    timer.start()


def worker_number() -> int:
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return -1 if info is None else info.id


def as_if_there_were_an_accelerator() -> None:
    """torch starts its pin-memory thread only where it knows one; "it is the CPU" is all that the thread needs to run."""
    import torch

    if torch.accelerator.is_available():
        return
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cpu")
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda device: None
