"""PoolState by tables: batches are split, tasks end well or not."""

from __future__ import annotations

import pytest

from antifreeze.supervisor.exchange import Ending, RowFailed, Send, TakeBack, TakenBack, TaskEnded
from antifreeze.supervisor.tasks import Phase, Task

from .tables import SLOT, Bad, ended, places, rows_done, state_of

# --- submit and split -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "rows", "tasks", "expected"),
    [
        (1, 4, 1, [(0, 0, 4)]),
        (2, 4, 2, [(0, 0, 2), (1, 2, 2)]),
        (2, 5, 2, [(0, 0, 3), (1, 3, 2)]),
        (3, 7, 3, [(0, 0, 3), (1, 3, 2), (2, 5, 2)]),
        (2, 2, 5, [(0, 0, 1), (1, 1, 1)]),
        (1, 4, 2, [(0, 0, 2), (0, 2, 2)]),
        (4, 4, 1, [(0, 0, 4)]),
    ],
)
def test_a_batch_is_split_evenly_and_given_to_the_least_loaded(
    workers: int, rows: int, tasks: int, expected: list[tuple[int, int, int]]
) -> None:
    assert places(state_of(workers=workers).submit(0, SLOT, rows, tasks)) == expected


def test_a_task_knows_its_batch_its_rows_and_whether_it_is_all_of_it() -> None:
    state = state_of()
    assert state.submit(5, SLOT, 4, 2) == [Send(0, Task(0, 5, 0, 2, False)), Send(1, Task(1, 5, 2, 2, False))]
    assert state.submit(6, SLOT + 1, 3, 1) == [Send(0, Task(2, 6, 0, 3, True))]
    assert state.batch_of(1) == 5
    assert state.batch_of(99) is None


def test_the_least_loaded_by_rows_is_chosen_not_the_one_with_fewest_tasks() -> None:
    state = state_of()
    state.submit(0, SLOT, 9, 1)
    state.submit(1, SLOT, 1, 1)
    state.submit(2, SLOT, 1, 1)
    assert [len(worker.queue) for worker in state.workers] == [1, 2]


def test_a_bound_batch_goes_to_its_worker_however_loaded_it_is() -> None:
    state = state_of()
    state.submit(0, SLOT, 9, 1, worker=1)
    assert places(state.submit(1, SLOT, 9, 1, worker=1)) == [(1, 0, 9)]


# --- the end of a task ------------------------------------------------------------------------------------------------


def test_a_batch_is_ready_when_its_last_task_has_ended() -> None:
    state = state_of()
    state.submit(0, SLOT, 4, 2)
    assert rows_done(state, 1, layout=9) == []
    assert state.batches[0].phase is Phase.LOADING
    assert rows_done(state, 0, layout=9) == []
    batch = state.take(0)
    assert (batch.phase, batch.layout, batch.rows_loaded, batch.must_reload) == (Phase.READY, 9, 4, False)
    assert state.batches == {}


def test_a_parcel_keeps_its_size() -> None:
    state = state_of()
    state.submit(0, SLOT, 4, 1)
    ended(state, 0, Ending.PARCEL, rows=4, parcel_bytes=123)
    batch = state.batches[0]
    assert (batch.phase, batch.parcel_bytes, batch.rows_loaded) == (Phase.READY, 123, 4)


def test_the_end_of_a_stream_leaves_its_batch_empty() -> None:
    state = state_of()
    state.submit(0, SLOT, 4, 1, stream=0, worker=0)
    assert ended(state, 0, Ending.STREAM_ENDED) == []
    assert state.batches[0].phase is Phase.EMPTY


def test_a_task_that_ends_twice_changes_nothing() -> None:
    state = state_of()
    state.submit(0, SLOT, 4, 1)
    rows_done(state, 0)
    assert state.handle(TaskEnded(0, 0, Ending.FAILED, failure=Bad(0))) == []
    assert state.batches[0].phase is Phase.READY


def test_parts_with_two_layouts_are_loaded_again_whole() -> None:
    state = state_of()
    state.submit(0, SLOT, 4, 2)
    rows_done(state, 0, layout=1)
    (send,) = rows_done(state, 1, layout=2)
    assert isinstance(send, Send)
    assert (send.task.first_row, send.task.rows, send.task.whole) == (0, 4, True)
    rows_done(state, send.worker, layout=2)
    assert (state.batches[0].phase, state.batches[0].layout, state.batches[0].rows_loaded) == (Phase.READY, 2, 4)


def test_a_bounced_part_waits_for_the_others_and_then_all_is_loaded_whole() -> None:
    state = state_of()
    state.submit(0, SLOT, 4, 2)
    assert ended(state, 0, Ending.BOUNCED) == []
    (send,) = rows_done(state, 1)
    assert isinstance(send, Send)
    assert (send.task.whole, send.task.rows) == (True, 4)


def test_a_whole_task_that_bounced_with_its_bad_row_is_holed_and_left_to_the_pool() -> None:
    state = state_of(forgive=True)
    state.submit(0, SLOT, 4, 1)
    assert state.handle(RowFailed(0, 2, Bad(2))) == []
    assert ended(state, 0, Ending.BOUNCED) == []
    batch = state.batches[0]
    assert (batch.phase, batch.bad_rows, batch.must_reload) == (Phase.HOLED, {2: Bad(2)}, True)
    assert places(state.reload(0, 3)) == [(0, 0, 3)]
    rows_done(state, 0)
    assert (batch.phase, batch.bad_rows, batch.rows, batch.must_reload) == (Phase.READY, {}, 3, False)


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forgive", "tasks", "failure", "phase", "again"),
    [
        (False, 1, Bad(1), Phase.FAILED, []),
        (False, 2, Bad(1), Phase.FAILED, []),
        (True, 1, Bad(1), Phase.HOLED, []),
        (True, 2, Bad(1), Phase.LOADING, [(0, 0, 1)]),
        (True, 2, Bad(0), Phase.LOADING, [(0, 1, 1)]),
        (True, 1, Bad(row=None), Phase.FAILED, []),
        (True, 1, Bad(1, index=None), Phase.FAILED, []),
    ],
)
def test_a_task_that_failed(forgive: bool, tasks: int, failure: Bad, phase: Phase, again: list[tuple[int, int, int]]) -> None:
    state = state_of(forgive=forgive)
    state.submit(0, SLOT, 4, tasks)
    if tasks == 2:
        rows_done(state, 1)
    assert places(ended(state, 0, Ending.FAILED, failure=failure)) == again
    batch = state.batches[0]
    assert batch.phase is phase
    assert batch.bad_rows == ({failure.row: failure} if forgive and phase is not Phase.FAILED else {})
    assert list(batch.errors.values()) == ([failure] if phase is Phase.FAILED else [])


def test_a_forgiven_whole_batch_must_be_loaded_again_because_nothing_of_it_is_in_the_slot() -> None:
    state = state_of(forgive=True)
    state.submit(0, SLOT, 4, 1)
    ended(state, 0, Ending.FAILED, failure=Bad(1))
    assert state.batches[0].must_reload


def test_the_error_of_the_lowest_row_is_the_one_told() -> None:
    state = state_of()
    state.submit(0, SLOT, 4, 2)
    ended(state, 1, Ending.FAILED, failure=Bad(3))
    assert state.batches[0].phase is Phase.LOADING
    ended(state, 0, Ending.FAILED, failure=Bad(1))
    assert state.batches[0].first_error() == Bad(1)


def test_a_row_that_failed_while_its_task_went_on_is_a_hole() -> None:
    state = state_of(forgive=True)
    state.submit(0, SLOT, 4, 2)
    state.handle(RowFailed(1, 3, Bad(3)))
    rows_done(state, 1)
    rows_done(state, 0)
    batch = state.batches[0]
    assert (batch.phase, batch.bad_rows, batch.must_reload) == (Phase.HOLED, {3: Bad(3)}, False)
    (send,) = state.fill_row(0, 3)
    assert isinstance(send, Send)
    assert (send.task.first_row, send.task.rows, send.task.whole, batch.phase) == (3, 1, False, Phase.LOADING)
    rows_done(state, send.worker)
    assert (batch.phase, batch.bad_rows) == (Phase.READY, {})


def test_a_filled_row_that_is_of_another_kind_makes_the_batch_load_again() -> None:
    state = state_of(forgive=True)
    state.submit(0, SLOT, 2, 2)
    state.handle(RowFailed(1, 1, Bad(1)))
    rows_done(state, 0, layout=1)
    rows_done(state, 1, layout=1)
    (fill,) = state.fill_row(0, 1)
    assert isinstance(fill, Send)
    (again,) = rows_done(state, fill.worker, layout=2)
    assert isinstance(again, Send)
    assert (again.task.whole, again.task.rows) == (True, 2)


def test_the_same_rows_of_each_batch_go_to_the_same_worker() -> None:
    state = state_of(workers=3)
    first = state.submit(0, SLOT, 9, 3)
    assert [(action.worker, action.task.first_row) for action in first] == [(0, 0), (1, 3), (2, 6)]
    state.handle(TaskEnded(2, 2, Ending.ROWS, rows=3, layout=1))
    second = state.submit(1, SLOT + 1, 9, 3)
    assert [(action.worker, action.task.first_row) for action in second] == [(0, 0), (1, 3), (2, 6)]


def test_rows_do_not_wait_for_their_worker_where_another_is_done_before_it_begins() -> None:
    state = state_of(workers=2)
    state.submit(0, SLOT, 4, 2)
    state.submit(1, SLOT + 1, 4, 2)
    for task in (1, 3):
        state.handle(TaskEnded(1, task, Ending.ROWS, rows=2, layout=1))
    actions = state.submit(2, SLOT + 2, 4, 2)
    assert [action.worker for action in actions] == [1, 1]


def test_what_was_given_out_in_vain_goes_to_whoever_is_free() -> None:
    """A worker that does not come back keeps its own task, and nothing else."""
    state = state_of(workers=2)
    state.submit(0, SLOT, 4, 2)
    state.submit(1, SLOT + 1, 4, 2)
    for task in (1, 3):
        state.handle(TaskEnded(1, task, Ending.ROWS, rows=2, layout=1))
    assert state.recalls() == [TakeBack(0)]
    assert [(action.worker, action.task.number) for action in state.handle(TakenBack(0, (2,)))] == [(1, 2)]
