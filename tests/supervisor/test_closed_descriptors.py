"""Descriptors of the loader that somebody else closes, as code does that makes a daemon of its process.

As a program (in a process of its own: closing all descriptors is no fate for pytest) it does that under each kind of loader.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader, DescriptorsClosed

KINDS: list[dict[str, Any]] = [{}, {"persistent_workers": True}, {"workers": "thread"}, {"num_workers": 0}]


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((100_000,), index)


def run(given: dict[str, Any], files: list[Path]) -> None:
    """Each file is opened when all descriptors were closed: it has the number of one of them."""
    loader = DataLoader(Rows(), batch_size=4, **({"num_workers": 2} | given))
    iterator = iter(loader)
    seen = [next(iterator)[:, 0].tolist()]
    os.closerange(3, 4096)
    opened = [os.open(file, os.O_CREAT | os.O_RDWR) for file in files]
    for number in opened:
        os.write(number, b"mine")
    told = []
    while True:
        try:
            seen.append(next(iterator)[:, 0].tolist())
        except StopIteration:
            break
        except DescriptorsClosed as error:
            told.append(str(error))
    assert [index for batch in seen for index in batch] == list(range(64)), seen
    assert len(told) == 1 or (given.get("num_workers") == 0 and not told), told
    assert all("closed by other code of this process" in text and "what to do" in text for text in told)
    loader.close()
    assert [len(batch) for batch in loader] == [4] * 16
    loader.close()
    for number, file in zip(opened, files, strict=True):
        assert os.path.samestat(os.fstat(number), file.stat()), "it is still open"
        assert file.read_bytes() == b"mine"
        os.close(number)


def test_it_is_said_the_loop_goes_on_and_files_of_the_users_are_left_alone(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fine"] * 2 * len(KINDS), done.stderr


if __name__ == "__main__":
    for kind in KINDS:
        for count in (0, 40):
            folder = Path(sys.argv[1]) / f"{KINDS.index(kind)}-{count}"
            folder.mkdir()
            run(kind, [folder / str(number) for number in range(count)])
            print("fine", flush=True)
