"""A late task a second time: by tables, and by real workers of which one is held up."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from antifreeze import DataLoader
from antifreeze.options import Options
from antifreeze.supervisor.deadlines import Deadlines
from antifreeze.supervisor.exchange import Ending, FreeSlot, Gather, RowFailed, Send, TakenBack, TaskEnded, WorkerBack, WorkerGone
from antifreeze.supervisor.policy import LATE_AT_LEAST_S, LATE_SAMPLE, LATE_TASK, is_late
from antifreeze.supervisor.state import PoolState
from antifreeze.supervisor.tasks import Phase, Piece, Task
from antifreeze.supervisor.watch import Watch
from antifreeze.worker.journal import Journal, Stage

from .tables import SLOT, Bad, discard, ended, gone, rows_done, state_of

HEDGE = 90
DEADLINE_S = 300.0


@pytest.mark.parametrize(
    ("in_sample_s", "in_task_s", "samples", "typical_s", "late"),
    [
        (100.0, 100.0, 4, None, False),  # nothing is known yet
        (LATE_AT_LEAST_S + 0.1, 0.0, 4, 0.001, True),
        (LATE_AT_LEAST_S - 0.1, LATE_AT_LEAST_S - 0.1, 4, 0.001, False),
        (LATE_SAMPLE * 0.9, 0.0, 4, 1.0, False),
        (LATE_SAMPLE * 1.1, 0.0, 4, 1.0, True),
        (DEADLINE_S * 0.45, 0.0, 4, DEADLINE_S / 10, False),
        (DEADLINE_S * 0.55, 0.0, 4, DEADLINE_S / 10, True),  # at ten times the usual it would be ended
        (0.0, LATE_TASK * 4 * 0.9, 4, 1.0, False),
        (0.0, LATE_TASK * 4 * 1.1, 4, 1.0, True),
    ],
)
def test_what_is_late(in_sample_s: float, in_task_s: float, samples: int, typical_s: float | None, late: bool) -> None:
    assert is_late(in_sample_s, in_task_s, samples, typical_s, DEADLINE_S) is late


def hedged(*, rows: int = 4, tasks: int = 1, workers: int = 3, forgive: bool = False) -> tuple[PoolState, int]:
    """A batch in SLOT whose first task, of worker 0, runs a second time in slot HEDGE; and who runs it."""
    state = state_of(workers=workers, forgive=forgive)
    state.submit(0, SLOT, rows, tasks)
    task = state.hedging.late_task([0])
    assert task is not None
    (send,) = state.hedging.begin(task, HEDGE)
    assert isinstance(send, Send)
    assert (send.task.first_row, send.task.rows, send.task.whole, send.task.slot) == (task.first_row, task.rows, task.whole, HEDGE)
    return state, send.worker


def parcel_done(state: PoolState, worker: int) -> list[object]:
    return ended(state, worker, Ending.PARCEL, rows=4, parcel_bytes=9)


@pytest.mark.parametrize(
    ("workers", "late", "bound"),
    [(1, [0], None), (2, [], None), (2, [1], None), (2, [0], 0)],
    ids=["nobody is idle", "nobody is late", "who is late has nothing", "only this worker may do it"],
)
def test_nothing_to_hedge(workers: int, late: list[int], bound: int | None) -> None:
    state = state_of(workers=workers)
    state.submit(0, SLOT, 4, 1, worker=bound)
    assert state.hedging.late_task(late) is None


def test_a_task_is_hedged_once_and_a_hedge_is_not_hedged() -> None:
    state, other = hedged()
    assert state.hedging.late_task([0, other]) is None


def test_the_oldest_batch_comes_first() -> None:
    state = state_of(workers=3)
    state.submit(0, SLOT, 4, 1)
    state.submit(1, SLOT + 1, 4, 1)
    task = state.hedging.late_task([1, 0])
    assert task is not None
    assert task.batch == 0


def test_a_whole_batch_that_the_hedge_loads_first_is_delivered_from_its_slot() -> None:
    state, other = hedged()
    assert parcel_done(state, other) == []
    assert (state.batches[0].phase, state.batches[0].slot) == (Phase.READY, HEDGE)
    state.take(0)
    assert parcel_done(state, 0) == [FreeSlot(SLOT)]  # the loser has ended, so nobody writes there any more


def test_who_is_late_after_all_comes_first() -> None:
    state, other = hedged()
    assert parcel_done(state, 0) == []
    assert (state.batches[0].phase, state.batches[0].slot) == (Phase.READY, SLOT)
    state.take(0)
    assert parcel_done(state, other) == [FreeSlot(HEDGE)]


def test_rows_of_two_slots_come_together_in_a_third() -> None:
    state, other = hedged(tasks=2)
    assert rows_done(state, 1) == []
    (gather,) = rows_done(state, other)
    assert gather == Gather(0, (Piece(SLOT, 2, 2), Piece(HEDGE, 0, 2)), (SLOT, HEDGE))
    assert isinstance(gather, Gather)
    assert state.hedging.gathered(gather, 99) == [FreeSlot(HEDGE)]
    assert (state.batches[0].phase, state.batches[0].slot) == (Phase.READY, 99)
    assert rows_done(state, 0) == [FreeSlot(SLOT)]


@pytest.mark.parametrize("ending", [Ending.BOUNCED, Ending.FAILED])
def test_a_hedge_that_ends_badly_is_forgotten(ending: Ending) -> None:
    state, other = hedged()
    assert ended(state, other, ending, failure=Bad(1)) == [FreeSlot(HEDGE)]
    assert state.batches[0].phase is Phase.LOADING
    parcel_done(state, 0)
    assert state.batches[0].phase is Phase.READY


def test_a_hedge_with_a_bad_row_is_forgotten() -> None:
    state, other = hedged(forgive=True)
    state.handle(RowFailed(state.workers[other].queue[0].number, 1, Bad(1)))
    assert rows_done(state, other) == [FreeSlot(HEDGE)]
    assert (state.batches[0].phase, state.batches[0].bad_rows) == (Phase.LOADING, {})


def test_a_hedge_whose_worker_dies_is_forgotten_and_nobody_is_blamed() -> None:
    state, other = hedged()
    assert gone(state, other, 1) == [FreeSlot(HEDGE)]
    assert state.batches[0].strikes == {}


@pytest.mark.parametrize("final", [False, True])
def test_when_the_late_worker_ends_the_hedge_takes_over(final: bool) -> None:
    state, other = hedged(forgive=True)
    assert gone(state, 0, 1, final=final) == []
    assert (state.batches[0].bad_rows, state.batches[0].strikes) == ({}, {1: 1})
    assert parcel_done(state, other) == [FreeSlot(SLOT)]
    assert (state.batches[0].phase, state.batches[0].slot) == (Phase.READY, HEDGE)


def test_a_hedge_that_took_over_and_dies_of_the_same_row_shows_that_the_row_is_bad() -> None:
    state, other = hedged(forgive=True, rows=1)
    gone(state, 0, 0)
    assert FreeSlot(HEDGE) in gone(state, other, 0, failure="lost again")
    assert state.batches[0].bad_rows == {0: "lost again"}


def test_a_loser_that_dies_is_not_missed() -> None:
    state, other = hedged()
    parcel_done(state, other)
    state.take(0)
    assert state.handle(WorkerGone(0, 0, 1, "lost", final=True)) == [FreeSlot(SLOT)]
    assert not state.backlog


def test_what_was_not_begun_is_not_raced_any_more() -> None:
    state, other = hedged()
    number = state.workers[other].queue[0].number
    assert state.handle(TakenBack(other, (number,))) == [FreeSlot(HEDGE)]
    assert not state.workers[other].queue
    assert state.hedging.late_task([0]) is not None


@pytest.mark.parametrize("forgive", [False, True])
def test_a_sample_that_outlasts_both_workers_is_bad_and_not_raced_for_ever(forgive: bool) -> None:
    state, other = hedged(workers=2, forgive=forgive)
    number = state.workers[other].queue[0].number
    state.handle(WorkerGone(0, 0, 1, "overdue", final=True))
    state.handle(WorkerBack(0))
    assert state.hedging.late_task([other]) is None
    state.handle(WorkerGone(other, number, 1, "overdue too", final=True))
    batch = state.batches[0]
    assert (batch.bad_rows if forgive else batch.errors) == {1: "overdue too"}


def test_the_end_of_the_epoch_waits_for_both() -> None:
    state, other = hedged()
    assert discard(state, {}) == []
    assert parcel_done(state, other) == [FreeSlot(HEDGE)]
    assert parcel_done(state, 0) == [FreeSlot(SLOT)]
    assert state.batches == {}


def test_an_error_of_the_late_task_itself_counts() -> None:
    state, other = hedged()
    ended(state, 0, Ending.FAILED, failure=Bad(2))
    assert state.batches[0].phase is Phase.FAILED
    assert state.handle(TaskEnded(other, state.workers[other].queue[0].number, Ending.PARCEL, rows=4, parcel_bytes=9)) == [FreeSlot(HEDGE)]


# --- real workers -----------------------------------------------------------------------------------------------------

COUNT, HELD, BATCH = 48, 21, 8


class HeldUp(Dataset[Any]):
    """The first process that takes sample HELD stays in it until it is told to go on; the second one passes."""

    def __init__(self) -> None:
        self.flags = mmap.mmap(-1, 16)
        self.last_waits_for_its_end = False

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if index == HELD and not self.flags[0]:
            self.flags[8:] = os.getpid().to_bytes(8, "little")
            self.flags[0] = 1
            while not self.flags[1]:
                time.sleep(0.01)
        while index == COUNT - 1 and self.last_waits_for_its_end and self.is_held():
            time.sleep(0.01)
        return torch.full((64, 64), index), torch.rand(3)

    def is_held(self) -> bool:
        return os.path.exists(f"/proc/{int.from_bytes(self.flags[8:], 'little')}")

    def let_go(self) -> None:
        self.flags[1] = 1


def named(samples: list[Any]) -> dict[str, Any]:
    """Batches that travel as parcels."""
    return {"names": [f"sample {int(sample[0][0, 0])}" for sample in samples], "drawn": torch.stack([drawn for _, drawn in samples])}


@pytest.fixture
def held_up() -> Iterator[HeldUp]:
    dataset = HeldUp()
    yield dataset
    dataset.let_go()


def take(dataset: HeldUp, **options: Any) -> tuple[list[Any], DataLoader[Any]]:
    loader = DataLoader(dataset, BATCH, generator=torch.Generator().manual_seed(3), **options)
    return list(loader), loader


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left["names"] == right["names"] and torch.equal(left["drawn"], right["drawn"])
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("collate", [None, named], ids=["rows", "parcels"])
def test_order_and_bytes_are_those_without_a_hedge_though_the_late_worker_never_comes_back(collate: Any, held_up: HeldUp) -> None:
    """Without the hedge the loop would wait for ever: the late sample returns only when the epoch is over."""
    batches, loader = take(held_up, num_workers=2, multiprocessing_context="fork", hedge=True, collate_fn=collate, timeout=100)
    free = HeldUp()
    free.flags[0] = 1
    expected, _ = take(free, collate_fn=collate)
    assert len(batches) == len(expected) == COUNT // BATCH
    assert all(map(same, batches, expected))
    assert loader.report().hedges == 1
    assert any("loaded a second time" in line for line in loader.report().story)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("batch_size", [1, BATCH])
def test_a_loser_that_meets_its_deadline_is_ended_and_no_sample_is_bad(batch_size: int, held_up: HeldUp) -> None:
    """Its batch was delivered long ago: nothing of it is left to blame."""
    held_up.last_waits_for_its_end = True
    loader = DataLoader(
        held_up, batch_size, num_workers=2, hedge=True, sample_timeout_s=2, multiprocessing_context="fork", timeout=100, prefetch_factor=1
    )
    seen = [index for batch in loader for index in batch[0][:, 0, 0].tolist()]
    assert seen == list(range(COUNT))
    report = loader.report()
    assert (report.restarts, len(report.bad_samples)) == (1, 0)
    assert report.hedges >= 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_with_persistent_workers_the_loser_comes_home_and_its_slot_too(held_up: HeldUp) -> None:
    loader = DataLoader(held_up, BATCH, num_workers=2, hedge=True, persistent_workers=True, multiprocessing_context="fork", timeout=100)
    with loader:
        first = [batch[0][:, 0, 0].tolist() for batch in loader]
        held_up.let_go()
        second = [batch[0][:, 0, 0].tolist() for batch in loader]
        assert first == second == [list(range(start, start + BATCH)) for start in range(0, COUNT, BATCH)]
        pool = loader._iterator.pool  # type: ignore[union-attr]
        while pool.state.desk.races.losers:
            pool._ears.drain(1)
        assert not pool.ring._filling
        assert loader.report().restarts == 0


def test_who_still_writes_what_another_has_delivered_is_looked_at_too() -> None:
    """Its batch is gone; the look found a KeyError there, and the epoch ended with it."""
    journal = Journal.create(1)
    row = journal.row(0)
    row.begin(7, 3, time.monotonic_ns())
    row.stage(Stage.WRITE)
    deadlines = object.__new__(Deadlines)
    deadlines._state = PoolState(1, forgive=False)
    deadlines._watch = Watch(journal, 1)
    deadlines._options = Options()
    look = deadlines._watch.look(0, time.monotonic())
    assert not deadlines._is_overdue(look, Task(7, batch=3, first_row=0, rows=4, whole=False))
    journal.close()
