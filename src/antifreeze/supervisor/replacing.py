"""A worker has ended, must end, or is one more: what that means, and who comes in its place.

    kill ──▶ its pidfd (or Ended) ──▶ gone: reaped, explained, blamed ──▶ another one started ──▶ PoolState: WorkerGone, WorkerBack
      └─ still there after its patience ──▶ abandoned: what it may write to is never used again

1. What a worker held is given out again when it is reaped, not before.
2. Replacements have a budget per minute; past it, or when one cannot be started, the pool is closed and says the whole story.
3. Recycling is no fault: it costs nothing of the budget, and nothing is blamed.
4. One that was added and did not get ready is no fault either: `growth_failed` says why.
5. One whose worker_init_fn raised is of no use: where others stay, its tasks are theirs, and the loop is told what happened.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NoReturn

from antifreeze.errors import LoaderGaveUp, WorkerStartFailed
from antifreeze.events import Happening
from antifreeze.signals import raise_if_of_signal
from antifreeze.supervisor import telling
from antifreeze.supervisor.acting import Hands
from antifreeze.supervisor.blame import FROM_OUTSIDE, Blame
from antifreeze.supervisor.cgroup import OomWatch
from antifreeze.supervisor.crew import AnyWorker
from antifreeze.supervisor.exchange import WorkerBack, WorkerGone
from antifreeze.supervisor.nursery import PATIENCE_S, Newborn, Nursery
from antifreeze.supervisor.policy import RestartBudget
from antifreeze.supervisor.process import Exit
from antifreeze.supervisor.recycling import Recycling
from antifreeze.supervisor.starting import Starter
from antifreeze.supervisor.tasks import STRIKES
from antifreeze.supervisor.workshop import Workshop
from antifreeze.worker.failure import Failure
from antifreeze.worker.journal import Stage


class Replacing:
    def __init__(self, shop: Workshop, hands: Hands, starter: Starter, blame: Blame) -> None:
        self.growth_failed: str | None = None
        self.failed_starts = 0
        self.killed_at: dict[int, float] = {}
        self.useless: set[int] = set()
        self.init_failures: list[Failure] = []
        """Of worker_init_fn, which the loop is to be told of."""
        self._state = shop.state
        self._jobs = shop.jobs
        self._crew = shop.crew
        self._ring = shop.ring
        self._options = shop.options
        self._costs = shop.costs
        self._hands = hands
        self._starter = starter
        self._blame = blame
        self._watch = shop.watch
        self._voice = shop.voice
        self._recycler = Recycling(shop)
        self._budget = RestartBudget(shop.options.max_restarts_per_minute)
        self._blamed: dict[int, WorkerGone] = {}
        self._stopped_by_others: set[int] = set()
        self._recycling: set[int] = set()
        self._coming: set[int] = set()  # added, and not ready yet
        self.oom = OomWatch()

    # --- one more, one less ---

    def start(self, number: int) -> None:
        self._watch.forget(number)
        self._starter.start(number, len(self._state.staying()))

    def start_all(self, numbers: list[int]) -> None:
        later = self._starter.leave_to_nursery(numbers)
        for number in numbers[: len(numbers) - len(later)]:
            self.start(number)
        for number in later:
            self._state.workers[number].live = False
        if later:
            self._starter.open_nursery(later)

    def look_into_nursery(self) -> None:
        """Who was born takes part; who is missing when it is gone, or has been silent for too long, is started here."""
        nursery = self._crew.nursery
        if nursery is None:
            return
        newborns = nursery.take()
        try:
            for newborn in newborns:
                self._welcome(newborn)
        except BaseException:
            for newborn in newborns:  # those that were not welcomed yet
                newborn.refuse()
            raise
        if nursery.is_over or nursery.is_late():
            self._without_nursery(nursery)

    def _welcome(self, newborn: Newborn) -> None:
        if self._state.workers[newborn.worker].retiring:
            newborn.refuse()
            self._hands.perform(self._state.handle(WorkerGone(newborn.worker)))
            return
        self._watch.forget(newborn.worker)
        self._starter.take_in(newborn, len(self._state.staying()))
        self._hands.perform(self._state.handle(WorkerBack(newborn.worker)))

    def _without_nursery(self, nursery: Nursery) -> None:
        missing = self._starter.close_nursery()
        if missing:
            how = "ended" if nursery.is_over else f"has started nobody for {PATIENCE_S:g} s"
            self._voice.tell(
                Happening.WORKER_STARTED, f"the process that was to fork {len(missing)} more workers {how}: they are forked here"
            )
        for number in missing:
            if self._state.workers[number].retiring:
                self._hands.perform(self._state.handle(WorkerGone(number)))
                continue
            self.start(number)
            self._hands.perform(self._state.handle(WorkerBack(number)))

    def add_worker(self) -> bool:
        if not any(worker.vacant for worker in self._state.workers) and len(self._state.workers) == len(self._crew.workers):
            return False  # those that go are not gone yet
        number = self._state.add_worker()
        self._coming.add(number)
        try:
            self.start(number)
        except Exception as error:
            raise_if_of_signal(error)
            self._give_up_growth(number, str(error))
            return False
        return True

    def is_ready(self, number: int) -> None:
        if number in self._coming:
            self._coming.discard(number)
            self._hands.perform(self._state.handle(WorkerBack(number)))

    def is_useless(self, number: int, failure: Failure) -> None:
        self._voice.tell(
            Happening.WORKER_ENDED, f"worker {number} is of no use: {failure.type_name}: {failure.message} (in {failure.stage})"
        )
        if len(self._state.staying()) > 1:  # else what it is given fails, batch by batch
            self.useless.add(number)
            self.init_failures.append(failure)
            self.retire(number)

    def retire(self, number: int) -> None:
        self._hands.perform(self._state.retire(number))
        self._coming.discard(number)
        worker = self._crew.workers[number]
        if worker is not None and worker.ready:
            worker.ask_to_end()
        elif worker is not None:
            self.kill(number, worker)

    def recycle_if_due(self, number: int) -> None:
        """Between two tasks: a worker that has done its share, or grown too large, makes room for a fresh one."""
        if not self._recycler.asked:
            return
        worker = self._crew.workers[number]
        if worker is None or number in self._recycling or not self._state.workers[number].stays:
            return
        if self._recycler.is_due(number, worker):
            self._recycling.add(number)
            self._blamed[number] = WorkerGone(number)
            self._state.workers[number].live = False
            self._hands.take_back(number)
            worker.ask_to_end()

    def _give_up_growth(self, number: int, why: str) -> None:
        """One more worker could not be had: its place is free again, and the others go on."""
        self.growth_failed = why
        self._voice.tell(Happening.WORKER_ENDED, f"worker {number} could not be added: {why}")
        self._coming.discard(number)
        self._hands.perform(self._state.retire(number))
        self._hands.perform(self._state.handle(WorkerGone(number)))

    # --- the end of one ---

    def kill(self, number: int, worker: AnyWorker, blamed: WorkerGone | None = None, stopped_by_others: bool = False) -> None:
        """`blamed`: who is at fault, told before it is gone."""
        if blamed is not None:
            self._blamed[number] = blamed
        if stopped_by_others:
            self._stopped_by_others.add(number)
        self.killed_at.setdefault(number, time.monotonic())
        worker.kill()

    def gone(self, number: int) -> None:
        worker = self._crew.workers[number]
        assert worker is not None
        entry = self._crew.journal.row(number).read()
        end = worker.reap()
        self._starter.forget_descriptors(worker)
        worker.let_go()
        self._ring.release_quarantine(worker.key)
        self._crew.workers[number] = None
        end = end if end.peak_bytes or not entry.peak_bytes else replace(end, peak_bytes=entry.peak_bytes)
        how = self._explain(number, worker, end)
        gone = self._blamed.pop(number, None) or self._blame.ended(number, entry, end, how)
        self._voice.tell(Happening.WORKER_ENDED, f"worker {number} ({worker.who}) {how}{self._blame.was_at(entry)}")
        leaves = self._state.workers[number].retiring
        if number in self._coming and not (number in self.killed_at and self._crew.use_server):  # but one from the clean server may do
            self._forget_end(number)
            self._give_up_growth(number, f"it {how}")
            return
        if (not worker.ready or entry.stage is Stage.INITIALISING) and not leaves and not self._ended_from_outside(number, end):
            self._start_failed(fresh=self._starter.interprets_anew and entry.stage is Stage.STARTING)
        self._replace(number, gone)

    def abandon(self, number: int, worker: AnyWorker) -> None:
        """SIGKILL did not end it (the kernel waits for a device): it is left behind, and what it may still write to is never used again."""
        self._voice.say(Happening.WORKER_ENDED, telling.left_behind(worker))
        self._starter.forget_descriptors(worker)
        self._crew.workers[number] = None
        self._crew.abandoned.append(worker)
        worker.disown()
        worker.let_go()
        queue = self._state.workers[number].queue
        for slot in {self._state.desk.slot_of(task) for task in queue}:
            self._ring.abandon(slot)
            for moved in [batch for batch in self._state.batches.values() if batch.slot == slot]:
                held = sum(task.batch == moved.number for task in queue)
                moved.slot = self._ring.take()
                moved.must_reload |= moved.rows_loaded > 0 or len(moved.open_tasks) > held
        self._replace(number, self._blamed.pop(number, WorkerGone(number)))

    def _explain(self, number: int, worker: AnyWorker, end: Exit) -> str:
        text = end.describe() + telling.memory_at_end(end.peak_bytes, self._costs.memory.last_bytes(number, worker.pid))
        struck = self.oom.evidence(worker.pid) if end.code == -9 and number not in self.killed_at else None
        return text if struck is None else f"{text}: {struck}"

    def _ended_from_outside(self, number: int, end: Exit) -> bool:
        """Killed or stopped, but not by us: that says nothing about the next one; the restart budget bounds it."""
        return number in self._stopped_by_others or (end.code in FROM_OUTSIDE and number not in self.killed_at)

    # --- the next one ---

    def _replace(self, number: int, gone: WorkerGone) -> None:
        """Another worker in the place of one that is no more, unless it was to go."""
        recycled = number in self._recycling
        self._forget_end(number)
        if self._state.workers[number].retiring:
            self._hands.perform(self._state.handle(gone))
            return
        if not recycled:
            self._costs.restarts += 1
            if not self._budget.spend(time.monotonic()):
                self._give_up(number)
        self._tell_streams(number)
        self._hands.perform(self._state.handle(gone))
        self._coming.discard(number)
        try:
            self.start(number)
        except BaseException:
            self._crew.close()
            raise
        self._hands.perform(self._state.handle(WorkerBack(number)))

    def _forget_end(self, number: int) -> None:
        self.useless.discard(number)
        self.killed_at.pop(number, None)
        self._stopped_by_others.discard(number)
        self._recycling.discard(number)

    def _start_failed(self, fresh: bool) -> None:
        """Workers that end before they load anything: another one would end the same way. A `fresh` interpreter that ends before it is
        a worker has failed to import the script (it has no main guard, say), and each takes seconds to find out: two are enough."""
        self.failed_starts += 1
        if self.failed_starts > (STRIKES - 1 if fresh else STRIKES):
            text = telling.start_failed(self.failed_starts, self._voice.story, self._starter.forks)
            self._crew.close()
            raise WorkerStartFailed(text)

    def _tell_streams(self, number: int) -> None:
        """What becomes of the streams of a worker that has ended."""
        for start in self._jobs.streams.values():
            if start.worker != number or not start.past.batches:
                continue
            if start.past.state is None and not start.replay:
                self._costs.streams_continued += 1
                self._voice.say(Happening.STREAM, telling.stream_goes_on(start))
            else:
                self._voice.tell(Happening.STREAM, telling.stream_goes_on(start))

    def _give_up(self, number: int) -> NoReturn:
        self._voice.tell(Happening.GAVE_UP, f"after {self._budget.allowed} restarts")
        text = telling.gave_up(number, self._budget, self._voice.story)
        self._crew.close()
        raise LoaderGaveUp(text)
