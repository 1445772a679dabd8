"""The pool around real workers: epochs that end early, deaths and replacements in between. Gates instead of sleeps."""

from __future__ import annotations

import itertools
import mmap
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from antifreeze import DataLoader
from antifreeze.channel.messages import ParcelDone, RowsDone
from antifreeze.errors import LoaderClosed, LoaderTimeout, WorkerStartFailed
from antifreeze.supervisor import crew as crew_module
from antifreeze.supervisor import process as process_module
from antifreeze.supervisor import starting as module
from antifreeze.supervisor import watch as watch_module
from antifreeze.supervisor.hearing import Ears
from antifreeze.supervisor.observe import process_state
from antifreeze.supervisor.process import _left_behind, _wait_gone, see_off_left_behind

COUNT = 7
HELD, DEADLY = 1, 3
forks = pytest.mark.filterwarnings("ignore::DeprecationWarning")
pytestmark = forks


class Gate:
    """Shared with forked workers: whoever takes sample HELD while the gate is closed says so and waits until it opens;
    whoever takes sample DEADLY while that is set dies of it."""

    def __init__(self) -> None:
        self.flags = mmap.mmap(-1, 16)
        self.told, self.tell = os.pipe()
        self.opened, self.open_it = os.pipe()

    def close_once(self) -> None:
        self.flags[0] = 1

    def kill_once(self) -> None:
        self.flags[1] = 1

    def pass_through(self, sample: int) -> int:
        if sample == HELD and self.flags[0]:
            self.flags[0] = 0
            os.write(self.tell, os.getpid().to_bytes(8, "little"))
            os.read(self.opened, 1)
        if sample == DEADLY and self.flags[1]:
            self.flags[1] = 0
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    def wait_until_somebody_is_held(self) -> int:
        """Its process number."""
        return int.from_bytes(os.read(self.told, 8), "little")

    def open(self) -> None:
        os.write(self.open_it, b"x")

    def end(self) -> None:
        for descriptor in (self.told, self.tell, self.opened, self.open_it):
            os.close(descriptor)


class Stream(IterableDataset[int]):
    def __init__(self, gate: Gate, count: int = COUNT) -> None:
        self.gate, self.count = gate, count

    def __iter__(self) -> Iterator[int]:
        return map(self.gate.pass_through, range(self.count))


class Numbers(Dataset[int]):
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return self.gate.pass_through(index)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.end()


Start = Callable[..., DataLoader]


@pytest.fixture
def loader() -> Iterator[Start]:
    """With one persistent worker; a wait that nothing ends is an error after some seconds."""
    made: list[DataLoader] = []

    def make(dataset: Any, **options: Any) -> DataLoader:
        given = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork", "timeout": 100}
        made.append(DataLoader(dataset, **given | options))
        return made[-1]

    yield make
    while made:
        end(made.pop())


def end(loader: DataLoader) -> None:
    """Its workers, and with them their descriptors, go with its iterator."""
    iterator, loader._iterator = loader._iterator, None
    if iterator is not None:
        iterator.close()
        for worker in iterator.pool.crew.abandoned:
            if worker.pidfd >= 0:  # nobody tried to end it
                worker.kill()
                select.select([worker.pidfd], [], [])  # until it is gone
                worker.reap()
                worker.let_go()
        while _left_behind:
            see_off_left_behind()


def flat(batches: Any) -> list[int]:
    return [value for batch in batches for value in batch.tolist()]


# --- a batch of the last epoch is still being loaded when the next begins -------------------------------------------------


@pytest.mark.parametrize("kind", [Stream, Numbers])
def test_an_epoch_begun_while_the_last_one_is_still_at_work_is_whole(kind: Any, gate: Gate, loader: Start) -> None:
    gate.close_once()
    loading = loader(kind(gate))
    assert next(iter(loading)).tolist() == [0]
    gate.wait_until_somebody_is_held()
    again = iter(loading)
    gate.open()
    assert flat(again) == list(range(COUNT))


@pytest.mark.parametrize("kind", [Stream, Numbers])
def test_a_worker_that_dies_over_the_last_epoch_takes_nothing_from_the_next(kind: Any, gate: Gate, loader: Start) -> None:
    """What it was loading is forgotten. Given out again, it would be loaded from the new epoch's stream, and thrown away."""
    gate.close_once()
    loading = loader(kind(gate))
    assert next(iter(loading)).tolist() == [0]
    held = gate.wait_until_somebody_is_held()
    again = iter(loading)
    os.kill(held, signal.SIGKILL)
    assert flat(again) == list(range(COUNT))


@pytest.mark.parametrize("kind", [Stream, Numbers])
def test_a_batch_of_the_last_epoch_that_ends_late_does_not_advance_the_next(kind: Any, gate: Gate, loader: Start) -> None:
    """A worker replaced later must begin where the new epoch is, not further."""
    gate.close_once()
    loading = loader(kind(gate))
    assert next(iter(loading)).tolist() == [0]
    gate.wait_until_somebody_is_held()
    again = iter(loading)
    gate.kill_once()
    gate.open()
    assert flat(again) == list(range(COUNT))
    assert loading.report().restarts == 1


def test_the_end_of_one_epochs_stream_is_not_the_end_of_the_next_ones(gate: Gate, loader: Start) -> None:
    loading = loader(Stream(gate), batch_size=2)
    assert flat(loading) == list(range(COUNT))
    again = iter(loading)
    assert next(again).tolist() == [0, 1]
    state = loading.state_dict()
    resumed = loader(Stream(gate), batch_size=2)
    resumed.load_state_dict(state)
    assert flat(resumed) == list(range(2, COUNT))


# --- replacements -----------------------------------------------------------------------------------------------------------


def test_a_worker_that_was_told_to_make_room_does_so_also_when_an_epoch_begins_meanwhile(gate: Gate, loader: Start) -> None:
    gate.close_once()
    loading = loader(Numbers(gate), recycle_worker_after=1)
    first = iter(loading)
    gate.wait_until_somebody_is_held()  # it is in its second sample when its first one makes it due
    assert next(first).tolist() == [0]
    again = iter(loading)
    gate.open()
    assert flat(again) == list(range(COUNT))


@pytest.mark.parametrize("kind", [Stream, Numbers])
def test_a_worker_that_cannot_be_ended_is_left_behind_and_nothing_is_lost(kind: Any, gate: Gate, loader: Start) -> None:
    gate.close_once()
    loading = loader(kind(gate))
    first = iter(loading)
    assert next(first).tolist() == [0]
    held = gate.wait_until_somebody_is_held()
    pool = first.pool
    worker = pool.crew.workers[0]
    assert worker.pid == held
    pool._replacing.abandon(0, worker)
    assert flat(first) == list(range(1, COUNT))
    while process_state(held) not in "Z?":
        time.sleep(0.01)  # it has ended after all
    assert flat(DataLoader(range(2))) == [0, 1]  # whatever loader is at work next, without workers too
    assert process_state(held) == "?"


def test_what_a_worker_that_survives_the_end_may_still_write_to_is_not_used_again(
    gate: Gate, loader: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.close_once()
    loading = loader(Numbers(gate))
    first = iter(loading)
    gate.wait_until_somebody_is_held()
    ring, filling = first.pool.ring, set(first.pool.ring._filling)
    monkeypatch.setattr(crew_module, "end_all", list)  # even SIGKILL did not end it in time
    first.close()
    assert filling
    assert not filling & {ring.take() for _ in range(2 * len(filling))}


def test_the_loop_does_not_wait_for_a_worker_that_could_not_be_replaced(gate: Gate, loader: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    gate.close_once()
    loading = loader(Numbers(gate))
    first = iter(loading)
    held = gate.wait_until_somebody_is_held()
    assert next(first).tolist() == [0]

    def refuse(*_: Any) -> None:
        raise WorkerStartFailed("no more processes")

    monkeypatch.setattr(module, "WorkerProcess", refuse)
    os.kill(held, signal.SIGKILL)
    with pytest.raises(WorkerStartFailed):
        next(first)
    with pytest.raises(Exception) as told:
        next(first)
    assert not isinstance(told.value, LoaderTimeout), "it waited for a worker that nobody starts"


def test_tasks_that_do_not_fit_into_a_workers_queue_do_not_block_the_loop(gate: Gate, loader: Start) -> None:
    """The worker is held in its first batch; 40 batches of 4096 indices are more than a socket takes."""
    gate.close_once()

    class Many(Numbers):
        def __len__(self) -> int:
            return 1 << 18

        def __getitem__(self, index: int) -> Any:
            return torch.tensor(self.gate.pass_through(index) if index < COUNT else index, dtype=torch.int32)

    loading = loader(Many(gate), batch_size=4096, prefetch_factor=40)
    batches = iter(loading)
    gate.wait_until_somebody_is_held()
    gate.open()
    assert [next(batches)[0].item() for _ in range(3)] == [0, 4096, 8192]


@pytest.mark.parametrize("lost", [RowsDone, ParcelDone])
def test_a_worker_whose_word_was_lost_is_not_waited_for_for_ever(lost: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "FORGOTTEN_S", 0.3)
    hear, heard = Ears._receive, []

    def lose_one(ears: Ears, number: int, message: Any) -> None:
        heard.extend([message] if isinstance(message, lost) else [])
        if len(heard) != 2:
            hear(ears, number, message)
        else:
            heard.append(None)

    monkeypatch.setattr(Ears, "_receive", lose_one)
    collate = {} if lost is RowsDone else {"collate_fn": torch.tensor}
    with DataLoader(range(COUNT), 2, num_workers=2, multiprocessing_context="fork", **collate) as loading:
        assert flat(loading) == list(range(COUNT))
        assert loading.report().restarts == 1
        assert "word of it was lost" in "".join(loading.report().story)


def test_workers_that_end_while_the_job_is_suspended_have_their_time_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended as a whole, and longer than they may take, whenever somebody looks at the clock."""
    clock = itertools.count(step=100.0)
    with subprocess.Popen(["sleep", "1000"]) as ends, subprocess.Popen(["sleep", "1000"]) as stays:
        workers: list[Any] = [SimpleNamespace(pidfd=os.pidfd_open(process.pid)) for process in (ends, stays)]
        with monkeypatch.context() as suspended:
            suspended.setattr(process_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
            ends.kill()
            left = _wait_gone(workers, 1.0)
        stays.kill()
    assert left == [workers[1]]
    for worker in workers:
        os.close(worker.pidfd)


def test_closed_while_it_waits_is_said(gate: Gate, loader: Start) -> None:
    gate.close_once()
    loading = loader(Numbers(gate), persistent_workers=False)
    waits = iter(loading)
    assert next(waits).tolist() == [0]
    gate.wait_until_somebody_is_held()
    before = signal.signal(signal.SIGUSR2, lambda *_: waits.close())
    presses = threading.Thread(target=press_while_it_waits, args=(threading.get_ident(),))
    presses.start()
    with pytest.raises(LoaderClosed, match="closed while next"):
        next(waits)
    presses.join()
    signal.signal(signal.SIGUSR2, before)


def press_while_it_waits(loop: int) -> None:
    while "_wait_long" not in {frame.name for frame in traceback.extract_stack(sys._current_frames()[loop])}:
        time.sleep(0.01)
    signal.pthread_kill(loop, signal.SIGUSR2)


def test_a_fork_of_the_user_leaves_without_waiting_for_workers_that_are_not_its_own(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    ended = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True, timeout=150)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0 20\n", "")


FORKS = """
import os, sys
from antifreeze import DataLoader

iterator = iter(DataLoader(range(20), num_workers=2))
came = [next(iterator)]
child = os.fork()
if child == 0:
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(came) + sum(1 for _ in iterator))
"""
