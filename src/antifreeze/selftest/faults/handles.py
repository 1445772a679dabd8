"""Handles opened before the fork: workers share the offset, and read each other's bytes. Found at the start, and said."""

from __future__ import annotations

import os
import sqlite3
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from antifreeze.selftest.fault import SAMPLES, Expectation, Outcome, fault
from antifreeze.selftest.trial import Numbers, Trial, row

LINE = 64


def shared(name: str, what: str, source: str, said: str, **rest: Any) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    return fault(name, what, source, Expectation((Outcome.FINISHED, Outcome.ERROR), said=said), **rest)


class InFile(Numbers):
    """One fixed-width line per sample in an open file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "lines").write_text("".join(f"{index:<{LINE}}" for index in range(SAMPLES)))
        self.lines = open(folder / "lines", "rb", buffering=0)  # noqa: SIM115

    def __getitem__(self, index: int) -> Any:
        self.lines.seek(index * LINE)
        time.sleep(0.002)
        found = int(self.lines.read(LINE) or -1)
        return row(index) if found == index else row(index) + 1000


@shared(
    "file-opened-before-fork", "a file opened in `__init__`: workers move each other's position", "B3, FIELD 1.11", said=r"dataset\.lines"
)
def open_file(trial: Trial) -> None:
    dataset = InFile(trial.folder)
    try:
        trial.epoch(trial.loader(dataset))
    finally:
        dataset.lines.close()


class InZip(Numbers):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with zipfile.ZipFile(folder / "all.zip", "w") as archive:
            for index in range(SAMPLES):
                archive.writestr(str(index), f"{index} " * 20_000)
        self.archive = zipfile.ZipFile(folder / "all.zip")

    def __getitem__(self, index: int) -> Any:
        return row(int(self.archive.read(str(index)).split()[-1]))


@shared("zip-opened-before-fork", "a zip file opened in `__init__`", "B3, FIELD 1.11", said=r"dataset\.archive")
def open_zip(trial: Trial) -> None:
    dataset = InZip(trial.folder)
    try:
        trial.epoch(trial.loader(dataset))
    finally:
        dataset.archive.close()


class InSqlite(Numbers):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.base = sqlite3.connect(folder / "base.sqlite")
        self.base.execute("create table numbers (number integer)")
        self.base.executemany("insert into numbers values (?)", [(index,) for index in range(SAMPLES)])
        self.base.commit()

    def __getitem__(self, index: int) -> Any:
        return row(self.base.execute("select number from numbers where number = ?", (index,)).fetchone()[0])


@shared("sqlite-opened-before-fork", "an SQLite connection opened in `__init__`", "B3, FIELD 1.11", said=r"dataset\.base")
def open_sqlite(trial: Trial) -> None:
    dataset = InSqlite(trial.folder)
    try:
        trial.epoch(trial.loader(dataset))
    finally:
        dataset.base.close()


class InHdf5(Numbers):
    def __init__(self, folder: Path) -> None:
        import h5py  # type: ignore[import-not-found,import-untyped,unused-ignore]

        super().__init__(folder)
        with h5py.File(folder / "all.h5", "w") as file:
            file["numbers"] = list(range(SAMPLES))
        self.file = h5py.File(folder / "all.h5")

    def __getitem__(self, index: int) -> Any:
        return row(int(self.file["numbers"][index]))


@shared("hdf5-opened-before-fork", "an h5py.File opened in `__init__`", "FIELD 6: pt#11887", said=r"dataset\.file", needs=("h5py",))
def open_hdf5(trial: Trial) -> None:
    trial.epoch(trial.loader(InHdf5(trial.folder)))


class InLmdb(Numbers):
    def __init__(self, folder: Path) -> None:
        import lmdb  # type: ignore[import-not-found,import-untyped,unused-ignore]

        super().__init__(folder)
        self.environment = lmdb.open(str(folder / "lmdb"))
        with self.environment.begin(write=True) as transaction:
            for index in range(SAMPLES):
                transaction.put(str(index).encode(), str(index).encode())

    def __getitem__(self, index: int) -> Any:
        with self.environment.begin() as transaction:
            return row(int(transaction.get(str(index).encode()) or -1))


@shared(
    "lmdb-opened-before-fork",
    "an LMDB environment opened in `__init__`",
    "FIELD 6: py-lmdb#350",
    said=r"dataset\.environment",
    needs=("lmdb",),
)
def open_lmdb(trial: Trial) -> None:
    trial.epoch(trial.loader(InLmdb(trial.folder)))


class InOpenCv(Numbers):
    def __getitem__(self, index: int) -> Any:
        import cv2  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import numpy as np

        cv2.GaussianBlur(np.zeros((2000, 2000, 3), np.uint8), (31, 31), 5)
        return row(index)


@fault(
    "opencv-used-before-fork", "OpenCV's thread pool used in the parent, then in a worker", "FIELD 6: pt#1838", needs=("cv2",), limit_s=30
)
def opencv(trial: Trial) -> None:
    dataset = InOpenCv(trial.folder)
    dataset[0]
    trial.epoch(trial.loader(dataset))


POOL = ThreadPoolExecutor(1)


class UsesPool(Numbers):
    def __getitem__(self, index: int) -> Any:
        return row(POOL.submit(int, index).result())


@fault(
    "thread-pool-used-before-fork",
    "a module's thread pool used in the parent: after a fork its threads are not there",
    "FIELD 6: pt#1579, tokenizers#187",
    limit_s=30,
)
def thread_pool(trial: Trial) -> None:
    POOL.submit(os.getpid).result()
    try:
        trial.epoch(trial.loader(UsesPool(trial.folder)))
    finally:
        POOL.shutdown()
