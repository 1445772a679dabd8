"""A worker in uninterruptible sleep, for real: it writes to a file system that is frozen. Not even SIGKILL ends it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

from antifreeze import DataLoader
from antifreeze.supervisor.process import WorkerProcess

COUNT, STUCK = 40, 23


class Frozen:
    """A file system of its own that holds everybody who writes to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Frozen:
        subprocess.run(["fsfreeze", "-f", self.folder], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()

    def thaw(self) -> None:
        subprocess.run(["fsfreeze", "-u", self.folder], check=False, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("mkfs.ext4", "fsfreeze", "mount", "umount"))):
        pytest.skip("needs root, mkfs.ext4 and fsfreeze")
    image, folder = tmp_path / "image", tmp_path / "disk"
    image.write_bytes(bytes(8 << 20))
    folder.mkdir()
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, folder], check=False, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


class Writes(Dataset[int]):
    def __init__(self, folder: Path) -> None:
        self.file = folder / "file"

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        if index == STUCK:
            self.file.touch()
        return index


def states() -> list[str]:
    """Of this process's children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return sorted(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in children)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("workers", [2, 6], ids=["forked here", "from the nursery too"])
def test_it_is_left_behind_named_and_replaced_and_reaped_when_it_ends_after_all(
    workers: int, disk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(WorkerProcess, "patience_s", 0.5)
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork", "warm_epochs": False}
    loader = DataLoader(Writes(disk), 5, on_bad_sample="skip", sample_timeout_s=1, **options)
    with Frozen(disk):
        came = [int(index) for batch in loader for index in batch]
        assert sorted(came) == [index for index in range(COUNT) if index != STUCK]
        assert loader.report().bad_samples[0].index == str(STUCK)
        told = capfd.readouterr().err
        assert "cannot be ended and is left behind" in told
        assert "uninterruptible sleep" in told
        assert str(disk / "file") in told
        began_s = time.monotonic()
        loader.close()
        assert time.monotonic() - began_s < 5
    while states():
        loader.close()  # as anything that is done with a loader
        time.sleep(0.01)
