"""Samples so quick that a word in the journal for each would be felt: how far the worker is, is read in its own memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

import antifreeze
from antifreeze.errors import SampleLost, SampleTimeout
from antifreeze.worker import fetch, journal
from antifreeze.worker.journal import ALL_ROWS, Journal, Stage, Word, places_are_found

GUILTY, SAMPLES = 50_123, 60_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is with others while they are timed."""
    monkeypatch.setattr(fetch, "_QUICK_NS", 10**9)


class Quick(Dataset[int]):
    """One worker has loaded far more than _TIMED samples when it comes to the guilty one."""

    def __init__(self, crime: str) -> None:
        self.crime = crime

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        if index == GUILTY and self.crime:
            commit(self.crime)
        return index


def commit(crime: str) -> None:
    if crime == "hang":
        time.sleep(1000)
    elif crime == "exit":
        os._exit(3)
    elif crime == "raise":
        raise ValueError("spoilt")


@pytest.mark.parametrize(("crime", "error"), [("hang", SampleTimeout), ("exit", SampleLost), ("raise", ValueError)])
def test_the_guilty_one_is_named(crime: str, error: type[Exception]) -> None:
    with antifreeze.DataLoader(Quick(crime), batch_size=256, num_workers=1, sample_timeout_s=1.5) as loader:
        seen: list[int] = []
        with pytest.raises(error, match=r"50123|50,123"):
            for batch in loader:
                seen += batch.tolist()
        assert seen == list(range(GUILTY // 256 * 256))


def test_they_were_not_noted_one_by_one() -> None:
    """Else the tests here would show nothing: the row is told by the place, which the worker's last words still hold."""
    with antifreeze.DataLoader(Quick("hang"), batch_size=256, num_workers=1, sample_timeout_s=None, stall_report_s=None) as loader:
        batches = iter(loader)
        for _ in range(GUILTY // 256):
            next(batches)
        row = batches.pool.crew.journal.row(0)
        until_s = time.monotonic() + 100
        while row.read().index != GUILTY and time.monotonic() < until_s:
            time.sleep(0.01)
        assert row.words[Word.PLACE_AT] and row.words[Word.ROW] == row.words[Word.FIRST_ROW]
        assert (row.read().index, row.read().stage) == (GUILTY, Stage.FETCH)


def test_slow_ones_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_QUICK_NS", 0)
    with antifreeze.DataLoader(Quick("hang"), batch_size=256, num_workers=1, sample_timeout_s=1.5) as loader:
        batches = iter(loader)
        for _ in range(GUILTY // 256):
            next(batches)
        assert not batches.pool.crew.journal.row(0).words[Word.PLACE_AT]
        with pytest.raises(SampleTimeout, match=str(GUILTY)):
            next(batches)


def a_row(place: Any, pid: int) -> Any:
    book = Journal.create(1)
    row = book.row(0)
    row.words[Word.PID] = pid
    row.begin(7, 3, 1, 100, b"".join(number.to_bytes(8, "little") for number in (11, 22, 33, 44, 55)))
    row.stage(Stage.FETCH)
    row.at_place(place)
    return book, row


def test_how_far_it_is() -> None:
    assert places_are_found()
    place = iter([11, 22, 33, 44, 55])
    book, row = a_row(place, os.getpid())
    assert (row.read().row, row.read().index) == (ALL_ROWS, "[11, 22, 33, 44]"), "it has not begun"
    for number, index in enumerate(place):
        entry = row.read()
        assert (entry.row, entry.index) == (100 + number, index)
    row.begin(8, 3, 1, 200)
    assert row.read().row == 200
    book.close()


def test_who_is_dead_or_not_ours_to_read_was_at_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    place = iter([11, 22, 33, 44, 55])
    next(place)
    book, row = a_row(place, gone.pid)
    assert (row.read().row, row.read().index) == (ALL_ROWS, "[11, 22, 33, 44]")
    row.words[Word.PID], row.words[Word.PLACE_AT] = os.getpid(), 8
    assert row.read().row == ALL_ROWS
    book.close()


def test_another_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_PLACE_OFFSET", 0)
    assert not places_are_found.__wrapped__()


def test_the_stall_report_names_it(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        f"""
import os, time
import antifreeze
class Quick:
    def __len__(self): return {SAMPLES}
    def __getitem__(self, index):
        while index == {GUILTY} and not os.path.exists("said"): time.sleep(0.01)
        return index
for batch in antifreeze.DataLoader(Quick(), batch_size=256, num_workers=1, stall_report_s=1): pass
"""
    )
    with subprocess.Popen([sys.executable, program], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:  # the sample comes when it was named
            said.append(line)
            if f"sample {GUILTY}" in line:
                (tmp_path / "said").touch()
    assert process.returncode == 0, "".join(said)
    assert (tmp_path / "said").exists(), "".join(said)
