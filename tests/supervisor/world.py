"""A random world around PoolState: workers read, finish, fail, bounce, die; tasks are taken back; epochs end early.

The world believes only what it did itself and what it was told to do (the actions); after every step the state must agree with it:

1. No task is lost and none has two owners: each open task is in exactly one queue or in the backlog, and a queue is what was sent.
2. Each row of a batch is loaded exactly once, or reported, before its batch is resolved; a row suspected twice is reported.
3. A slot is freed only when no process holds a task for it.
4. No wait that nothing can end: a batch that loads has a task in a queue, or one that waits for a worker to come back.
5. A task of a static plan is done by the worker it is bound to.
6. Whatever happened, once no more faults happen every batch is resolved and every forgotten slot is free.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from antifreeze.supervisor.state import (
    STRIKES,
    WHOLE_BATCH,
    Action,
    Ending,
    FreeSlot,
    Phase,
    PoolState,
    RowFailed,
    Send,
    TakenBack,
    Task,
    TaskEnded,
    WorkerBack,
    WorkerGone,
)

from .tables import Bad

MOST_BATCHES = 5
any_of = st.integers(0, 11)
"""Taken modulo the number of those there are."""


@dataclass
class Made:
    """A batch as the world knows it."""

    slot: int
    rows: int
    bound: int | None
    stream: bool
    loaded: Counter[int] = field(default_factory=Counter)  # since it was begun (anew)
    layouts: set[int] = field(default_factory=set)
    spoiled: bool = False  # what lies in the slot cannot be delivered
    reported: set[int] = field(default_factory=set)
    suspected: Counter[int] = field(default_factory=Counter)
    erred: bool = False
    empty: bool = False
    discarded: bool = False

    def begin_anew(self) -> None:
        self.loaded.clear()
        self.layouts.clear()
        self.spoiled = False


@dataclass
class Process:
    alive: bool = True
    leaving: bool = False
    unread: deque[Task] = field(default_factory=deque)
    running: Task | None = None

    @property
    def accepting(self) -> bool:
        return self.alive and not self.leaving

    def held(self) -> list[Task]:
        return [*([self.running] if self.running else []), *self.unread]


class World(RuleBasedStateMachine):
    @initialize(workers=st.integers(1, 3), forgive=st.booleans(), static=st.booleans())
    def begin(self, workers: int, forgive: bool, static: bool) -> None:
        self.state = PoolState(workers, forgive)
        self.forgive, self.static = forgive, static
        self.processes = [Process() for _ in range(workers)]
        self.made: dict[int, Made] = {}
        self.slots: dict[int, int] = {}  # slots in use, and by which batch
        self.numbers = self.forgotten_since = 0

    # --- acting as told ---

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.receive(action.worker, action.task)
            elif isinstance(action, FreeSlot):
                self.free(action.slot)
            else:
                self.hand_back(action.worker)

    def receive(self, worker: int, task: Task) -> None:
        batch = self.made[task.batch]
        assert self.processes[worker].accepting, f"{task} sent to worker {worker}, which is not there"
        assert not batch.discarded, f"{task} of a forgotten batch was sent"
        assert batch.bound in (None, worker), f"{task} is bound to worker {batch.bound} and was sent to {worker}"
        owners = [number for number, process in enumerate(self.processes) if task in process.held()]
        assert not owners, f"{task} sent to worker {worker} belongs to {owners}"
        if task.whole and batch.spoiled:
            batch.begin_anew()
        again = [row for row in task.row_range() if batch.loaded[row]]
        assert not again, f"rows {again} of batch {task.batch} are loaded twice"
        self.processes[worker].unread.append(task)

    def free(self, slot: int) -> None:
        number = self.slots.pop(slot)
        assert self.made[number].discarded, f"the slot of batch {number} was freed while the batch is wanted"
        self.forget(number)

    def forget(self, number: int) -> None:
        """The batch is delivered, or its slot is free."""
        del self.made[number]
        holders = [worker for worker, process in enumerate(self.processes) for task in process.held() if task.batch == number]
        assert not holders, f"workers {holders} may still write to the slot of batch {number}"

    def hand_back(self, worker: int) -> None:
        tasks = self.unread_of(worker)
        if tasks:
            self.perform(self.state.handle(TakenBack(worker, tasks)))

    def unread_of(self, worker: int) -> tuple[int, ...]:
        unread = self.processes[worker].unread
        tasks = tuple(task.number for task in unread)
        unread.clear()
        return tasks

    # --- choosing ---

    def pick(self, candidates: list[int], at: int) -> int:
        return candidates[at % len(candidates)]

    def busy(self) -> list[int]:
        return [number for number, process in enumerate(self.processes) if process.running]

    def alive(self) -> list[int]:
        return [number for number, process in enumerate(self.processes) if process.alive]

    def resolved(self, *phases: Phase) -> list[int]:
        return [number for number, batch in self.state.batches.items() if batch.phase in phases and not self.made[number].discarded]

    def end_task(self, worker: int, ending: Ending, **more: object) -> None:
        process = self.processes[worker]
        task, process.running = process.running, None
        assert task is not None
        self.perform(self.state.handle(TaskEnded(worker, task.number, ending, **more)))  # type: ignore[arg-type]

    def task_of(self, worker: int) -> tuple[Task, Made]:
        task = self.processes[worker].running
        assert task is not None
        return task, self.made[task.batch]

    # --- the pool's side ---

    @precondition(lambda self: len(self.made) < MOST_BATCHES)
    @rule(rows=st.integers(1, 5), tasks=st.integers(1, 3), stream=st.booleans())
    def submit(self, rows: int, tasks: int, stream: bool) -> None:
        number, slot = self.numbers, next(slot for slot in range(99) if slot not in self.slots)
        self.numbers += 1
        bound = number % len(self.processes) if self.static else None
        streams = stream and self.static
        self.made[number] = Made(slot, rows, bound, streams)
        self.slots[slot] = number
        self.perform(self.state.submit(number, slot, rows, 1 if self.static else tasks, stream=bound if streams else None, worker=bound))

    @precondition(lambda self: self.resolved(Phase.READY, Phase.FAILED, Phase.EMPTY, Phase.HOLED))
    @rule(at=any_of)
    def deliver(self, at: int) -> None:
        number = self.pick(self.resolved(Phase.READY, Phase.FAILED, Phase.EMPTY, Phase.HOLED), at)
        batch = self.state.take(number)
        assert batch.slot == self.made[number].slot
        del self.slots[batch.slot]
        self.forget(number)

    @precondition(lambda self: self.resolved(Phase.HOLED))
    @rule(at=any_of, most=st.integers(1, 3))
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

    @precondition(lambda self: self.state.recalls())
    @rule()
    def share(self) -> None:
        self.perform(self.state.recalls())

    @precondition(lambda self: self.idle())
    @rule(at=any_of)
    def take_back(self, at: int) -> None:
        self.hand_back(self.pick([number for number, process in enumerate(self.processes) if process.unread], at))

    @precondition(lambda self: self.busy() and self.forgotten_since < self.numbers)
    @rule()
    def new_epoch(self) -> None:
        for worker in self.alive():
            self.state.take_back_to_backlog(TakenBack(worker, self.unread_of(worker)))
        for batch in self.made.values():
            batch.discarded = True
        self.forgotten_since = self.numbers
        self.perform(self.state.discard_all())

    # --- the workers' side ---

    def idle(self) -> list[int]:
        return [number for number, process in enumerate(self.processes) if process.alive and not process.running and process.unread]

    @precondition(lambda self: self.idle())
    @rule(at=any_of)
    def read(self, at: int) -> None:
        process = self.processes[self.pick(self.idle(), at)]
        process.running = process.unread.popleft()

    @precondition(lambda self: self.busy())
    @rule(at=any_of, odd=st.integers(0, 5))
    def finish(self, at: int, odd: int) -> None:
        self.finish_of(self.pick(self.busy(), at), layout=int(odd == 0), packs=odd == 1)

    def finish_of(self, worker: int, layout: int = 0, packs: bool = False, bad: frozenset[int] = frozenset()) -> None:
        task, batch = self.task_of(worker)
        batch.loaded.update(row for row in task.row_range() if row not in bad)
        if task.whole and packs:
            self.end_task(worker, Ending.PARCEL, rows=task.rows, parcel_bytes=9)
            return
        batch.layouts.add(layout)
        batch.spoiled |= len(batch.layouts) > 1
        self.end_task(worker, Ending.ROWS, rows=task.rows, layout=layout)

    @precondition(lambda self: self.forgive and self.busy())
    @rule(at=any_of, mask=st.integers(1, 31), bounces=st.booleans())
    def finish_with_bad_rows(self, at: int, mask: int, bounces: bool) -> None:
        worker = self.pick(self.busy(), at)
        task, batch = self.task_of(worker)
        bad = frozenset(row for row in task.row_range() if mask >> row & 1)
        for row in bad:
            self.report_row(task, row)
        if bad and (bounces or len(bad) == task.rows):
            batch.spoiled = True
            self.end_task(worker, Ending.BOUNCED)
        else:
            self.finish_of(worker, bad=bad)

    @precondition(lambda self: self.forgive and self.busy())
    @rule(at=any_of, row=any_of)
    def report_and_go_on(self, at: int, row: int) -> None:
        task, _ = self.task_of(self.pick(self.busy(), at))
        self.report_row(task, self.pick(list(task.row_range()), row))

    def report_row(self, task: Task, row: int) -> None:
        self.made[task.batch].reported.add(row)
        self.perform(self.state.handle(RowFailed(task.number, row, Bad(row))))

    @precondition(lambda self: any(not self.task_of(worker)[0].whole for worker in self.busy()))
    @rule(at=any_of)
    def bounce(self, at: int) -> None:
        worker = self.pick([worker for worker in self.busy() if not self.task_of(worker)[0].whole], at)
        self.task_of(worker)[1].spoiled = True
        self.end_task(worker, Ending.BOUNCED)

    @precondition(lambda self: any(self.task_of(worker)[1].stream for worker in self.busy()))
    @rule(at=any_of)
    def end_stream(self, at: int) -> None:
        worker = self.pick([worker for worker in self.busy() if self.task_of(worker)[1].stream], at)
        self.task_of(worker)[1].empty = True
        self.end_task(worker, Ending.STREAM_ENDED)

    @precondition(lambda self: self.busy())
    @rule(at=any_of, row=any_of, of_batch=st.booleans())
    def fail(self, at: int, row: int, of_batch: bool) -> None:
        worker = self.pick(self.busy(), at)
        task, batch = self.task_of(worker)
        failure = Bad(None, None) if of_batch else Bad(self.pick(list(task.row_range()), row))
        if failure.row is None or not self.forgive:
            batch.erred = True
        else:
            batch.reported.add(failure.row)
            batch.spoiled |= task.whole
        self.end_task(worker, Ending.FAILED, failure=failure)

    # --- life and death ---

    @precondition(lambda self: self.alive())
    @rule(at=any_of, blame=st.sampled_from(["nobody", "row", "row", "batch", "stale"]), row=any_of, final=st.booleans())
    def die(self, at: int, blame: str, row: int, final: bool) -> None:
        worker = self.pick(self.alive(), at)
        process = self.processes[worker]
        task = process.running
        self.processes[worker] = Process(alive=False)
        if process.leaving or task is None or blame in ("nobody", "stale"):
            stale = blame == "stale" and not process.leaving
            self.perform(self.state.handle(WorkerGone(worker, 10**6, 0, "lost") if stale else WorkerGone(worker)))
            return
        suspect = WHOLE_BATCH if blame == "batch" else self.pick(list(task.row_range()), row)
        self.suspect(task, suspect, final)
        self.perform(self.state.handle(WorkerGone(worker, task.number, suspect, "lost", final)))
        self.check_suspect(task, suspect, final)

    def suspect(self, task: Task, row: int, final: bool) -> None:
        batch = self.made[task.batch]
        batch.suspected[row] += 1
        if not final and batch.suspected[row] < STRIKES:
            return
        if row == WHOLE_BATCH or not self.forgive:
            batch.erred = True
        else:
            batch.reported.add(row)
            batch.spoiled |= task.whole

    def check_suspect(self, task: Task, row: int, final: bool) -> None:
        made = self.made.get(task.batch)
        if made is not None and not made.discarded and (final or made.suspected[row] >= STRIKES):
            batch = self.state.batches[task.batch]
            assert row in {*batch.bad_rows, *batch.errors}, f"row {row} of batch {task.batch} should be bad by now"

    @precondition(lambda self: not all(process.alive for process in self.processes))
    @rule(at=any_of)
    def come_back(self, at: int) -> None:
        self.revive(self.pick([number for number, process in enumerate(self.processes) if not process.alive], at))

    def revive(self, worker: int) -> None:
        self.processes[worker] = Process()
        self.perform(self.state.handle(WorkerBack(worker)))

    @precondition(lambda self: any(process.accepting for process in self.processes))
    @rule(at=any_of)
    def recycle(self, at: int) -> None:
        """As the pool does it: nothing new for this worker, what it has not read goes to others; it ends after what it runs."""
        worker = self.pick([number for number, process in enumerate(self.processes) if process.accepting], at)
        self.processes[worker].leaving = True
        self.state.workers[worker].live = False
        self.hand_back(worker)

    @precondition(lambda self: any(process.leaving and not process.running for process in self.processes))
    @rule(at=any_of)
    def leave(self, at: int) -> None:
        self.go(self.pick([number for number, process in enumerate(self.processes) if process.leaving and not process.running], at))

    def go(self, worker: int) -> None:
        self.processes[worker] = Process(alive=False)
        self.perform(self.state.handle(WorkerGone(worker)))

    # --- what must hold ---

    @invariant()
    def queues_are_what_was_sent(self) -> None:
        for worker, process in zip(self.state.workers, self.processes, strict=True):
            assert list(worker.queue) == process.held(), f"worker {worker.number}"

    @invariant()
    def every_open_task_is_in_one_place(self) -> None:
        queued = [task for worker in self.state.workers for task in worker.queue]
        numbers = Counter(task.number for task in [*queued, *self.state.backlog])
        for batch in self.state.batches.values():
            places = {number: numbers.pop(number, 0) for number in batch.open_tasks}
            assert set(places.values()) <= {1}, f"tasks of batch {batch.number}, and in how many places they are: {places}"
        assert not numbers, f"tasks of no batch: {numbers}"

    @invariant()
    def tasks_share_no_row(self) -> None:
        rows = Counter(
            (task.batch, row)
            for queue in [*(w.queue for w in self.state.workers), self.state.backlog]
            for task in queue
            for row in task.row_range()
        )
        assert all(count == 1 and row < self.made[batch].rows for (batch, row), count in rows.items())

    @invariant()
    def something_will_end_every_wait(self) -> None:
        waiting = {task.number: task for task in self.state.backlog}
        for number, batch in self.state.batches.items():
            if batch.phase is not Phase.LOADING:
                continue
            assert batch.open_tasks, f"batch {number} loads, and nobody loads it"
            for task in batch.open_tasks & waiting.keys():
                bound = self.made[number].bound
                able = self.processes if bound is None else [self.processes[bound]]
                assert not any(process.accepting for process in able), f"task {task} waits though a worker is there"
                assert not batch.discarded, f"task {task} of a forgotten batch waits for a worker"

    @invariant()
    def what_is_resolved_is_whole_or_says_why(self) -> None:
        assert set(self.state.batches) == set(self.made)
        for number in self.resolved(Phase.READY, Phase.HOLED, Phase.FAILED, Phase.EMPTY):
            batch, made = self.state.batches[number], self.made[number]
            assert not batch.open_tasks
            assert batch.rows == made.rows
            missing = [row for row in range(made.rows) if made.loaded[row] != 1 and row not in made.reported]
            if made.empty or made.erred:
                assert batch.phase is (Phase.FAILED if made.erred else Phase.EMPTY)
                assert bool(batch.errors) == made.erred
                continue
            assert set(batch.bad_rows) == made.reported
            assert batch.phase is (Phase.HOLED if made.reported else Phase.READY)
            assert batch.must_reload == made.spoiled, f"batch {number}: {made}"
            assert made.spoiled or not missing, f"rows {missing} of batch {number} are neither loaded nor reported"
            assert batch.phase is Phase.HOLED or not made.spoiled

    def teardown(self) -> None:
        """No more faults: everything comes to its end."""
        if not hasattr(self, "processes"):
            return
        for _ in range(500):
            for worker, process in enumerate(self.processes):
                if not process.alive:
                    self.revive(worker)
                elif process.running:
                    self.finish_of(worker)
                elif process.unread:
                    process.running = process.unread.popleft()
                elif process.leaving:
                    self.go(worker)
            self.what_is_resolved_is_whole_or_says_why()
            if not any(process.held() or not process.accepting for process in self.processes):
                break
        assert not self.state.backlog
        assert not any(batch.discarded for batch in self.made.values()), "slots that are never freed"
        assert all(batch.phase is not Phase.LOADING for batch in self.state.batches.values()), "batches that never end"
