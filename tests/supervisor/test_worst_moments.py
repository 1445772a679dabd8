"""Workers that are killed at the worst moments: each sample must come exactly once, in order, with the right bytes all the same.

Every so often a worker kills itself, by SIGKILL, just before or just after it sends, receives, takes over descriptors, maps memory,
writes rows, starts or stops. The calls are counted over all workers, in shared memory, so that a run is nearly the same each time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader
from antifreeze.channel.channel import Channel
from antifreeze.slots.arena import Arena
from antifreeze.supervisor import blame
from antifreeze.worker import main
from antifreeze.worker.fetch import MapFetcher
from antifreeze.worker.journal import JournalRow
from antifreeze.worker.making import SampleMaker

COUNT, BATCH = 1200, 8
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.arange(64) * index


def as_objects(samples: list[Any]) -> dict[str, Any]:
    return {"index": [index for index, _ in samples], "rows": torch.stack([row for _, row in samples])}


class Killer:
    """Ends whoever makes every n-th call to a function, unless that is the parent.

    Each call appends a byte to a file, which is atomic: two workers that call at the same moment are two numbers.
    """

    def __init__(self, every: int, calls: Path) -> None:
        self.every = every
        self.last = 10**9
        self.parent = os.getpid()
        self.calls = calls
        calls.touch()

    def strike(self) -> None:
        if os.getpid() == self.parent:
            return
        calls = os.open(self.calls, os.O_WRONLY | os.O_APPEND)
        os.write(calls, b".")
        number = os.lseek(calls, 0, os.SEEK_CUR)
        os.close(calls)
        if number % self.every == 0 and number <= self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def kills(self) -> int:
        return min(self.calls.stat().st_size, self.last) // self.every

    def around(self, call: Callable[..., Any], when: str) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if when == "before":
                self.strike()
            result = call(*arguments, **named)
            if when == "after":
                self.strike()
            return result

        return watched


MOMENTS: dict[str, tuple[Any, str, int]] = {
    "sending": (Channel, "send", 41),
    "receiving": (Channel, "receive", 37),
    "beginning to live": (main, "settle_in", 3),
    "tying itself to its parent": (main, "die_with_parent", 3),
    "being initialised": (main.ProcessWorker, "_initialise", 3),
    "beginning a task": (MapFetcher, "load", 19),
    "writing rows": (SampleMaker, "write_rows", 23),
    "writing a parcel": (SampleMaker, "pack", 17),
    "mapping memory": (Arena, "map", 5),
    "noting what it does": (JournalRow, "stage", 101),
}


def take(parcels: bool, **options: Any) -> tuple[list[int], DataLoader[Any]]:
    loader = DataLoader(
        Numbers(),
        BATCH,
        num_workers=2,
        collate_fn=as_objects if parcels else None,
        multiprocessing_context="fork",
        max_restarts_per_minute=10_000,
        timeout=100,
        **options,
    )
    seen: list[int] = []
    for batch in loader:
        indices, rows = (batch["index"], batch["rows"]) if parcels else (batch[0].tolist(), batch[1])
        assert torch.equal(rows, torch.tensor(indices)[:, None] * torch.arange(64))
        seen += indices
    return seen, loader


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_while(moment: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, every = MOMENTS[moment]
    killer = Killer(every, tmp_path / "calls")
    monkeypatch.setattr(owner, name, killer.around(getattr(owner, name), when))
    monkeypatch.setattr(blame, "STRIKES", 10**6)  # where cores are scarce, three kills may meet the same batch
    parcels = moment == "writing a parcel"
    options = {"persistent_workers": True} if name == "receive" else {}
    seen, loader = take(parcels, **options)
    assert seen == list(range(COUNT))
    if name in ("settle_in", "die_with_parent", "_initialise"):
        seen_again = [index for _ in range(3) for index in take(parcels)[0]]  # more starts, and so more chances to die at one
        assert seen_again == list(range(COUNT)) * 3
    loader.close()
    assert killer.kills >= 1, "nobody was killed, so nothing was shown"


@pytest.mark.parametrize("name", ["settle_in", "die_with_parent"])
def test_one_start_after_the_other_is_killed_from_outside(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That says nothing about the next one: only workers that end by themselves are a reason to give up."""
    killer = Killer(1, tmp_path / "calls")
    killer.last = 12
    monkeypatch.setattr(main, name, killer.around(getattr(main, name), "after"))
    seen, loader = take(parcels=False)
    assert seen == list(range(COUNT))
    assert loader.report().restarts == killer.kills == 12


class ClosesTheLine(Numbers):
    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if index == 777:
            os.closerange(3, 4096)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sample_after_which_nothing_can_be_sent_is_found_among_its_batch(workers: int) -> None:
    """The slots are mapped by then, so that the worker comes as far as its answer, and dies of that."""
    loader = DataLoader(ClosesTheLine(), BATCH, num_workers=workers, on_bad_sample="skip", multiprocessing_context="fork", timeout=100)
    seen = [index for batch in loader for index in batch[0].tolist()]
    assert sorted(seen) == [index for index in range(COUNT) if index != 777]
    assert [bad.failure.index for bad in loader.report().bad_samples] == ["777"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_the_loader_stops(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker dies of the very message that tells it to end, or of the one before; closing is bounded and leaves nothing."""
    killer = Killer(7, tmp_path / "calls")
    monkeypatch.setattr(Channel, "receive", killer.around(Channel.receive, when))
    for batches in range(12):
        loader = DataLoader(Numbers(), BATCH, num_workers=2, multiprocessing_context="fork", max_restarts_per_minute=10_000)
        iterator = iter(loader)
        seen = [index for _ in range(batches) for index in next(iterator)[0].tolist()]
        assert seen == list(range(batches * BATCH))
        loader.close()
    assert killer.kills >= 1
