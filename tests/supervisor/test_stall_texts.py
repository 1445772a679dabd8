"""What a stall report and the errors of a whole batch say, of real workers that are stuck."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from antifreeze import DataLoader
from antifreeze.errors import SampleTimeout
from antifreeze.supervisor.observe import kept_from

FOREVER_S = 1000
COUNT, BATCH, STUCK = 16, 4, 9


def in_the_background() -> None:
    time.sleep(FOREVER_S)


class StuckInSecondEpoch(Dataset[Any]):
    """Opens a pipe that nobody writes to, once the loop says so, while another thread of the worker sleeps."""

    def __init__(self, pipe: Path) -> None:
        self.pipe = pipe
        self.flag = torch.zeros(1).share_memory_()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        if index == STUCK and self.flag.item():
            threading.Thread(target=in_the_background, daemon=True).start()
            open(self.pipe).close()
        return index


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_stall_report_names_the_batch_of_this_epoch_the_file_and_all_threads(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    dataset = StuckInSecondEpoch(pipe)
    options: dict[str, Any] = {"stall_report_s": 0.5, "sample_timeout_s": 3.0, "multiprocessing_context": "fork"}
    with DataLoader(dataset, BATCH, num_workers=2, persistent_workers=True, on_bad_sample="skip", **options) as loader:
        assert sum(map(len, loader)) == COUNT
        capfd.readouterr()  # of workers that are long in coming, where the machine is busy
        dataset.flag[0] = 1
        assert sum(map(len, loader)) == COUNT - 1
    said = capfd.readouterr().err
    assert f"s for batch {STUCK // BATCH}\n" in said
    assert f"in sample {STUCK} of batch {STUCK // BATCH} (fetch)" in said
    assert f"openat() on {pipe}" in said
    assert "in __getitem__" in said
    assert "in in_the_background" in said
    assert "could not be had" not in said


class StuckTogether(StuckInSecondEpoch):
    def __getitems__(self, indices: list[int]) -> list[int]:
        if STUCK in indices and len(indices) > 1:
            time.sleep(FOREVER_S)
        return indices


def test_the_error_of_a_whole_batch_does_not_advise_to_skip_what_is_skipped_already(tmp_path: Path) -> None:
    dataset = StuckTogether(tmp_path)
    with (
        DataLoader(dataset, BATCH, num_workers=1, on_bad_sample="skip", sample_timeout_s=0.5) as loader,
        pytest.raises(SampleTimeout, match=r"of samples \[8, 9, 10, 11\]") as caught,
    ):
        list(loader)
    assert "on_bad_sample does not apply" in str(caught.value)


class RaisesMidway(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        yield from range(BATCH + 2)
        raise ValueError("midway")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_that_raises_says_what_is_lost_and_that_it_is_over(num_workers: int) -> None:
    with DataLoader(RaisesMidway(), BATCH, num_workers=num_workers) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == list(range(BATCH))
        with pytest.raises(ValueError, match="midway") as caught:
            next(iterator)
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    if num_workers or hasattr(caught.value, "__notes__"):
        assert "batch 1 of stream 0" in said
        assert "2 samples" in said
        assert "stream 0 ends here" in said


def test_a_fresh_process_is_neither_ended_by_a_stall_report_nor_by_a_samples_deadline(capfd: pytest.CaptureFixture[str]) -> None:
    """Before it has imported torch it has no handler that would tell its stacks: asked for them by a signal, it would end."""
    numbers = torch.arange(BATCH)
    with DataLoader(numbers, BATCH, num_workers=1, multiprocessing_context="spawn", stall_report_s=0.1, sample_timeout_s=0.8) as loader:
        assert [batch.tolist() for batch in loader] == [numbers.tolist()]
        assert loader.report().restarts == 0
    assert "has been starting" in capfd.readouterr().err


class Locked(StuckInSecondEpoch):
    """Waits for a file lock that the loop's own process has."""

    def __getitem__(self, index: int) -> int:
        if index == STUCK:
            with open(self.pipe / "lock", "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
        return index


def test_who_waits_for_a_file_lock_is_told_who_has_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with open(tmp_path / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        given: dict[str, Any] = {"on_bad_sample": "skip", "stall_report_s": 0.2, "sample_timeout_s": 2}
        with DataLoader(Locked(tmp_path), BATCH, num_workers=1, **given) as loader:
            list(loader)
    said = capfd.readouterr().err
    assert f"in the system call flock() on {tmp_path / 'lock'}" in said
    assert f"process {os.getpid()} has that lock" in said


class Stopping(StuckInSecondEpoch):
    def __getitem__(self, index: int) -> int:
        if index == STUCK:
            os.kill(os.getpid(), signal.SIGSTOP)
        return index


def test_a_sample_that_stops_its_workers_is_said_to_do_so(tmp_path: Path) -> None:
    with DataLoader(Stopping(tmp_path), BATCH, num_workers=1) as loader, pytest.raises(SampleTimeout) as caught:
        list(loader)
    said = str(caught.value)
    assert f"was stopped by a signal (SIGSTOP) while loading sample {STUCK}" in said
    assert "it is stopped (SIGSTOP or a debugger)" in said
    assert "took longer" not in said


def test_a_signal_that_is_on_its_way_or_being_handled_is_seen() -> None:
    """What its handler writes is whole when neither is so any more."""
    seen: list[bool] = []
    number, here = signal.SIGUSR2, str(threading.get_native_id())
    before = signal.signal(number, lambda *_: seen.append(True))
    never = kept_from(os.getpid(), number)
    assert here not in never
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        assert kept_from(os.getpid(), number) - never == {here}, "as in the handler itself"
        signal.pthread_kill(threading.get_ident(), number)
        assert kept_from(os.getpid(), number) - never == {here}
        assert not seen
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        signal.signal(number, before)
    assert seen == [True]
    assert kept_from(os.getpid(), number) <= never
    assert kept_from(2**22 + 17, number) == set()
