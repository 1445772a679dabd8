"""A forked worker that waits for a lock before it has done anything: forking may be at fault, or its sample."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils.data import Dataset

from antifreeze import DataLoader

STUCK = 3
LOCK = threading.Lock()


@contextmanager
def held_by_a_thread(lock: Any) -> Iterator[None]:
    taken, enough = threading.Event(), threading.Event()

    def keep() -> None:
        with lock:
            taken.set()
            enough.wait(60)

    thread = threading.Thread(target=keep)
    thread.start()
    taken.wait(100)
    try:
        yield
    finally:
        enough.set()
        thread.join()


class Stuck(Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == STUCK:
            threading.Event().wait()
        return index


class StuckAndNotPicklable(Stuck):
    def __init__(self) -> None:
        self.guard = threading.Lock()


class Locks(Stuck):
    """Takes its lock in each sample."""

    def __init__(self) -> None:
        self.own = threading.Lock()

    def __getitem__(self, index: int) -> int:
        with self.own:
            return index


def takes_the_lock(worker: int) -> None:
    with LOCK:
        pass


def delivered(loader: DataLoader) -> list[int]:
    return sorted(index for batch in loader for index in batch.tolist())


ORDER = [STUCK, 0, 1, 2, 4, 5]
"""The stuck one is the first of its worker."""
FORKED: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("dataset", "from_server"), [(Stuck(), True), (StuckAndNotPicklable(), False)], ids=["pickles", "does not pickle"])
def test_a_first_sample_that_is_stuck_is_named_at_once_and_is_bad_in_the_end(
    dataset: Any, from_server: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    with DataLoader(dataset, 2, sampler=ORDER, on_bad_sample="skip", sample_timeout_s=1, stall_report_s=None, **FORKED) as loader:
        assert delivered(loader) == [0, 1, 2, 4, 5]
        bad, restarts = loader.report().bad_samples, loader.report().restarts
        assert not loader._fork_is_unsafe  # it was innocent
    said = capfd.readouterr().err
    first = said.splitlines()[0]
    assert f"for a lock or another thread in sample {STUCK} of batch 0" in first
    assert "or the sample is stuck by itself" in said
    assert ("the data set does not pickle" in said) is not from_server
    assert [(each.index, each.failure.type_name) for each in bad] == [(str(STUCK), "SampleTimeout")]
    assert restarts == 2
    assert "in __getitem__" in bad[0].failure.message


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:This DataLoader will create:UserWarning")
def test_a_lock_that_was_inherited_is_no_failed_start(capfd: pytest.CaptureFixture[str]) -> None:
    samples = [0, 1, 2, 4, 5]
    with (
        held_by_a_thread(LOCK),
        DataLoader(
            Stuck(), 1, sampler=samples, worker_init_fn=takes_the_lock, sample_timeout_s=2, **{**FORKED, "num_workers": 3}
        ) as loader,
    ):
        assert delivered(loader) == samples
        assert not loader.report().bad_samples
    assert "for a lock or another thread in worker_init_fn" in capfd.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_one_that_no_pickle_can_move_is_an_error_and_no_endless_story() -> None:
    dataset = Locks()
    with (
        held_by_a_thread(dataset.own),
        DataLoader(dataset, 2, sample_timeout_s=1, stall_report_s=None, **FORKED) as loader,
        pytest.raises(RuntimeError, match=r"sample 0 waited .* for a lock that nobody in worker 0"),
    ):
        delivered(loader)
