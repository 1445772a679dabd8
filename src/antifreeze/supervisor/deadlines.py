"""Who has been at it for too long: each worker's journal row looked at while the loop waits, and what follows.

1. A sample past its deadline is blamed, and its worker ended.
2. A worker that somebody stopped is replaced; its sample is blamed only where that happens again and again, however short its deadline.
3. A forked worker that waits for a lock before it has done its first task is replaced by one from the clean server, and so are all later
   ones: the lock may have been held when it was forked. Its sample is tried there once more; where it is stuck there too, it is bad, and
   forking was innocent.
4. A worker that even SIGKILL does not end is left behind.
5. A worker that waits for work though it was given some is replaced: a message was lost (an exception fell into the loop's process while
   it was read, say), and what nobody is at would be waited for for ever.
6. With `hedge`, a task that is only late is given to somebody idle too, where the memory budget has room.
"""

from __future__ import annotations

import time
from math import inf

from antifreeze.events import Happening
from antifreeze.supervisor import telling
from antifreeze.supervisor.acting import Hands
from antifreeze.supervisor.blame import Blame
from antifreeze.supervisor.crew import AnyWorker
from antifreeze.supervisor.exchange import WorkerGone
from antifreeze.supervisor.hearing import Ears
from antifreeze.supervisor.policy import is_late
from antifreeze.supervisor.process import see_off_left_behind
from antifreeze.supervisor.replacing import Replacing
from antifreeze.supervisor.starting import Starter
from antifreeze.supervisor.tasks import Task
from antifreeze.supervisor.threads import WorkerThread
from antifreeze.supervisor.watch import Look, where_is
from antifreeze.supervisor.workshop import Workshop
from antifreeze.worker.journal import ALL_ROWS, Stage

_TOGETHER = (Stage.COLLATE, Stage.WRITE)


class Deadlines:
    def __init__(self, shop: Workshop, hands: Hands, starter: Starter, blame: Blame, replacing: Replacing, ears: Ears) -> None:
        self._state = shop.state
        self._jobs = shop.jobs
        self._crew = shop.crew
        self._ring = shop.ring
        self._options = shop.options
        self._costs = shop.costs
        self._hands = hands
        self._starter = starter
        self._blame = blame
        self._replacing = replacing
        self._ears = ears
        self._watch = shop.watch
        self._voice = shop.voice

    def check(self) -> None:
        now_s = time.monotonic()
        see_off_left_behind()
        self._replacing.look_into_nursery()
        for number, worker in enumerate(self._crew.workers):
            if worker is not None and not self._is_ending(number, worker, now_s):
                self._check_worker(number, worker, now_s)

    def _is_ending(self, number: int, worker: AnyWorker, now_s: float) -> bool:
        killed_at = self._replacing.killed_at.get(number)
        if killed_at is not None and now_s - killed_at > worker.patience_s and not worker.is_gone():
            self._replacing.abandon(number, worker)
            return True
        if isinstance(worker, WorkerThread) and worker.is_gone():
            self._ears.drain(0)
            if self._crew.workers[number] is worker:
                self._replacing.gone(number)  # it ended before it could say so
            return True
        return killed_at is not None

    def _check_worker(self, number: int, worker: AnyWorker, now_s: float) -> None:
        look = self._watch.look(number, now_s)
        queue = self._state.workers[number].queue
        overdue = self._is_overdue(look, queue[0] if queue else None)
        if (queue or look.entry.stage is Stage.STARTING) and self._watch.stopped(worker, look, now_s, overdue):
            self._voice.tell(Happening.DEADLINE, f"worker {number} ({worker.who}) was stopped by a signal and is replaced")
            self._replacing.kill(number, worker, self._blame.stopped(number, worker, look), stopped_by_others=True)
            return
        if queue and worker.ready and not worker.outbox and self._watch.forgotten(worker, look):
            text = f"worker {number} ({worker.who}) waits for work though it was given some: word of it was lost, and it is replaced"
            self._voice.tell(Happening.DEADLINE, text)
            self._replacing.kill(number, worker, WorkerGone(number), stopped_by_others=True)
            return
        is_forked, timeout_s = self._starter.forks and not worker.is_from_server, self._options.sample_timeout_s
        if is_forked and self._watch.may_be_forks_fault(worker, look, timeout_s, curable=self._starter.may_serve):
            self._leave_fork(number, worker, look, now_s - look.since_s)
        elif overdue:
            self._end_overdue(number, worker, look, now_s - look.since_s)

    def _is_overdue(self, look: Look, task: Task | None) -> bool:
        entry, samples, each = look.entry, 1, True
        together = entry.row == ALL_ROWS or entry.stage in _TOGETHER
        if task is not None and together and entry.stage is not Stage.INITIALISING:
            batch = self._state.batches.get(task.batch)  # None: another one has won the race for it, and it was delivered
            samples, each = task.rows, task.singly or (batch is not None and batch.stream is not None)
        return self._watch.overdue(look, self._options.sample_timeout_s, samples, each)

    def _leave_fork(self, number: int, worker: AnyWorker, look: Look, stuck_s: float) -> None:
        entry, may_serve = look.entry, self._starter.may_serve
        at_sample, self._crew.use_server = entry.stage is Stage.FETCH, may_serve
        blamed = self._blame.waits_for_lock(number, worker, look, stuck_s) if at_sample else WorkerGone(number)
        if at_sample and not may_serve and self._blame.was_suspected(entry):
            self._voice.tell(Happening.DEADLINE, blamed.failure.message)  # it will be bad
        else:
            self._voice.say(Happening.DEADLINE, telling.lock_since_fork(worker, entry, self._blame.path_of(entry), stuck_s, may_serve))
        self._replacing.kill(number, worker, blamed, stopped_by_others=may_serve)  # it says nothing about those that follow

    def _end_overdue(self, number: int, worker: AnyWorker, look: Look, stuck_s: float) -> None:
        if look.entry.stage in (Stage.STARTING, Stage.INITIALISING):
            blamed = WorkerGone(number)
            text = f"worker {number} ({worker.who}) did not start within {stuck_s:.1f} s\n{where_is(worker)}"
        else:
            blamed = self._blame.overdue(number, worker, look, stuck_s)
            text = blamed.failure.message
            if worker.is_from_server and self._starter.forks and self._blame.was_suspected(look.entry):
                self._crew.use_server = False
        self._voice.tell(Happening.DEADLINE, text)
        self._replacing.kill(number, worker, blamed)

    # --- a late task a second time ---

    def hedge_late(self) -> None:
        """One late task, if a worker is idle and the budget has room for another slot."""
        late = self._late_workers()
        task = self._state.hedging.late_task(late) if late else None
        if task is not None and self._has_room_for_hedge():
            batch, last_row = self._jobs.contents[task.batch].number, task.first_row + task.rows - 1
            text = f"rows {task.first_row}–{last_row} of batch {batch} are late and are loaded a second time"
            self._voice.tell(Happening.HEDGE, text)
            self._costs.hedges += 1
            self._hands.perform(self._state.hedging.begin(task, self._ring.take()))

    def _late_workers(self) -> list[int]:
        now_s, sample_ns = time.monotonic(), self._costs.sample_ns
        typical_s = None if sample_ns is None else sample_ns / 1e9
        timeout_s = self._options.sample_timeout_s
        deadline_s = inf if timeout_s is None else self._watch.limit_s(timeout_s)
        late = []
        for number, worker in enumerate(self._crew.workers):
            if worker is None or number in self._replacing.killed_at or not (queue := self._state.workers[number].queue):
                continue
            look = self._watch.look(number, now_s)
            if look.entry.task == queue[0].number and look.entry.stage in (Stage.FETCH, Stage.COLLATE):
                rows, together = queue[0].rows, look.entry.row == ALL_ROWS or look.entry.stage is Stage.COLLATE
                in_sample_s = 0.0 if together else now_s - look.since_s
                if is_late(in_sample_s, now_s - look.entry.since_ns / 1e9, rows, typical_s, deadline_s):
                    late.append(number)
        return late

    def _has_room_for_hedge(self) -> bool:
        budget, slots = self._options.memory_budget_bytes, max(1, len(self._state.batches))
        return budget is None or self._ring.used_bytes() * (slots + 1) <= budget * slots
