"""PoolState in a random world (world.py); and proof that the world finds what is wrong."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from antifreeze.supervisor import losses
from antifreeze.supervisor import state as module
from antifreeze.supervisor.desk import Desk
from antifreeze.supervisor.exchange import Action, Ending, Event, FreeSlot, Send, TakenBack, TaskEnded, WorkerBack, WorkerGone
from antifreeze.supervisor.hedging import Hedging
from antifreeze.supervisor.races import Races
from antifreeze.supervisor.state import PoolState
from antifreeze.supervisor.tasks import Batch, Task, Worker

from .world import EVENTS, World, walk

STEPS = 60
thorough = settings(
    max_examples=60,
    stateful_step_count=STEPS,
    phases=[Phase.generate],  # add Phase.shrink to see a smaller world that fails; it takes minutes
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
until_found = settings(thorough, max_examples=400, print_blob=False)

Mutate = Callable[[pytest.MonkeyPatch], None]


def test_in_any_world_every_row_is_loaded_once_or_reported_and_nothing_waits_for_ever() -> None:
    run_state_machine_as_test(World, settings=thorough)


def test_on_long_ways_too() -> None:
    seen: Counter[str] = sum((walk(seed, 400) for seed in range(40)), Counter())
    assert set(seen) == set(EVENTS)
    assert seen["hedge"] > 200


# --- the same world around a state that is wrong -----------------------------------------------------------------------

_around, _split = losses.around, module.split_evenly
_assign, _handle = Desk.assign, PoolState.handle
_retire, _add_worker = PoolState.retire, PoolState.add_worker
_resolve, _retry = PoolState._resolve_if_done, losses.Losses._retry_suspect
_loser_ended, _has_won, _race_end = Hedging.loser_ended, Hedging.has_won, Races.end


def forgets_the_tasks_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    def worker_gone(self: PoolState, event: WorkerGone) -> list[Action]:
        self.workers[event.worker] = Worker(event.worker, live=False)
        return []

    patch.setattr(PoolState, "_worker_gone", worker_gone)


def keeps_the_tasks_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    def worker_gone(self: PoolState, event: WorkerGone) -> list[Action]:
        self.workers[event.worker].live = False
        return []

    patch.setattr(PoolState, "_worker_gone", worker_gone)


def gives_a_task_to_two(patch: pytest.MonkeyPatch) -> None:
    def assign(self: Desk) -> list[Action]:
        actions = _assign(self)
        others = [worker.number for worker in self.workers if worker.live]
        return actions + [Send(other, action.task) for action in actions[:1] for other in others if isinstance(action, Send)]

    patch.setattr(Desk, "assign", assign)


def frees_slots_that_are_written_to(patch: pytest.MonkeyPatch) -> None:
    def discard_all(self: PoolState) -> list[Action]:
        freed: list[Action] = [FreeSlot(batch.slot) for batch in self.batches.values()]
        self.forget_all()
        for worker in self.workers:
            worker.queue.clear()
        return freed

    patch.setattr(PoolState, "discard_all", discard_all)


def loses_what_was_taken_back(patch: pytest.MonkeyPatch) -> None:
    def take_back_to_backlog(self: PoolState, event: TakenBack) -> list[Action]:
        worker = self.workers[event.worker]
        worker.queue = deque(task for task in worker.queue if task.number not in event.tasks)
        return []

    patch.setattr(PoolState, "take_back_to_backlog", take_back_to_backlog)


def resolves_before_the_last_task(patch: pytest.MonkeyPatch) -> None:
    def resolve(self: PoolState, batch: Batch) -> list[Action]:
        batch.open_tasks.clear()
        return _resolve(self, batch)

    patch.setattr(PoolState, "_resolve_if_done", resolve)


def forgives_for_ever(patch: pytest.MonkeyPatch) -> None:
    def retry(self: losses.Losses, task: Task, row: int, event: WorkerGone) -> None:
        _retry(self, task, row, replace(event, strikes=99))

    patch.setattr(losses.Losses, "_retry_suspect", retry)


def drops_the_suspect(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(losses, "around", lambda rows, row, alone: _around(rows, row, alone=False))


def loads_a_row_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "split_evenly", lambda rows, parts: [(0, count + first) for first, count in _split(rows, parts)])


def ignores_bonds(patch: pytest.MonkeyPatch) -> None:
    def worker_for(self: Desk, task: Task) -> Worker | None:
        return next((worker for worker in self.workers if worker.live), None)

    patch.setattr(Desk, "_worker_for", worker_for)


def gives_to_the_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Desk, "_worker_for", lambda self, task: self.workers[task.worker or 0])


def lets_those_who_come_back_wait(patch: pytest.MonkeyPatch) -> None:
    def handle(self: PoolState, event: Event) -> list[Action]:
        if isinstance(event, WorkerBack):
            self.workers[event.worker].live = True
            return []
        return _handle(self, event)

    patch.setattr(PoolState, "handle", handle)


def forgets_what_a_retiring_worker_runs(patch: pytest.MonkeyPatch) -> None:
    def retire(self: PoolState, number: int) -> list[Action]:
        actions = _retire(self, number)
        self.workers[number].queue.clear()
        return actions

    patch.setattr(PoolState, "retire", retire)


def leaves_the_retiring_what_they_have_not_begun(patch: pytest.MonkeyPatch) -> None:
    def retire(self: PoolState, number: int) -> list[Action]:
        _retire(self, number)
        self.workers[number].retiring = False
        return []

    patch.setattr(PoolState, "retire", retire)


def gives_to_the_retiring(patch: pytest.MonkeyPatch) -> None:
    def retire(self: PoolState, number: int) -> list[Action]:
        actions = _retire(self, number)
        self.workers[number].live = True
        return actions

    patch.setattr(PoolState, "retire", retire)


def puts_one_in_the_place_of_another(patch: pytest.MonkeyPatch) -> None:
    def add_worker(self: PoolState) -> int:
        leaving = next((worker for worker in self.workers if worker.retiring), None)
        if leaving is None:
            return _add_worker(self)
        leaving.retiring = False
        return leaving.number

    patch.setattr(PoolState, "add_worker", add_worker)


def gives_to_those_who_are_not_there_yet(patch: pytest.MonkeyPatch) -> None:
    def add_worker(self: PoolState) -> int:
        number = _add_worker(self)
        self.workers[number].live = True
        return number

    patch.setattr(PoolState, "add_worker", add_worker)


def frees_what_the_loser_writes_to(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Races, "writes_to", lambda self, slot: False)


def delivers_from_the_wrong_slot(patch: pytest.MonkeyPatch) -> None:
    def settle(self: Hedging, batch: Batch) -> list[Action]:
        freed = [FreeSlot(piece.slot) for piece in batch.elsewhere]
        batch.elsewhere = []
        return [*freed]

    patch.setattr(Hedging, "settle", settle)


def never_frees_the_slot_of_a_loser(patch: pytest.MonkeyPatch) -> None:
    def loser_ended(self: Hedging, event: TaskEnded) -> list[Action]:
        _loser_ended(self, event)
        return []

    patch.setattr(Hedging, "loser_ended", loser_ended)


def believes_a_hedge_that_failed(patch: pytest.MonkeyPatch) -> None:
    def has_won(self: Hedging, hedge: Task, event: TaskEnded) -> bool:
        return _has_won(self, hedge, replace(event, ending=Ending.ROWS))

    patch.setattr(Hedging, "has_won", has_won)


def does_not_hear_the_bad_rows_of_a_hedge(patch: pytest.MonkeyPatch) -> None:
    def end(self: Races, hedge: int) -> tuple[int, dict[int, object]]:
        return _race_end(self, hedge)[0], {}

    patch.setattr(Races, "end", end)


@pytest.mark.parametrize(
    "mutate",
    [
        frees_what_the_loser_writes_to,
        delivers_from_the_wrong_slot,
        never_frees_the_slot_of_a_loser,
        believes_a_hedge_that_failed,
        does_not_hear_the_bad_rows_of_a_hedge,
    ],
)
def test_a_long_way_finds_a_state_that(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(200):
            walk(seed, 400)


@pytest.mark.parametrize(
    "mutate",
    [
        forgets_the_tasks_of_the_dead,
        keeps_the_tasks_of_the_dead,
        gives_a_task_to_two,
        frees_slots_that_are_written_to,
        loses_what_was_taken_back,
        resolves_before_the_last_task,
        forgives_for_ever,
        drops_the_suspect,
        loads_a_row_twice,
        ignores_bonds,
        gives_to_the_dead,
        lets_those_who_come_back_wait,
        forgets_what_a_retiring_worker_runs,
        leaves_the_retiring_what_they_have_not_begun,
        gives_to_the_retiring,
        puts_one_in_the_place_of_another,
        gives_to_those_who_are_not_there_yet,
    ],
)
def test_the_world_finds_a_state_that(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(World, settings=until_found)
