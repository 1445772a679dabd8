"""Where open files run out while workers start: an error that says so, and nothing left behind."""

from __future__ import annotations

import gc
import os
import resource
from typing import Any

import pytest

import antifreeze
from antifreeze.errors import WorkerStartFailed
from antifreeze.slots.ring import Ring

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) - 1  # less the one that lists them


def children() -> list[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()


def load_with_room_for(files: int, loader: Any) -> str | None:
    """What is said; None where all batches came."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir("/proc/self/fd")))
    free = [number for number in range(max(taken) + files + 2) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[files], hard))
    try:
        batches = [batch.tolist() for batch in loader]
    except WorkerStartFailed as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert batches == [[first, first + 1] for first in range(0, 32, 2)]
    return None


@pytest.mark.parametrize("num_workers", [3, 7])
def test_an_error_that_says_so_and_nothing_left(num_workers: int) -> None:
    Ring().close()
    before, said = (open_files(), children()), []
    for files in range(4, 80, 5):
        loader = antifreeze.DataLoader(range(32), batch_size=2, num_workers=num_workers)
        said.append(load_with_room_for(files, loader))
        loader.close()
        gc.collect()
        assert (open_files(), children()) == before, f"with room for {files} files, after {said[-1]!r}"
        if said[-1] is None:
            break
    assert said[-1] is None, "with enough of them it works"
    assert len(said) > 3
    assert all("could not be started" in text and "ulimit -n" in text for text in said[:-1] if text is not None)
