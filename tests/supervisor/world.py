"""A random world around PoolState: workers read, finish, fail, bounce, die; tasks are taken back; epochs end early.

The world believes only what it did itself and what it was told to do (the actions); after every step the state must agree with it:

1. No task is lost and none has two owners: each open task is in exactly one queue or in the backlog, and a queue is what was sent.
2. Each row of a batch is loaded exactly once, or reported, before its batch is resolved; a row suspected twice is reported.
3. A slot is freed only when no process holds a task for it.
4. No wait that nothing can end: a batch that loads has a task in a queue, or one that waits for a worker to come back.
5. A task of a static plan is done by the worker it is bound to.
6. A late task may be run a second time: the first result is the one that is delivered, the second one harms nobody.
7. Workers are added and retire at any moment: who retires ends what it has begun, nobody comes in its place, and its place is used again.
8. Whatever happened, once no more faults happen every batch is resolved and every forgotten slot is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import rule

from antifreeze.supervisor.exchange import Ending, RowFailed, Send, TakenBack, TaskEnded, WorkerBack, WorkerGone
from antifreeze.supervisor.tasks import STRIKES, WHOLE_BATCH, Phase, Task

from .ground import Ground, Made, Process
from .tables import Bad

MOST_BATCHES = 5
MOST_WORKERS = 4
any_of = st.integers(0, 11)
"""Taken modulo the number of those there are."""


EVENTS: dict[str, tuple[Callable[[World], object], dict[str, st.SearchStrategy[Any]], int]] = {}
"""What may happen: when, with which arguments, how often."""

Happens = TypeVar("Happens", bound=Callable[..., None])


def event(*, when: Callable[[World], object], weight: int = 1, **arguments: st.SearchStrategy[Any]) -> Callable[[Happens], Happens]:
    def register(happens: Happens) -> Happens:
        EVENTS[happens.__name__] = (when, arguments, weight)
        return happens

    return register


DICE: dict[str, Callable[[Random], Any]] = {
    "rows": lambda dice: dice.randint(1, 5),
    "tasks": lambda dice: dice.randint(1, 3),
    "most": lambda dice: dice.randint(1, 3),
    "odd": lambda dice: dice.randint(0, 5),
    "mask": lambda dice: dice.randint(1, 31),
    "strikes": lambda dice: dice.randint(STRIKES, STRIKES + 1),
    "order": lambda dice: [dice.randrange(12) for _ in range(dice.randint(1, 6))],
    "blame": lambda dice: dice.choice(["nobody", "row", "row", "batch", "stale"]),
    **dict.fromkeys(("at", "row"), lambda dice: dice.randrange(12)),
    **dict.fromkeys(("stream", "bounces", "of_batch", "final"), lambda dice: dice.random() < 0.5),
}
"""The same arguments, thrown with plain dice."""


def walk(seed: int, steps: int) -> Counter[str]:
    """A long way through one world, without hypothesis, whose worlds are many and short; says what happened how often."""
    dice, world, seen = Random(seed), World(), Counter[str]()
    world.begin(workers=dice.randint(1, 3), forgive=dice.random() < 0.5, static=dice.random() < 0.2)
    for _ in range(steps):
        possible = [name for name, (when, _, weight) in EVENTS.items() if when(world) for _ in range(weight)]
        name = dice.choice(possible)
        seen[name] += 1
        world.sound = False
        getattr(world, name)(**{argument: DICE[argument](dice) for argument in EVENTS[name][1]})
        world.all_is_well()
    world.teardown()
    return seen


class World(Ground):
    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        """Chosen here among what can happen now: hypothesis' own choice of rules spends most steps on those that are always possible,
        and its own choice from a list on the first ones."""
        self.sound = False
        possible = [name for name, (when, _, weight) in EVENTS.items() if when(self) for _ in range(weight)]
        name = Random(data.draw(st.integers(0, 2**64 - 1), label="what happens")).choice(possible)
        getattr(self, name)(**{argument: data.draw(values, label=argument) for argument, values in EVENTS[name][1].items()})

    # --- choosing ---

    def pick(self, candidates: list[int], at: int) -> int:
        return candidates[at % len(candidates)]

    def busy(self) -> list[int]:
        return [number for number, process in enumerate(self.processes) if process.running]

    def holding(self) -> list[int]:
        return [number for number, process in enumerate(self.processes) if process.held()]

    def alive(self) -> list[int]:
        return [number for number, process in enumerate(self.processes) if process.alive]

    def resolved(self, *phases: Phase) -> list[int]:
        return [number for number, batch in self.state.batches.items() if batch.phase in phases and not self.made[number].discarded]

    def end_task(self, worker: int, ending: Ending, **more: object) -> None:
        process = self.processes[worker]
        task, process.running = process.running, None
        assert task is not None
        self.lost.discard(task.number)
        self.perform(self.state.handle(TaskEnded(worker, task.number, ending, **more)))  # type: ignore[arg-type]

    def task_of(self, worker: int) -> tuple[Task, Made]:
        task = self.processes[worker].running
        assert task is not None
        return task, self.made[task.batch]

    # --- the pool's side ---

    def may_submit(self) -> bool:
        return len(self.made) < MOST_BATCHES and not all(process.retired for process in self.processes)

    @event(when=lambda self: self.may_submit(), weight=2, rows=st.integers(1, 5), tasks=st.integers(1, 3), stream=st.booleans())
    def submit(self, rows: int, tasks: int, stream: bool) -> None:
        number, slot = self.numbers, self.new_slot(self.numbers)
        self.numbers += 1
        bound = number % len(self.processes) if self.static else None
        streams = stream and self.static
        self.made[number] = Made(slot, rows, bound, streams)
        self.perform(self.state.submit(number, slot, rows, 1 if self.static else tasks, stream=bound if streams else None, worker=bound))

    @event(when=lambda self: self.resolved(Phase.READY, Phase.FAILED, Phase.EMPTY, Phase.HOLED), at=any_of)
    def deliver(self, at: int) -> None:
        number = self.pick(self.resolved(Phase.READY, Phase.FAILED, Phase.EMPTY, Phase.HOLED), at)
        batch = self.state.take(number)
        assert self.slots[batch.slot] == number
        if batch.phase in (Phase.READY, Phase.HOLED) and not batch.must_reload:
            wrong = [row for row in range(batch.rows) if row not in batch.bad_rows and self.memory[batch.slot].get(row) != number]
            assert not wrong, f"rows {wrong} of batch {number} are not in slot {batch.slot}"
        del self.made[number]
        self.forget(batch.slot)

    @event(when=lambda self: self.resolved(Phase.HOLED), at=any_of, most=st.integers(1, 3))
    def repair(self, at: int, most: int) -> None:
        number = self.pick(self.resolved(Phase.HOLED), at)
        batch, made = self.state.batches[number], self.made[number]
        bad = sorted(batch.bad_rows)
        if batch.must_reload or batch.layout is None:
            if len(bad) == batch.rows:
                return
            made.begin_anew()
            made.rows, made.reported, made.suspected = batch.rows - len(bad), set(), Counter()
            self.perform(self.state.reload(number, made.rows))
            return
        for row in bad[:most]:
            made.reported.discard(row)
            made.suspected[row] = made.loaded[row] = 0
            self.perform(self.state.fill_row(number, row))

    @event(when=lambda self: self.state.recalls())
    def share(self) -> None:
        self.perform(self.state.recalls())

    @event(when=lambda self: self.idle(), at=any_of)
    def take_back(self, at: int) -> None:
        self.hand_back(self.pick([number for number, process in enumerate(self.processes) if process.unread], at))

    @event(when=lambda self: self.busy() and self.forgotten_since < self.numbers)
    def new_epoch(self) -> None:
        for worker in self.alive():
            self.perform(self.state.take_back_to_backlog(TakenBack(worker, self.unread_of(worker))))
        for batch in self.made.values():
            batch.discarded = True
        for hedge in list(self.hedges):
            self.forget_hedge(hedge)
            self.lost.add(hedge)
        self.forgotten_since = self.numbers
        self.perform(self.state.discard_all())

    # --- the workers' side ---

    def idle(self) -> list[int]:
        return [number for number, process in enumerate(self.processes) if process.alive and not process.running and process.unread]

    @event(when=lambda self: self.idle(), weight=2, at=any_of)
    def read(self, at: int) -> None:
        process = self.processes[self.pick(self.idle(), at)]
        process.running = process.unread.popleft()

    @event(when=lambda self: self.holding(), order=st.lists(any_of, min_size=1, max_size=6))
    def go_on(self, order: list[int]) -> None:
        """Some of the workers take one more step each."""
        for at in order:
            holding = [worker for worker in self.holding() if self.processes[worker].alive]
            if holding:
                self.step(self.pick(holding, at))

    def step(self, worker: int) -> None:
        process = self.processes[worker]
        if process.running:
            self.finish_of(worker)
        else:
            process.running = process.unread.popleft()

    @event(when=lambda self: self.busy(), weight=2, at=any_of, odd=st.integers(0, 5))
    def finish(self, at: int, odd: int) -> None:
        self.finish_of(self.pick(self.busy(), at), layout=int(odd == 0), packs=odd == 1)

    def finish_of(self, worker: int, layout: int = 0, packs: bool = False, bad: frozenset[int] = frozenset()) -> None:
        task = self.processes[worker].running
        assert task is not None
        self.memory[self.writes[task.number]].update(dict.fromkeys((row for row in task.row_range() if row not in bad), task.batch))
        if not self.comes_first(task):
            self.end_task(worker, Ending.ROWS, rows=task.rows, layout=layout)
            return
        batch = self.made[task.batch]
        batch.loaded.update(row for row in task.row_range() if row not in bad)
        if task.whole and packs:
            self.end_task(worker, Ending.PARCEL, rows=task.rows, parcel_bytes=9)
            return
        batch.layouts.add(layout)
        batch.spoiled |= len(batch.layouts) > 1
        self.end_task(worker, Ending.ROWS, rows=task.rows, layout=layout)

    def comes_first(self, task: Task) -> bool:
        """A good result: whether it counts. Whoever ran beside it has lost."""
        if task.number in self.hedges:
            beside = self.hedges[task.number]
            if self.forget_hedge(task.number):
                return False
            if self.held_anywhere(beside):
                self.lost.add(beside)
            return True
        self.loses_its_hedge(task)
        return task.number not in self.lost

    def loses_its_hedge(self, task: Task) -> None:
        hedge = self.hedge_of(task)
        if hedge is not None:
            self.forget_hedge(hedge)
            self.lost.add(hedge)

    def counts(self, worker: int) -> bool:
        """Before a bad end: whether anybody minds. A hedge that ends badly is forgotten."""
        task = self.processes[worker].running
        assert task is not None
        role = self.role(task)
        if role == "hedge":
            self.forget_hedge(task.number)
        elif role == "task":
            self.loses_its_hedge(task)
        return role == "task"

    def late(self) -> list[int]:
        return [number for number in self.holding() if self.state.hedging.late_task([number])]

    @event(when=lambda self: self.late(), weight=6, at=any_of)
    def hedge(self, at: int) -> None:
        task = self.state.hedging.late_task([self.pick(self.late(), at)])
        assert task is not None
        assert self.role(task) == "task"
        assert not self.made[task.batch].discarded
        (send,) = self.state.hedging.begin(task, self.new_slot(task.batch))
        assert isinstance(send, Send)
        self.hedges[send.task.number] = task.number
        self.perform([send])

    @event(when=lambda self: self.forgive and self.busy(), at=any_of, mask=st.integers(1, 31), bounces=st.booleans())
    def finish_with_bad_rows(self, at: int, mask: int, bounces: bool) -> None:
        worker = self.pick(self.busy(), at)
        task = self.processes[worker].running
        assert task is not None
        bad = frozenset(row for row in task.row_range() if mask >> row & 1)
        for row in bad:
            self.report_row(task, row)
        if bad and (bounces or len(bad) == task.rows):
            if self.counts(worker):
                self.made[task.batch].spoiled = True
            self.end_task(worker, Ending.BOUNCED)
        else:
            self.finish_of(worker, bad=bad)

    @event(when=lambda self: self.forgive and self.busy(), at=any_of, row=any_of)
    def report_and_go_on(self, at: int, row: int) -> None:
        task = self.processes[self.pick(self.busy(), at)].running
        assert task is not None
        self.report_row(task, self.pick(list(task.row_range()), row))

    def report_row(self, task: Task, row: int) -> None:
        if task.number in self.hedges:
            self.withheld.setdefault(task.number, set()).add(row)
        elif task.number not in self.lost:
            self.made[task.batch].reported.add(row)
        self.perform(self.state.handle(RowFailed(task.number, row, Bad(row))))

    def running_parts(self) -> list[int]:
        return [number for number, process in enumerate(self.processes) if process.running and not process.running.whole]

    @event(when=lambda self: self.running_parts(), weight=3, at=any_of)
    def bounce(self, at: int) -> None:
        worker = self.pick(self.running_parts(), at)
        if self.counts(worker):
            self.task_of(worker)[1].spoiled = True
        self.end_task(worker, Ending.BOUNCED)

    def running_streams(self) -> list[int]:
        running = [(number, process.running) for number, process in enumerate(self.processes)]
        whole = [(number, task) for number, task in running if task and task.whole]  # a row that is filled again is of no stream
        return [number for number, task in whole if self.role(task) == "task" and self.made[task.batch].stream]

    @event(when=lambda self: self.running_streams(), at=any_of)
    def end_stream(self, at: int) -> None:
        worker = self.pick(self.running_streams(), at)
        self.task_of(worker)[1].empty = True
        self.end_task(worker, Ending.STREAM_ENDED)

    @event(when=lambda self: self.busy(), at=any_of, row=any_of, of_batch=st.booleans())
    def fail(self, at: int, row: int, of_batch: bool) -> None:
        worker = self.pick(self.busy(), at)
        task = self.processes[worker].running
        assert task is not None
        failure = Bad(None, None) if of_batch else Bad(self.pick(list(task.row_range()), row))
        if self.counts(worker):
            batch = self.made[task.batch]
            if failure.row is None or not self.forgive:
                batch.erred = True
            else:
                batch.reported.add(failure.row)
                batch.spoiled |= task.whole
        self.end_task(worker, Ending.FAILED, failure=failure)

    # --- life and death ---

    @event(
        when=lambda self: self.holding(),
        weight=2,
        at=any_of,
        blame=st.sampled_from(["nobody", "row", "row", "batch", "stale"]),
        row=any_of,
        final=st.booleans(),
        strikes=st.integers(STRIKES, STRIKES + 1),
    )
    def die(self, at: int, blame: str, row: int, final: bool, strikes: int) -> None:
        worker = self.pick(self.holding(), at)
        process = self.processes[worker]
        task = process.running
        promoted = self.bury(worker)
        if task is not None and (promoted or self.role(task) != "task" or task.number not in self.writes):
            task = None
        if process.leaving or task is None or blame in ("nobody", "stale"):
            stale = blame == "stale" and not process.leaving
            self.perform(self.state.handle(WorkerGone(worker, 10**6, 0, "lost") if stale else WorkerGone(worker)))
            return
        suspect = WHOLE_BATCH if blame == "batch" else self.pick(list(task.row_range()), row)
        self.die_of(task, WorkerGone(worker, task.number, suspect, "lost", final, strikes))

    def bury(self, worker: int) -> list[int]:
        """What it held is dropped, where it was a second run; a second run of what it held takes its place. The tasks replaced so."""
        process = self.processes[worker]
        self.processes[worker] = Process(alive=False, retired=process.retired)
        replaced = []
        for task in process.held():
            hedge = self.hedge_of(task)
            if self.role(task) != "task":
                self.lost.discard(task.number)
                self.withheld.pop(task.number, None)
                self.hedges.pop(task.number, None)
                del self.writes[task.number]  # nobody's
            elif hedge is not None:
                self.made[task.batch].reported |= self.forget_hedge(hedge)
                replaced.append(task.number)
        return replaced

    def running_guilty(self) -> list[int]:
        running = [(number, process.running) for number, process in enumerate(self.processes)]
        own = [(number, task) for number, task in running if task and self.role(task) == "task" and self.hedge_of(task) is None]
        return [number for number, task in own if self.made[task.batch].guilty in task.row_range()]

    @event(when=lambda self: self.running_guilty(), weight=3, at=any_of)
    def die_of_the_same_row(self, at: int) -> None:
        worker = self.pick(self.running_guilty(), at)
        task, batch = self.task_of(worker)
        if not self.processes[worker].leaving:
            self.bury(worker)
            self.die_of(task, WorkerGone(worker, task.number, batch.guilty, "lost"))

    def die_of(self, task: Task, gone: WorkerGone) -> None:
        made = self.made[task.batch]
        gone = replace(gone, row=WHOLE_BATCH) if made.stream else gone  # which item of a stream it was is no affair of rows
        row = gone.row
        assert row is not None
        made.suspected[row] += 1
        bad = gone.final or made.suspected[row] >= gone.strikes
        if made.stream:
            bad = (gone.final and not self.forgive) or made.suspected[row] >= gone.strikes
        else:
            unproven = row == WHOLE_BATCH and not task.singly and task.rows > 1
            bad = bad and not unproven
        if bad and (row == WHOLE_BATCH or not self.forgive):
            made.erred = True
        elif bad:
            made.reported.add(row)
            made.spoiled |= task.whole
        self.perform(self.state.handle(gone))
        if bad and not made.discarded:
            batch = self.state.batches[task.batch]
            assert row in {*batch.bad_rows, *batch.errors}, f"row {row} of batch {task.batch} should be bad by now"

    def absent(self) -> list[int]:
        """Who will come, or has to go first."""
        processes = enumerate(self.processes)
        return [number for number, process in processes if not process.accepting and (process.alive or not process.retired)]

    @event(when=lambda self: self.absent(), at=any_of)
    def come_back(self, at: int) -> None:
        worker = self.pick(self.absent(), at)
        process = self.processes[worker]
        if not process.alive:
            self.revive(worker)
        elif not process.running:
            self.go(worker)

    def revive(self, worker: int) -> None:
        self.processes[worker] = Process()
        self.perform(self.state.handle(WorkerBack(worker)))

    @event(when=lambda self: any(self.processes[worker].accepting for worker in self.holding()), at=any_of)
    def recycle(self, at: int) -> None:
        """As the pool does it: nothing new for this worker, what it has not read goes to others; it ends after what it runs."""
        worker = self.pick([worker for worker in self.holding() if self.processes[worker].accepting], at)
        self.processes[worker].leaving = True
        self.state.workers[worker].live = False
        self.hand_back(worker)

    # --- more and fewer of them ---

    def may_retire(self) -> list[int]:
        staying = [number for number, process in enumerate(self.processes) if not process.retired]
        open_batches = any(not batch.discarded for batch in self.made.values())
        return [] if self.static or len(staying) <= open_batches else [number for number in staying if not self.processes[number].leaving]

    @event(when=lambda self: self.numbers % 3 == 1 and self.may_retire(), at=any_of)
    def retire(self, at: int) -> None:
        """As the pool does it: a worker that runs something ends after that; one that has not come yet will not."""
        worker = self.pick(self.may_retire(), at)
        process = self.processes[worker]
        process.retired = process.leaving = True
        self.perform(self.state.retire(worker))
        if not process.alive:
            self.perform(self.state.handle(WorkerGone(worker)))

    def may_grow(self) -> bool:
        return not self.static and len(self.state.staying()) < MOST_WORKERS

    @event(when=lambda self: self.may_grow() and (self.numbers % 3 == 2 or not self.may_submit()))
    def grow(self) -> None:
        """One more, who is not there yet: `come_back` brings it."""
        before = [process.alive for process in self.processes]
        worker = self.state.add_worker()
        if worker == len(self.processes):
            self.processes.append(Process(alive=False))
        else:
            assert not before[worker], f"worker {worker} was put in the place of one that is still there"
            self.processes[worker] = Process(alive=False)

    def go(self, worker: int) -> None:
        self.bury(worker)
        self.perform(self.state.handle(WorkerGone(worker)))

    def teardown(self) -> None:
        """No more faults: everything comes to its end."""
        if not getattr(self, "sound", False):
            return  # what went wrong is on its way to the reader
        for _ in range(500):
            for worker, process in enumerate(self.processes):
                if not process.alive and not process.retired:
                    self.revive(worker)
                elif process.held():
                    self.step(worker)
                elif process.alive and process.leaving:
                    self.go(worker)
            self.all_is_well()
            if not self.absent() and not self.holding():
                break
        assert not self.state.backlog
        assert set(self.slots) == {batch.slot for batch in self.state.batches.values()}, "slots that nobody uses and nobody frees"
        assert not any(batch.discarded for batch in self.made.values()), "slots that are never freed"
        assert all(batch.phase is not Phase.LOADING for batch in self.state.batches.values()), "batches that never end"
