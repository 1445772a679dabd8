"""Descriptors of the loader that somebody else closes, as code does that makes a daemon of its process."""

from __future__ import annotations

import os
import resource
import traceback
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader, DescriptorsClosed


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((100_000,), index)


def open_files(folder: Path, count: int) -> list[int]:
    return [os.open(folder / str(number), os.O_CREAT | os.O_RDWR) for number in range(count)]


def in_child(test: Any, told: Path) -> None:
    """What closes descriptors wholesale is better not done to pytest itself."""
    child = os.fork()
    if not child:
        try:
            resource_tracker._resource_tracker._fd = None  # type: ignore[attr-defined] # of an earlier test: it would write to our files
            test()
            os._exit(0)
        except BaseException:
            told.write_text(traceback.format_exc())
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, told.read_text()


@pytest.mark.parametrize("reused", [True, False], ids=["and files of the user's have their numbers", "and nobody has their numbers"])
@pytest.mark.parametrize("given", [{}, {"persistent_workers": True}, {"workers": "thread"}, {"num_workers": 0}], ids=str)
def test_it_is_said_and_the_loop_may_go_on(given: dict[str, Any], reused: bool, tmp_path: Path) -> None:
    def run() -> None:
        loader = DataLoader(Rows(), batch_size=4, **({"num_workers": 2} | given))
        iterator = iter(loader)
        seen = [next(iterator)[:, 0].tolist()]
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.closerange(3, min(soft, 4096))
        files = open_files(tmp_path, 40) if reused else []
        for file in files:
            os.write(file, b"mine")
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
        for number, file in enumerate(files):
            assert os.path.samestat(os.fstat(file), os.stat(tmp_path / str(number))), "it is still open"
            assert (tmp_path / str(number)).read_bytes() == b"mine"

    in_child(run, tmp_path / "told")
