"""A few words for the tables of PoolState."""

from __future__ import annotations

from dataclasses import dataclass

from antifreeze.supervisor.exchange import Ending, Send, TakenBack, TaskEnded, WorkerGone
from antifreeze.supervisor.state import PoolState

SLOT = 70


@dataclass(frozen=True)
class Bad:
    """What a Failure looks like from here."""

    row: int | None = None
    index: str | None = "7"


def state_of(*, workers: int = 2, forgive: bool = False) -> PoolState:
    return PoolState(workers, forgive)


def places(actions: list[object]) -> list[tuple[int, int, int]]:
    """(worker, first row, rows) of every Send; nothing else may be among the actions."""
    assert all(isinstance(action, Send) for action in actions), actions
    return [(action.worker, action.task.first_row, action.task.rows) for action in actions if isinstance(action, Send)]


def rows_done(state: PoolState, worker: int, layout: int = 1) -> list[object]:
    task = state.workers[worker].queue[0]
    return list(state.handle(TaskEnded(worker, task.number, Ending.ROWS, rows=task.rows, layout=layout)))


def ended(state: PoolState, worker: int, ending: Ending, **more: object) -> list[object]:
    task = state.workers[worker].queue[0]
    return list(state.handle(TaskEnded(worker, task.number, ending, **more)))  # type: ignore[arg-type]


def gone(state: PoolState, worker: int, row: int | None, *, final: bool = False, failure: object = "lost") -> list[object]:
    """The worker ended in its first task, at `row` of the batch."""
    task = state.workers[worker].queue[0]
    return list(state.handle(WorkerGone(worker, task.number, row, failure, final)))


def discard(state: PoolState, unread: dict[int, tuple[int, ...]]) -> list[object]:
    for worker, tasks in unread.items():
        state.take_back_to_backlog(TakenBack(worker, tasks))
    return list(state.discard_all())
