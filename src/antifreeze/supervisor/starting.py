"""One more worker: by the user's context, from the clean server, or as a thread.

1. Where a fork has shown that it is not safe, all later workers come from the clean server.
2. Whatever a worker must know before its first task is sent before any task is: its descriptors, then its streams.
"""

from __future__ import annotations

import itertools
import select
from collections.abc import Callable
from functools import partial
from typing import Any

from antifreeze.events import Happening
from antifreeze.supervisor.acting import Hands
from antifreeze.supervisor.clean_server import PickledSpecs, cloudpickle_dumps
from antifreeze.supervisor.crew import AnyWorker
from antifreeze.supervisor.process import Born, ByContext, ByServer, WorkerProcess
from antifreeze.supervisor.threads import WorkerThread
from antifreeze.supervisor.unpicklable import name_culprit
from antifreeze.supervisor.workshop import Workshop
from antifreeze.worker.main import WorkerSpec
from antifreeze.worker.turns import Turns

_worker_keys = itertools.count()


class Starter:
    def __init__(self, shop: Workshop, hands: Hands, context: Any, specs: list[WorkerSpec], turns: Turns | None) -> None:
        self.specs = specs
        self.forks = turns is None and context.get_start_method() == "fork"
        self.by_descriptor: dict[int, int] = {}
        """Whose sockets and pidfds are in the crew's poll."""
        self._context = context
        self._ring = shop.ring
        self._crew = shop.crew
        self._jobs = shop.jobs
        self._hands = hands
        self._voice = shop.voice
        self._turns = turns
        self._pickled_specs: PickledSpecs | None = None

    def renew(self, specs: list[WorkerSpec]) -> None:
        """Workers that start from now on are told this."""
        self.specs, self._pickled_specs = specs, None

    def start(self, number: int, beside: int) -> None:
        """`beside`: how many workers there are with it."""
        self._crew.journal.clear(number)
        if self._turns is None:
            self._start_process(number, beside)
        else:
            self._start_thread(number, self._turns)
        for start in self._jobs.streams.values():
            if start.worker == number:
                self._hands.open_stream(start)

    def _start_process(self, number: int, beside: int) -> None:
        shared = (self._ring.arena.descriptor, self._crew.journal.descriptor)
        key = next(_worker_keys)
        self._ring.quarantine(key)
        worker = WorkerProcess(self._way(), self.specs[number], shared, key, max(1, beside))
        self._crew.workers[number] = worker
        for descriptor in (worker.channel.fileno(), worker.pidfd):
            self._crew.poll.register(descriptor, select.EPOLLIN)
            self.by_descriptor[descriptor] = number

    def _start_thread(self, number: int, turns: Turns) -> None:
        bell, row = self._crew.bell, self._crew.journal.row(number)
        assert bell is not None
        self._crew.workers[number] = WorkerThread(self.specs[number], self._ring.arena, row, bell, turns, next(_worker_keys))

    def _way(self) -> Callable[..., Born]:
        if self._crew.use_server and self._pickled_specs is None:
            try:
                self._pickled_specs = PickledSpecs(self.specs)
            except Exception as error:
                if not self.forks:
                    raise name_culprit(error, self.specs[0].picklable_parts(), dumps=cloudpickle_dumps) from error
                self._crew.use_server = False
                self._voice.tell(Happening.WORKER_STARTED, f"the data set does not pickle ({error}), so workers are still forked")
        if self._crew.use_server and self._pickled_specs is not None:
            return partial(ByServer, self._pickled_specs)
        return partial(ByContext, self._context)

    def forget_descriptors(self, worker: AnyWorker) -> None:
        if isinstance(worker, WorkerThread):
            return
        for descriptor in (worker.channel.fileno(), worker.pidfd):
            self._crew.poll.unregister(descriptor)
            self.by_descriptor.pop(descriptor, None)
