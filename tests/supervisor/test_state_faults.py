"""PoolState by tables: workers die, tasks are bound or taken back, epochs end early."""

from __future__ import annotations

import pytest

from antifreeze.supervisor.exchange import Ending, FreeSlot, LeftOut, RowFailed, Send, TakeBack, TakenBack, WorkerBack, WorkerGone
from antifreeze.supervisor.state import PoolState
from antifreeze.supervisor.tasks import STRIKES, WHOLE_BATCH, Phase

from .tables import SLOT, Bad, discard, ended, gone, places, rows_done, state_of

# --- dead workers -----------------------------------------------------------------------------------------------------


def test_the_tasks_of_a_dead_worker_go_to_another_in_their_order_and_before_what_waits() -> None:
    state = state_of()
    state.handle(WorkerGone(1))
    for number in range(3):
        state.submit(number, SLOT + number, 1, 1)
    assert state.handle(WorkerGone(0)) == []
    assert [task.batch for task in state.backlog] == [0, 1, 2]
    state.submit(3, SLOT, 1, 1)
    assert [action.task.batch for action in state.handle(WorkerBack(1)) if isinstance(action, Send)] == [0, 1, 2, 3]
    assert state.handle(WorkerBack(0)) == []


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (0, [(1, 0, 1), (1, 1, 5)]),
        (2, [(1, 0, 2), (1, 2, 1), (1, 3, 3)]),
        (5, [(1, 0, 5), (1, 5, 1)]),
        (None, [(1, 0, 6)]),
        (17, [(1, 0, 6)]),  # a row of another task: nobody is suspected
    ],
)
def test_a_suspected_row_stays_alone(row: int | None, expected: list[tuple[int, int, int]]) -> None:
    state = state_of()
    state.submit(0, SLOT, 12, 2)
    assert places(gone(state, 0, row)) == expected


def test_a_suspect_in_a_task_that_has_ended_is_none() -> None:
    state = state_of()
    state.submit(0, SLOT, 2, 2)
    rows_done(state, 0)
    state.submit(1, SLOT, 2, 1)
    actions = state.handle(WorkerGone(0, 0, 0, "lost"))
    assert places(actions) == [(1, 0, 2)]
    assert all(batch.strikes == {} for batch in state.batches.values())


@pytest.mark.parametrize("forgive", [False, True])
def test_a_row_suspected_twice_is_bad(forgive: bool) -> None:
    state = state_of(forgive=forgive)
    state.submit(0, SLOT, 4, 2)
    rows_done(state, 1)
    assert places(gone(state, 0, 1)) == [(1, 0, 1), (1, 1, 1)]
    rows_done(state, 1)
    state.handle(WorkerBack(0))
    assert STRIKES == 2
    gone(state, 1, 1, failure="lost again")
    batch = state.batches[0]
    assert batch.phase is (Phase.HOLED if forgive else Phase.FAILED)
    assert (batch.bad_rows if forgive else batch.errors) == {1: "lost again"}
    assert not batch.must_reload


@pytest.mark.parametrize("forgive", [False, True])
def test_a_row_whose_deadline_passed_is_bad_at_once(forgive: bool) -> None:
    state = state_of(forgive=forgive)
    state.submit(0, SLOT, 6, 2)
    rows_done(state, 1)
    actions = gone(state, 0, 1, final=True, failure="too late")
    batch = state.batches[0]
    assert places(actions) == ([(1, 0, 1), (1, 2, 1)] if forgive else [])
    assert (batch.bad_rows if forgive else batch.errors) == {1: "too late"}


@pytest.mark.parametrize(("forgive", "phase"), [(False, Phase.FAILED), (True, Phase.HOLED)])
def test_a_whole_task_is_not_split_around_its_suspect(forgive: bool, phase: Phase) -> None:
    state = state_of(forgive=forgive)
    state.submit(0, SLOT, 4, 1)
    (send,) = gone(state, 0, 1)
    assert isinstance(send, Send)
    assert (send.task.first_row, send.task.rows, send.task.whole) == (0, 4, True)
    assert gone(state, send.worker, 1) == []
    batch = state.batches[0]
    assert (batch.phase, batch.must_reload) == (phase, forgive)


@pytest.mark.parametrize("forgive", [False, True])
def test_a_batch_suspected_as_a_whole_twice_has_failed_whatever_is_forgiven(forgive: bool) -> None:
    state = state_of(forgive=forgive)
    state.submit(0, SLOT, 4, 1)
    (send,) = gone(state, 0, WHOLE_BATCH)
    assert isinstance(send, Send)
    assert send.task.rows == 4
    assert gone(state, send.worker, WHOLE_BATCH, failure="its collate") == []
    assert state.batches[0].phase is Phase.FAILED
    assert state.batches[0].first_error() == "its collate"


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("forgive", [False, True])
def test_rows_suspected_together_are_tried_singly_and_the_guilty_one_is_found(tasks: int, final: bool, forgive: bool) -> None:
    state = state_of(forgive=forgive)
    state.submit(0, SLOT, 4, tasks)
    if tasks == 2:
        rows_done(state, 1)
    (again,) = gone(state, 0, WHOLE_BATCH, final=final)
    assert isinstance(again, Send)
    assert (again.task.singly, again.task.whole, again.task.rows) == (True, tasks == 1, 4 // tasks)
    state.handle(WorkerBack(0))
    retried = gone(state, 1, 1, final=final, failure="it again")
    state.handle(WorkerBack(1))
    if not final:
        assert all(isinstance(send, Send) and send.task.singly for send in retried)
        while [task for task in state.workers[0].queue if 1 not in task.row_range()]:
            rows_done(state, 0)
        gone(state, 0, 1, failure="it again")
        state.handle(WorkerBack(0))
    for worker in (0, 1):
        while state.workers[worker].queue:
            rows_done(state, worker)
    assert state.batches[0].phase is (Phase.HOLED if forgive else Phase.FAILED)
    assert (state.batches[0].bad_rows if forgive else state.batches[0].errors) == {1: "it again"}


@pytest.mark.parametrize("forgive", [False, True])
def test_a_deadline_is_not_waited_for_again_where_that_would_tell_nothing(forgive: bool) -> None:
    state = state_of(forgive=forgive)
    state.submit(0, SLOT, 1, 1)
    assert gone(state, 0, WHOLE_BATCH, final=True, failure="too long") == []
    assert state.batches[0].phase is Phase.FAILED


def test_strikes_outlast_the_reload_that_follows_from_a_bounce() -> None:
    """Rule 3: a row suspected twice is bad, also where its batch was loaded once more in between."""
    state = state_of(forgive=True)
    state.submit(0, SLOT, 2, 2)
    (send,) = gone(state, 0, 0)
    ended(state, 1, Ending.BOUNCED)
    (again,) = rows_done(state, 1)  # this time row 0 does no harm
    assert isinstance(send, Send)
    assert isinstance(again, Send)
    assert again.task.whole
    state.handle(WorkerBack(0))
    gone(state, again.worker, 0, failure="lost again")
    assert state.batches[0].bad_rows == {0: "lost again"}


def test_nothing_is_given_to_a_dead_worker() -> None:
    state = state_of()
    state.handle(WorkerGone(0))
    assert places(state.submit(0, SLOT, 4, 2)) == [(1, 0, 2), (1, 2, 2)]
    state.handle(WorkerGone(1))
    assert state.submit(1, SLOT, 4, 1) == []
    assert len(places(state.handle(WorkerBack(0)))) == 3


# --- bound tasks ------------------------------------------------------------------------------------------------------


def test_a_bound_task_waits_for_its_own_worker() -> None:
    state = state_of()
    state.submit(0, SLOT, 4, 1, worker=0)
    assert state.handle(WorkerGone(0)) == []
    assert state.handle(WorkerBack(1)) == []
    assert places(state.handle(WorkerBack(0))) == [(0, 0, 4)]


def test_a_bound_batch_that_is_loaded_again_stays_bound() -> None:
    """Rule 4: worker 0 is free and would be chosen, were the batch anybody's."""
    state = state_of(forgive=True)
    state.submit(0, SLOT, 4, 1, worker=1)
    ended(state, 1, Ending.FAILED, failure=Bad(2))
    assert places(state.reload(0, 3)) == [(1, 0, 3)]


def test_a_row_filled_in_a_bound_batch_stays_bound() -> None:
    state = state_of(forgive=True)
    state.submit(0, SLOT, 4, 1, worker=1)
    state.handle(RowFailed(0, 2, Bad(2)))
    rows_done(state, 1)
    assert places(state.fill_row(0, 2)) == [(1, 2, 1)]


# --- taking back ------------------------------------------------------------------------------------------------------


def test_who_has_two_tasks_is_asked_to_share_with_who_has_none() -> None:
    state = state_of()
    state.handle(WorkerGone(1))
    state.submit(0, SLOT, 4, 4)
    assert state.recalls() == []  # nobody is free
    state.handle(WorkerBack(1))
    assert state.recalls() == [TakeBack(0)]
    assert places(state.handle(TakenBack(0, (1, 2, 3)))) == [(1, 1, 1), (0, 2, 1), (1, 3, 1)]
    assert state.recalls() == []


def test_bound_tasks_are_no_reason_to_ask() -> None:
    state = state_of()
    state.submit(0, SLOT, 4, 1, worker=0)
    state.submit(1, SLOT, 4, 1, worker=0)
    assert state.recalls() == []


def test_bound_tasks_that_were_taken_back_return_to_their_worker() -> None:
    state = state_of()
    for number in range(3):
        state.submit(number, SLOT, 4, 1, worker=0)
    assert places(state.handle(TakenBack(0, (1, 2)))) == [(0, 0, 4), (0, 0, 4)]
    assert [task.batch for task in state.workers[0].queue] == [0, 1, 2]


# --- the end of an epoch ----------------------------------------------------------------------------------------------


def test_discarding_frees_what_nobody_writes_to() -> None:
    state = state_of(workers=1)
    for number in range(3):
        state.submit(number, SLOT + number, 2, 1)
    rows_done(state, 0)
    assert discard(state, {0: (2,)}) == [FreeSlot(SLOT), FreeSlot(SLOT + 2)]
    assert list(state.batches) == [1]
    assert rows_done(state, 0) == [FreeSlot(SLOT + 1)]
    assert state.batches == {}


@pytest.mark.parametrize("ending", [Ending.BOUNCED, Ending.STREAM_ENDED, Ending.PARCEL])
def test_a_discarded_batch_ends_whatever_its_end(ending: Ending) -> None:
    state = state_of(workers=1)
    state.submit(0, SLOT, 2, 1)
    discard(state, {})
    assert ended(state, 0, ending) == [FreeSlot(SLOT)]


def test_a_discarded_batch_waits_for_all_its_tasks() -> None:
    state = state_of()
    state.submit(0, SLOT, 4, 2)
    assert discard(state, {}) == []
    assert rows_done(state, 0) == []
    assert rows_done(state, 1) == [FreeSlot(SLOT)]


@pytest.mark.parametrize("row", [None, 0, WHOLE_BATCH])
def test_a_discarded_task_is_not_given_out_again_when_its_worker_dies(row: int | None) -> None:
    """The new worker would load it from the new epoch's stream, and those samples would be lost."""
    state = state_of(workers=1)
    state.submit(0, SLOT, 4, 1, stream=0, worker=0)
    discard(state, {})
    assert gone(state, 0, row) == [FreeSlot(SLOT)]
    assert state.handle(WorkerBack(0)) == []


def test_a_discarded_part_that_failed_is_not_loaded_around_its_bad_row() -> None:
    state = state_of(workers=1, forgive=True)
    state.submit(0, SLOT, 4, 2)
    discard(state, {0: (1,)})
    assert ended(state, 0, Ending.FAILED, failure=Bad(0)) == [FreeSlot(SLOT)]


def test_forget_all_leaves_nothing() -> None:
    state = state_of()
    state.submit(0, SLOT, 4, 2)
    state.forget_all()
    assert (state.batches, list(state.backlog), state.batch_of(0)) == ({}, [], None)


def test_it_describes_itself() -> None:
    state = state_of(workers=1)
    state.submit(0, SLOT, 4, 2)
    assert repr(state) == "<PoolState 1 batches in flight, 2 tasks queued, 0 waiting>"


def lost_at(state: PoolState, item: int | None, *, final: bool = False) -> list[object]:
    """The worker of stream 0 ended at this item."""
    task = state.workers[0].queue[0]
    actions = list(state.handle(WorkerGone(0, task.number, WHOLE_BATCH, f"lost at {item}", final, item=item)))
    return [*actions, *state.handle(WorkerBack(0))]


@pytest.mark.parametrize("forgive", [False, True])
def test_a_stream_that_is_lost_at_the_same_item_again_comes_to_its_end_before_it(forgive: bool) -> None:
    state = state_of(workers=1, forgive=forgive)
    state.submit(0, SLOT, 4, 1, stream=0, worker=0)
    state.submit(1, SLOT + 1, 4, 1, stream=0, worker=0)
    assert len(places(lost_at(state, 2))) == 2
    assert state.losses.stops == {}
    assert len(places(lost_at(state, 3))) == 2
    assert state.losses.stops == {}, "at another item"
    assert len(places(lost_at(state, 3))) == 2, "what comes before the item is loaded once more"
    assert state.losses.stops == {0: 3}
    state.handle(LeftOut(state.workers[0].queue[0].number, "a bad item"))
    ended(state, 0, Ending.PARCEL, rows=3, parcel_bytes=10)
    ended(state, 0, Ending.STREAM_ENDED)
    first, second = state.batches[0], state.batches[1]
    assert (first.phase, first.stops_with, first.left_out) == (Phase.READY, "lost at 3", ["a bad item"])
    assert (second.phase, second.stops_with) == (Phase.EMPTY, None)
    discard(state, {0: ()})
    assert state.losses.stops == {}, "another epoch is another chance"


def test_what_a_lost_worker_had_left_out_is_met_again() -> None:
    state = state_of(workers=1, forgive=True)
    state.submit(0, SLOT, 4, 1, stream=0, worker=0)
    state.handle(LeftOut(state.workers[0].queue[0].number, "a bad item"))
    lost_at(state, 3)
    assert state.batches[0].left_out == []


@pytest.mark.parametrize("item", [None, 5])
def test_a_deadline_of_a_stream_is_an_error_at_once_where_nothing_is_forgiven(item: int | None) -> None:
    state = state_of(workers=1)
    state.submit(0, SLOT, 4, 1, stream=0, worker=0)
    assert lost_at(state, item, final=True) == []
    assert state.batches[0].phase is Phase.FAILED
    state.submit(1, SLOT + 1, 4, 1, stream=0, worker=0)
    assert len(lost_at(state, item, final=True)) == (0 if item is None else 1)
    assert state.losses.stops == ({} if item is None else {0: 5}), "the loop went on, and it was lost there again"
