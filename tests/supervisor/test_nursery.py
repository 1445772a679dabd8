"""Among many workers, those after the first come from a nursery: whatever becomes of it, every sample comes once, and nothing is left."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from antifreeze import DataLoader
from antifreeze.supervisor import nursery
from antifreeze.supervisor.nursery import FORKED_HERE

WORKERS, COUNT = 7, 280
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Numbers(Dataset[Any]):
    """No sample comes before as many workers as are awaited have one: each gets its share, however late it was born."""

    stage = 0

    def __init__(self, workers: int = WORKERS) -> None:
        self.there = mmap.mmap(-1, WORKERS + 1)
        self.wait_for(workers)

    def wait_for(self, workers: int) -> None:
        """From now on: those that came before do not count."""
        self.there[:] = bytes([0] * WORKERS + [workers])

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[int, int, int, int, int]:
        info = get_worker_info()
        assert info is not None
        self.there[info.id] = 1
        while sum(self.there[:WORKERS]) < self.there[WORKERS]:
            time.sleep(0.001)
        return index, info.id, os.getppid(), self.stage, int(torch.randint(1 << 30, ()))


def loaded(loader: DataLoader[Any], change: Any = None) -> dict[int, list[int]]:
    """Worker, its parent, the stage it saw and its random number, by index."""
    batches = iter(loader)
    if change is not None:
        change(batches)
    return {row[0]: row[1:] for batch in batches for row in torch.stack(list(batch), 1).tolist()}


def test_first_workers_are_forked_here_the_others_by_a_process_that_ends_with_them() -> None:
    loader = DataLoader(Numbers(), 4, num_workers=WORKERS)
    rows = loaded(loader)
    assert list(rows) == list(range(COUNT))
    parents = {worker: parent for worker, parent, _, _ in rows.values()}
    assert set(parents) == set(range(WORKERS))
    assert [parents[worker] == os.getpid() for worker in range(WORKERS)] == [worker < FORKED_HERE for worker in range(WORKERS)]
    assert len(set(parents.values())) == 2
    loader.close()
    assert not any(is_there(parent) for parent in parents.values() if parent != os.getpid())


def test_few_workers_need_none() -> None:
    with DataLoader(Numbers(FORKED_HERE + 2), 4, num_workers=FORKED_HERE + 2) as loader:
        assert {parent for _, parent, _, _ in loaded(loader).values()} == {os.getpid()}


def test_all_workers_see_the_data_set_as_it_was_when_the_epoch_began() -> None:
    numbers = Numbers()

    def change(_: Any) -> None:
        numbers.stage = 1

    with DataLoader(numbers, 4, num_workers=WORKERS) as loader:
        assert {stage for _, _, stage, _ in loaded(loader, change).values()} == {0}
        assert {stage for _, _, stage, _ in loaded(loader).values()} == {1}


def test_random_numbers_are_those_of_any_other_worker_count() -> None:
    torch.manual_seed(5)
    with DataLoader(Numbers(1), 4, num_workers=1) as loader:
        alone = [row[3] for row in loaded(loader).values()]
    torch.manual_seed(5)
    with DataLoader(Numbers(), 4, num_workers=WORKERS) as loader:
        assert [row[3] for row in loaded(loader).values()] == alone


def test_who_is_born_in_a_later_epoch_works_for_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(6)
    with DataLoader(Numbers(1), 4, num_workers=1, persistent_workers=True) as loader:
        alone = [[row[3] for row in loaded(loader).values()] for _ in range(3)]
    with monkeypatch.context() as held:
        held.setattr(nursery.Nursery, "take", lambda self: [])  # nobody is taken in during the first epoch
        torch.manual_seed(6)
        numbers = Numbers(FORKED_HERE)
        loader = DataLoader(numbers, 4, num_workers=WORKERS, persistent_workers=True)
        first = loaded(loader)
    numbers.wait_for(WORKERS)
    assert {worker for worker, _, _, _ in first.values()} == set(range(FORKED_HERE))
    later = [loaded(loader) for _ in range(2)]
    assert {worker for rows in later for worker, _, _, _ in rows.values()} == set(range(WORKERS))
    assert [[row[3] for row in rows.values()] for rows in (first, *later)] == alone
    loader.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=lambda how: how.name)
def test_nursery_that_ends_or_stands_still_is_done_without(how: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "PATIENCE_S", 0.3)

    def strike(batches: Any) -> None:
        os.kill(nursery_of(batches), how)

    with DataLoader(Numbers(), 4, num_workers=WORKERS) as loader:
        rows = loaded(loader, strike)
        assert list(rows) == list(range(COUNT))
        assert {worker for worker, _, _, _ in rows.values()} == set(range(WORKERS))
        assert loader.report().restarts == 0


def test_end_of_a_worker_from_the_nursery_is_explained_and_made_good() -> None:
    with DataLoader(Numbers(), 4, num_workers=WORKERS) as loader:
        batches = iter(loader)
        seen: list[Any] = []
        crew = batches.pool.crew  # type: ignore[attr-defined]
        while (victim := crew.workers[WORKERS - 1]) is None:
            seen.append(next(batches))
        os.kill(victim.pid, signal.SIGKILL)
        seen += list(batches)
        assert [index for batch in seen for index in batch[0].tolist()] == list(range(COUNT))
        story = loader.report().story
        assert any(f"worker {WORKERS - 1} (pid {victim.pid}) was ended by SIGKILL" in line for line in story), story


class Counting(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        yield from range(info.id, COUNT, info.num_workers)


def test_streams_of_workers_that_come_later() -> None:
    with DataLoader(Counting(), 4, num_workers=WORKERS) as loader, DataLoader(Counting(), 4, num_workers=1) as alone:
        assert sorted(index for batch in loader for index in batch.tolist()) == list(range(COUNT))
        assert [index for batch in alone for index in batch.tolist()] == list(range(COUNT))


PARENT = f"""
import os, signal, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_nursery import Numbers, nursery_of
from antifreeze import DataLoader
batches = iter(DataLoader(Numbers(), 4, num_workers={WORKERS}))
for _ in range(20):
    next(batches)
crew = batches.pool.crew
print(nursery_of(batches), *[worker.pid for worker in crew.workers if worker is not None], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_all_end_when_the_parent_is_killed() -> None:
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    deadline = time.monotonic() + 100
    while any(map(is_there, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) > FORKED_HERE + 1
    assert not [pid for pid in pids if is_there(pid)]


def nursery_of(batches: Any) -> int:
    found = batches.pool.crew.nursery
    assert found is not None
    return int(found._process.pid)


def is_there(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
