"""The file behind a sample: from the lists that data sets have, and from the descriptors of a worker."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset

from antifreeze.supervisor.observe import open_files
from antifreeze.supervisor.sample_path import path_of


class Listed(Dataset[Any]):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("nobody may load a sample to name it")


class OnDisk:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> str:
        raise AssertionError("nobody may read from the disk to name a sample")


PATHS = ["a.jpg", "b.jpg", "c.jpg"]


@pytest.mark.parametrize(
    ("dataset", "index", "path"),
    [
        (Listed(samples=[(path, 0) for path in PATHS]), 1, "b.jpg"),
        (Listed(paths=PATHS), 2, "c.jpg"),
        (Listed(files=[Path(path) for path in PATHS]), 0, "a.jpg"),
        (Listed(filenames=np.array(PATHS)), 1, "b.jpg"),
        (Listed(imgs=[path.encode() for path in PATHS]), 1, "b.jpg"),
        (Subset(Listed(paths=PATHS), [2, 0]), 0, "c.jpg"),
        (ConcatDataset([Listed(), Listed(paths=PATHS)]), 4, "b.jpg"),
        (Listed(dataset=Listed(paths=PATHS)), 1, "b.jpg"),
        (Listed(paths=PATHS), -1, None),
        (Listed(paths=PATHS), 3, None),
        (Listed(paths=PATHS), "b", None),
        (Listed(paths=PATHS[:2]), 1, None),  # not one for each sample
        (Listed(samples=[1, 2, 3]), 1, None),
        (Listed(paths="abc"), 1, None),
        (Listed(images=OnDisk()), 1, None),
        (Listed(images=np.zeros((3, 4))), 1, None),
        (Listed(), 1, None),
        (SimpleNamespace(paths=PATHS), 1, None),
        ([1, 2, 3], 1, None),
    ],
)
def test_path_of(dataset: Any, index: Any, path: str | None) -> None:
    assert path_of(dataset, index) == path


def test_lists_that_fail_are_no_matter() -> None:
    class Broken(list[str]):
        def __getitem__(self, index: Any) -> Any:
            raise OSError("gone")

    assert path_of(Listed(paths=Broken(PATHS)), 1) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_files_another_process_has_open_and_this_one_has_not(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.touch()
    own.touch()
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()

    def body() -> None:
        with own.open():
            ready.set()
            end.wait(30)

    with shared.open():
        process = context.Process(target=body)
        process.start()
        try:
            assert ready.wait(30)
            assert process.pid is not None
            assert open_files(process.pid) == [str(own)]
        finally:
            end.set()
            process.join()
    process.close()
    assert open_files(2**22) == []
