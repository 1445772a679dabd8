"""The ground the random world stands on: what it knows, what it does when told, and what must hold after every step."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from antifreeze.supervisor.exchange import Action, FreeSlot, Gather, Send, TakenBack
from antifreeze.supervisor.state import PoolState
from antifreeze.supervisor.tasks import Phase, Task


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

    @property
    def guilty(self) -> int:
        """The row that likes to kill its worker."""
        return self.slot % self.rows

    def begin_anew(self) -> None:
        self.loaded.clear()
        self.layouts.clear()
        self.spoiled = False


@dataclass
class Process:
    alive: bool = True
    leaving: bool = False
    retired: bool = False  # it leaves, or has left, for good
    unread: deque[Task] = field(default_factory=deque)
    running: Task | None = None

    @property
    def accepting(self) -> bool:
        return self.alive and not self.leaving

    def held(self) -> list[Task]:
        return [*([self.running] if self.running else []), *self.unread]


class Ground(RuleBasedStateMachine):
    @initialize(workers=st.integers(1, 3), forgive=st.booleans(), static=st.booleans())
    def begin(self, workers: int, forgive: bool, static: bool) -> None:
        self.state = PoolState(workers, forgive)
        self.forgive, self.static = forgive, static
        self.processes = [Process() for _ in range(workers)]
        self.made: dict[int, Made] = {}
        self.slots: dict[int, int] = {}  # slots in use, and for which batch
        self.memory: dict[int, dict[int, int]] = {}  # slot -> row -> the batch that it was loaded for
        self.writes: dict[int, int] = {}  # task -> the slot it was told to write to
        self.hedges: dict[int, int] = {}  # hedge -> the task it runs beside
        self.withheld: dict[int, set[int]] = {}  # hedge -> rows it found bad
        self.lost: set[int] = set()  # tasks that came second and have not ended
        self.numbers = self.forgotten_since = 0
        self.sound = True

    # --- acting as told ---

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.receive(action.worker, action.task)
            elif isinstance(action, FreeSlot):
                self.free(action.slot)
            elif isinstance(action, Gather):
                self.gather(action)
            else:
                self.hand_back(action.worker)
        for number in [number for number, batch in self.made.items() if batch.discarded and number not in self.state.batches]:
            del self.made[number]

    def new_slot(self, batch: int) -> int:
        slot = next(slot for slot in range(99) if slot not in self.slots)
        self.slots[slot], self.memory[slot] = batch, {}
        return slot

    def gather(self, action: Gather) -> None:
        slot = self.new_slot(action.batch)
        for piece in action.pieces:
            rows = range(piece.first_row, piece.first_row + piece.rows)
            self.memory[slot].update({row: self.memory[piece.slot][row] for row in rows if row in self.memory[piece.slot]})
        self.perform(self.state.hedging.gathered(action, slot))

    def role(self, task: Task) -> str:
        return "lost" if task.number in self.lost else "hedge" if task.number in self.hedges else "task"

    def hedge_of(self, task: Task) -> int | None:
        return next((hedge for hedge, beside in self.hedges.items() if beside == task.number), None)

    def forget_hedge(self, hedge: int) -> set[int]:
        del self.hedges[hedge]
        return self.withheld.pop(hedge, set())

    def held_anywhere(self, number: int) -> bool:
        return any(task.number == number for process in self.processes for task in process.held())

    def receive(self, worker: int, task: Task) -> None:
        batch = self.made[task.batch]
        assert self.processes[worker].accepting, f"{task} sent to worker {worker}, which is not there"
        assert not batch.discarded, f"{task} of a forgotten batch was sent"
        assert batch.bound in (None, worker), f"{task} is bound to worker {batch.bound} and was sent to {worker}"
        owners = [number for number, process in enumerate(self.processes) if task in process.held()]
        assert not owners, f"{task} sent to worker {worker} belongs to {owners}"
        self.writes[task.number] = self.state.batches[task.batch].slot if task.slot is None else task.slot
        if task.number in self.hedges:
            assert not self.processes[worker].held(), f"{task} is a hedge, and worker {worker} has other things to do"
            self.processes[worker].unread.append(task)
            return
        if task.whole and batch.spoiled:
            batch.begin_anew()
        again = [row for row in task.row_range() if batch.loaded[row]]
        assert not again, f"rows {again} of batch {task.batch} are loaded twice"
        self.processes[worker].unread.append(task)

    def free(self, slot: int) -> None:
        wanted = [number for number, batch in self.state.batches.items() if slot in (batch.slot, *(p.slot for p in batch.elsewhere))]
        assert not wanted, f"slot {slot} was freed while batches {wanted} want it"
        self.forget(slot)

    def forget(self, slot: int) -> None:
        """It is delivered, or free."""
        del self.slots[slot], self.memory[slot]
        holders = [worker for worker, process in enumerate(self.processes) for task in process.held() if self.writes[task.number] == slot]
        assert not holders, f"workers {holders} may still write to slot {slot}"

    def hand_back(self, worker: int) -> None:
        tasks = self.unread_of(worker)
        if tasks:
            self.perform(self.state.handle(TakenBack(worker, tasks)))

    def unread_of(self, worker: int) -> tuple[int, ...]:
        unread = self.processes[worker].unread
        tasks = tuple(task.number for task in unread)
        unread.clear()
        for number in tasks:
            self.lost.discard(number)
            if number in self.hedges:
                self.forget_hedge(number)
        return tasks

    # --- what must hold ---

    @invariant()
    def all_is_well(self) -> None:
        self.queues_are_what_was_sent()
        self.every_open_task_is_in_one_place()
        self.tasks_share_no_row()
        self.something_will_end_every_wait()
        self.what_is_resolved_is_whole_or_says_why()
        self.sound = True

    def queues_are_what_was_sent(self) -> None:
        for worker, process in zip(self.state.workers, self.processes, strict=True):
            assert list(worker.queue) == process.held(), f"worker {worker.number}"
            assert worker.stays == (not process.retired), f"worker {worker.number} is to stay, or not: {process}"
        assert self.state.staying() == [number for number, process in enumerate(self.processes) if not process.retired]

    def every_open_task_is_in_one_place(self) -> None:
        queued = [task for worker in self.state.workers for task in worker.queue if self.role(task) == "task"]
        numbers = Counter(task.number for task in [*queued, *self.state.backlog])
        for batch in self.state.batches.values():
            places = {number: numbers.pop(number, 0) for number in batch.open_tasks}
            assert set(places.values()) <= {1}, f"tasks of batch {batch.number}, and in how many places they are: {places}"
        assert not numbers, f"tasks of no batch: {numbers}"

    def tasks_share_no_row(self) -> None:
        rows = Counter(
            (task.batch, row)
            for queue in [*(w.queue for w in self.state.workers), self.state.backlog]
            for task in queue
            if self.role(task) == "task"
            for row in task.row_range()
        )
        assert all(count == 1 and row < self.made[batch].rows for (batch, row), count in rows.items())

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
                assert not all(process.retired for process in able), f"task {task} waits though nobody comes back"
                assert not batch.discarded, f"task {task} of a forgotten batch waits for a worker"

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
