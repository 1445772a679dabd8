"""A process with more than 1024 files open: their numbers are too high for select(), and nothing else about them is special."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import antifreeze
from antifreeze.supervisor.nursery import FORKED_HERE

TOO_HIGH = 1024
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * TOO_HIGH:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * TOO_HIGH, hard))
    opened: list[int] = []
    while not opened or opened[-1] < TOO_HIGH:
        opened.append(os.open(os.devnull, os.O_RDONLY))
    yield
    for number in opened:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class EndsOnce(Dataset[Any]):
    """One sample kills its worker, the first time."""

    def __init__(self, folder: Path) -> None:
        self.been_there = folder / "been there"

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> int:
        if index == 20 and not self.been_there.exists():
            self.been_there.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.parametrize("from_server", [False, True], ids=["forked here and in the nursery", "from the clean server"])
def test_workers_come_end_and_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_server: bool) -> None:
    if from_server:  # what Python 3.14 says by itself
        monkeypatch.setattr(torch.multiprocessing, "get_start_method", lambda: "forkserver")
    with antifreeze.DataLoader(EndsOnce(tmp_path), batch_size=4, num_workers=FORKED_HERE + 4) as loader:
        assert [batch.tolist() for batch in loader] == [list(range(first, first + 4)) for first in range(0, 48, 4)]
        assert loader.report().restarts == 1


def test_the_live_check_asks_its_forked_copy(tmp_path: Path) -> None:
    (tmp_path / "been there").touch()
    found = antifreeze.check(EndsOnce(tmp_path))
    assert "select" not in str(found)
    assert not found.findings
