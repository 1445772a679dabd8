"""What the report counts of real runs: page faults and context switches, in workers and in the loop's process; and copies of batches."""

from __future__ import annotations

import mmap
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader
from antifreeze.delivery import local_pool
from antifreeze.report import Report
from antifreeze.slots.ring import MAX_LENT
from antifreeze.worker import effort

PAGES, SAMPLES, ROWS = 1000, 48, 4
BATCHES = SAMPLES // ROWS
OTHERS = 150
"""Faults a sample that are not the data set's: a worker that has just begun touches what it inherited for the first time."""


class Touches(Dataset[torch.Tensor]):
    """Fresh memory for every sample; once, in the middle, the end of its worker."""

    def __init__(self, dies_at: int | None = None, folder: Path | None = None) -> None:
        self.dies_at = dies_at
        self.folder = folder

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.dies_at and self.folder is not None and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                fresh.madvise(mmap.MADV_NOHUGEPAGE)
            fresh[:: mmap.PAGESIZE] = bytes(PAGES)
        return torch.tensor(index)


class Sleeps(Touches):
    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        return torch.tensor(index)


class Raises(Sleeps):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise ValueError("this one")
        return torch.tensor(index)


def ran(dataset: Any, epochs: int = 1, **given: Any) -> Report:
    """After its workers were ended: they have looked a last time."""
    with DataLoader(dataset, ROWS, **given) as loader:
        for _ in range(epochs):
            for _ in loader:
                pass
    return loader.report()


def assert_all_counted(report: Report, samples: int) -> None:
    assert PAGES * samples <= report.worker_faults <= (PAGES + OTHERS) * samples, report


# --- page faults and context switches ---


def test_faults_of_workers_are_counted_over_epochs_with_new_workers_in_each() -> None:
    report = ran(Touches(), epochs=2, num_workers=2)
    assert report.worker_samples == 2 * SAMPLES
    assert_all_counted(report, 2 * SAMPLES)
    assert report.own_batches == 2 * (BATCHES - 1)
    assert report.own_faults < PAGES * report.own_batches, "those of workers are not the loop's"


def test_faults_of_workers_that_stay_are_counted_once() -> None:
    report = ran(Touches(), epochs=3, num_workers=2, persistent_workers=True, warm_epochs=False)
    assert report.worker_samples == 3 * SAMPLES
    assert_all_counted(report, 3 * SAMPLES)


def test_a_report_in_between_sees_workers_that_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "LOOK_EVERY_NS", 0)
    with DataLoader(Touches(), ROWS, num_workers=2, persistent_workers=True, warm_epochs=False) as loader:
        for _ in loader:
            pass
        before = loader.report()
        assert_all_counted(before, SAMPLES)
    assert loader.report().worker_faults - before.worker_faults < PAGES


def test_without_workers_they_are_the_loops() -> None:
    report = ran(Touches(), num_workers=0)
    assert (report.worker_samples, report.worker_faults, report.own_batches) == (0, 0, BATCHES - 1)
    assert PAGES * ROWS <= report.own_faults / report.own_batches <= (PAGES + OTHERS) * ROWS


def test_those_of_threads_are_the_process_s() -> None:
    report = ran(Touches(), num_workers=2, workers="thread")
    assert (report.worker_samples, report.worker_faults) == (0, 0)
    assert report.own_faults >= PAGES * ROWS * report.own_batches // 2, "some may be loaded before the first batch is there"


def test_what_was_counted_of_a_worker_outlives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "LOOK_EVERY_NS", 0)  # or tasks of its last 20 ms would be missing
    report = ran(Touches(dies_at=30, folder=tmp_path), num_workers=2, multiprocessing_context="fork")
    assert (report.restarts, report.samples) == (1, SAMPLES)
    assert report.worker_samples >= SAMPLES
    assert PAGES * SAMPLES <= report.worker_faults <= (PAGES + OTHERS) * report.worker_samples + PAGES * ROWS


def test_with_auto_workers_that_wait_for_the_next_epoch_are_counted_once() -> None:
    report = ran(Touches(), epochs=3, num_workers="auto", sample_timeout_s=60)
    assert report.worker_samples >= 3 * SAMPLES
    assert_all_counted(report, report.worker_samples)


def test_with_auto_what_the_loop_loads_is_not_the_workers() -> None:
    report = ran(Touches(), epochs=3, num_workers="auto")
    assert PAGES * report.worker_samples <= report.worker_faults <= (PAGES + OTHERS) * (report.worker_samples + SAMPLES)
    assert report.as_rows + report.as_parcels + report.as_made == report.batches == 3 * BATCHES


def test_a_loop_that_is_left_early_has_counted_the_same_batches_as_faults() -> None:
    loader = DataLoader(Touches(), ROWS)
    for number, _ in enumerate(loader):
        if number == 10:
            break
    held = b"x" * (50 * PAGES * mmap.PAGESIZE)  # between two epochs: nobody's
    for _ in loader:
        pass
    report = loader.report()
    assert held and report.own_batches == 8 + BATCHES - 1, "up to its ninth batch, which is the last look, without the first"
    assert PAGES * ROWS <= report.own_faults / report.own_batches <= (PAGES + OTHERS) * ROWS


@pytest.mark.parametrize("workers", [0, 2])
def test_whoever_sleeps_gives_its_core_away(workers: int) -> None:
    report = ran(Sleeps(), num_workers=workers)
    switches = report.worker_switches / SAMPLES if workers else report.own_switches / report.own_batches / ROWS
    assert switches >= 1, report


# --- copies ---


def as_text(samples: list[torch.Tensor]) -> dict[str, Any]:
    return {"names": [str(int(sample)) for sample in samples], "values": torch.stack(samples)}


def copies(report: Report) -> tuple[int, int, int, int]:
    assert report.as_rows + report.as_parcels + report.as_made == report.batches
    return report.as_rows, report.as_parcels, report.as_made, report.copied_out


def test_rows_parcels_and_what_is_handed_over_as_made() -> None:
    assert copies(ran(Sleeps(), num_workers=2)) == (BATCHES, 0, 0, 0)
    assert copies(ran(Sleeps(), num_workers=2, collate_fn=as_text)) == (0, BATCHES, 0, 0)
    assert copies(ran(Sleeps(), num_workers=0)) == (0, 0, BATCHES, 0)
    assert copies(ran(Sleeps(), num_workers=0, on_bad_sample="skip")) == (0, 0, BATCHES, 0)
    assert copies(ran(Sleeps(), num_workers=2, workers="thread", collate_fn=as_text)) == (0, 0, BATCHES, 0)


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_without_workers_a_large_batch_in_a_slot_is_as_it_was_made_too(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setattr(local_pool, "SLOT_PAYS_BYTES", 0)
    with DataLoader(Sleeps(), ROWS, on_bad_sample=policy) as loader:
        for batch in loader:
            assert batch.data_ptr() % mmap.PAGESIZE == 0, "it is in a slot"
    assert copies(loader.report()) == (0, 0, BATCHES, 0)


def test_whoever_keeps_many_batches_has_them_copied_out_of_their_slots() -> None:
    with DataLoader(torch.arange(4 * (MAX_LENT + 10)), 4, num_workers=1) as loader:
        kept = list(loader)
    assert copies(loader.report()) == (len(kept), 0, 0, 10)


def test_a_batch_without_its_bad_rows_is_copied() -> None:
    assert copies(ran(Raises(), num_workers=2, on_bad_sample="skip", keep_batches_full=False)) == (BATCHES, 0, 0, 1)
