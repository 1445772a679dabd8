"""One more worker: by the user's context, from the clean server, or as a thread.

1. Where a fork has shown that it is not safe, all later workers come from the clean server.
2. Among many that are forked, those after the first come from a nursery: the first batch does not wait for the last fork.
3. Whatever a worker must know before its first task is sent before any task is: its descriptors, then its streams.
"""

from __future__ import annotations

import itertools
import select
from collections.abc import Callable
from functools import partial
from typing import Any

from antifreeze.events import Happening
from antifreeze.signals import raise_if_of_signal
from antifreeze.supervisor.acting import Hands
from antifreeze.supervisor.by_context import ByContext
from antifreeze.supervisor.clean_server import ByServer, PickledSpec, cloudpickle_dumps
from antifreeze.supervisor.crew import AnyWorker
from antifreeze.supervisor.nursery import FORKED_HERE, ByNursery, Newborn, Nursery, pays_for
from antifreeze.supervisor.process import Born, WorkerProcess, start_failures
from antifreeze.supervisor.threads import WorkerThread
from antifreeze.supervisor.unpicklable import name_culprit
from antifreeze.supervisor.workshop import Workshop
from antifreeze.worker.main import WorkerSpec
from antifreeze.worker.turns import Turns

_worker_keys = itertools.count()


class Starter:
    def __init__(self, shop: Workshop, hands: Hands, context: Any, spec: WorkerSpec, turns: Turns | None) -> None:
        self.spec = spec
        """Of the first worker; all others are told the same."""
        self.forks = turns is None and context.get_start_method() == "fork"
        self.interprets_anew = turns is None and not self.forks
        """Each worker is a fresh interpreter, which imports the script."""
        self.by_descriptor: dict[int, int] = {}
        """Whose sockets and pidfds are in the crew's poll."""
        self._context = context
        self._ring = shop.ring
        self._crew = shop.crew
        self._jobs = shop.jobs
        self._hands = hands
        self._voice = shop.voice
        self._turns = turns
        self._pickled_spec: PickledSpec | None = None
        self._renewed = False
        self.may_serve = True
        """As far as is known: the data set of workers from the clean server must pickle."""

    def renew(self, spec: WorkerSpec) -> None:
        """Workers that start from now on are told this."""
        self.spec, self._pickled_spec, self._renewed = spec, None, True

    def leave_to_nursery(self, numbers: list[int]) -> list[int]:
        """Of all that are to be started now, those that come later from a nursery; it is forked here, after the others."""
        if not self.forks or self._crew.use_server or not pays_for(len(numbers)):
            return []
        return numbers[FORKED_HERE:]

    def open_nursery(self, numbers: list[int]) -> None:
        keys = {number: next(_worker_keys) for number in numbers}
        for key in keys.values():
            self._ring.quarantine(key)
        with start_failures("the process that forks the later workers"):
            nursery = Nursery(self._context, [self.spec.of(number) for number in numbers], keys)
        self._crew.nursery = nursery
        self._crew.poll.register(nursery.fileno(), select.EPOLLIN)

    def close_nursery(self) -> list[int]:
        """It bears nobody any more; returns who is missing."""
        nursery = self._crew.nursery
        assert nursery is not None
        missing, nursery.missing = nursery.missing, []
        self._crew.poll.unregister(nursery.fileno())
        for number in missing:
            self._ring.release_quarantine(nursery.keys[number])
        nursery.end()
        self._crew.nursery = None
        return missing

    def take_in(self, newborn: Newborn, beside: int) -> None:
        nursery = self._crew.nursery
        assert nursery is not None
        try:
            self.start(newborn.worker, beside, partial(ByNursery, nursery, newborn), nursery.keys[newborn.worker])
        except BaseException:
            newborn.refuse()
            raise

    def start(self, number: int, beside: int, way: Callable[..., Born] | None = None, key: int | None = None) -> None:
        """`beside`: how many workers there are with it. `way`, `key`: of one that is there already."""
        self._crew.journal.clear(number)
        if self._turns is None:
            self._start_process(number, beside, way, key)
        else:
            self._start_thread(number, self._turns)
        if way is not None and self._renewed:
            self._hands.begin_epoch(number, self.spec)  # it was forked in an earlier one
        for start in self._jobs.streams.values():
            if start.worker == number:
                self._hands.open_stream(start)

    def _start_process(self, number: int, beside: int, way: Callable[..., Born] | None, key: int | None) -> None:
        shared = (self._ring.arena.descriptor, self._crew.journal.descriptor)
        if key is None:
            key = next(_worker_keys)
            self._ring.quarantine(key)
        worker = WorkerProcess(way or self._way(), number, key)
        try:
            worker.start(self.spec.of(number), shared, max(1, beside))
            self._crew.workers[number] = worker
            for descriptor in (worker.channel.fileno(), worker.pidfd):
                self._crew.poll.register(descriptor, select.EPOLLIN)
                self.by_descriptor[descriptor] = number
        except BaseException:
            self._crew.workers[number] = None
            worker.undo()
            raise

    def _start_thread(self, number: int, turns: Turns) -> None:
        bell, row = self._crew.bell, self._crew.journal.row(number)
        assert bell is not None
        self._crew.workers[number] = WorkerThread(self.spec.of(number), self._ring.arena, row, bell, turns, next(_worker_keys))

    def _way(self) -> Callable[..., Born]:
        if self._crew.use_server and self._pickled_spec is None:
            try:
                self._pickled_spec = PickledSpec(self.spec)
            except Exception as error:
                raise_if_of_signal(error)
                if not self.forks:
                    raise name_culprit(error, self.spec.picklable_parts(), dumps=cloudpickle_dumps) from error
                self._crew.use_server = self.may_serve = False
                self._voice.say(Happening.WORKER_STARTED, f"the data set does not pickle ({error}), so workers are still forked")
        if self._crew.use_server and self._pickled_spec is not None:
            self._crew.served = True
            return partial(ByServer, self._pickled_spec)
        return partial(ByContext, self._context)

    def forget_descriptors(self, worker: AnyWorker) -> None:
        if isinstance(worker, WorkerThread):
            return
        for descriptor in (worker.channel.fileno(), worker.pidfd):
            self._crew.poll.unregister(descriptor)
            self.by_descriptor.pop(descriptor, None)
