"""Who was at it when a worker ended or had to be ended: its journal row, read against what it was given.

1. A worker that ends between samples blames nobody.
2. A kill or a stop from outside says little about the sample; a crash says more; a deadline that passed says all.
3. Where a worker was at all samples of its task together, none of them alone is blamed.
"""

from __future__ import annotations

from dataclasses import replace

from antifreeze.supervisor import telling
from antifreeze.supervisor.crew import AnyWorker
from antifreeze.supervisor.exchange import WorkerGone
from antifreeze.supervisor.process import Exit
from antifreeze.supervisor.sample_path import path_of
from antifreeze.supervisor.starting import Starter
from antifreeze.supervisor.tasks import STRIKES, WHOLE_BATCH
from antifreeze.supervisor.watch import Look
from antifreeze.supervisor.work import StreamStart
from antifreeze.supervisor.workshop import Workshop
from antifreeze.worker.failure import Failure
from antifreeze.worker.journal import ALL_ROWS, Entry, Stage
from antifreeze.worker.task import few

FROM_OUTSIDE = (-9, -15)  # SIGKILL and SIGTERM, which not every system has a name for
_AT_A_SAMPLE = (Stage.FETCH, Stage.COLLATE, Stage.WRITE)
_AT_NONE = (Stage.STARTING, Stage.INITIALISING, Stage.IDLE, Stage.ENDED, Stage.TURN, Stage.AWAIT)


class Blame:
    def __init__(self, shop: Workshop, starter: Starter) -> None:
        self._state = shop.state
        self._jobs = shop.jobs
        self._options = shop.options
        self._starter = starter

    def ended(self, number: int, entry: Entry, end: Exit, how: str) -> WorkerGone:
        """The worker ended by itself, or somebody ended it."""
        outside = end.code in FROM_OUTSIDE
        if entry.stage in _AT_NONE:
            return WorkerGone(number)
        if entry.stage is Stage.SEND and outside:
            return WorkerGone(number)  # what it had loaded was loaded well
        strikes = STRIKES + 1 if outside else STRIKES
        scene = self._scene(number, entry, strikes)
        return _blamed(scene, telling.sample_lost(scene, how), strikes=strikes)

    def stopped(self, number: int, worker: AnyWorker, look: Look) -> WorkerGone:
        """Most likely somebody stopped the worker; only a sample at which it happens again and again is at fault itself."""
        if look.entry.stage not in _AT_A_SAMPLE:
            return WorkerGone(number)
        scene = self._scene(number, look.entry, STRIKES + 1)
        return _blamed(scene, telling.sample_stopped(scene, worker), strikes=STRIKES + 1)

    def overdue(self, number: int, worker: AnyWorker, look: Look, stuck_s: float) -> WorkerGone:
        scene = self._scene(number, look.entry, STRIKES)
        return _blamed(scene, telling.sample_overdue(scene, worker, stuck_s, self._options.sample_timeout_s), final=True)

    def waits_for_lock(self, number: int, worker: AnyWorker, look: Look, stuck_s: float) -> WorkerGone:
        """Somebody who was not forked along may have the lock; only a sample that waits like this again is at fault itself."""
        scene = self._scene(number, look.entry, STRIKES)
        return _blamed(scene, telling.sample_waits(scene, worker, stuck_s))

    def was_suspected(self, entry: Entry) -> bool:
        """Whether a worker has ended at this batch before."""
        batch = self._state.batch_of(entry.task)
        return batch is not None and bool(self._state.batches[batch].strikes)

    def path_of(self, entry: Entry) -> str | None:
        """The file of the sample that a worker is (was) at, where the data set tells."""
        if entry.stage not in _AT_A_SAMPLE or entry.row == ALL_ROWS or self._jobs.streams:
            return None
        return path_of(self._starter.spec.dataset, entry.index)

    def was_at(self, entry: Entry) -> str:
        return telling.was_at(self.named(entry), self.path_of(entry))

    def named(self, entry: Entry) -> Entry:
        """The item of a stream is named with it, and one at a time."""
        number = self._state.batch_of(entry.task)
        stream = None if number is None else self._state.batches[number].stream
        return entry if stream is None else replace(entry, index=f"{entry.index} of stream {stream}", row=0)

    def _scene(self, number: int, entry: Entry, strikes: int) -> telling.Scene:
        batch = self._state.batch_of(entry.task)
        content = None if batch is None else self._jobs.contents.get(batch)
        stream = None if batch is None else self._state.batches[batch].stream
        batch_of = None
        if self._is_of_batch(number, entry):
            batch_of = "" if content is None or not content.indices else f"of samples {few(content.indices)}"
        item = None if stream is None else _item(self._jobs.streams[stream], entry)
        again = stream is not None and self._state.losses.is_lost_again(stream, item, strikes)
        return telling.Scene(number, self.named(entry), batch_of, self.path_of(entry), stream, item, again, self._options.forgives)

    def _is_of_batch(self, number: int, entry: Entry) -> bool:
        """Whether the worker is (was) at all samples of its task together, so that none of them alone can be blamed."""
        if self._jobs.streams:
            return True
        task = next((task for task in self._state.workers[number].queue if task.number == entry.task), None)
        together = entry.row == ALL_ROWS or entry.stage in (Stage.COLLATE, Stage.WRITE, Stage.SEND)
        return together and (task is None or task.rows > 1)


def _item(start: StreamStart, entry: Entry) -> int | None:
    """Which one a stream cannot be led past; None where a new iterator goes on with whatever comes."""
    if start.past.state is None and not start.replay:
        return None
    return entry.index if entry.stage is Stage.FETCH and isinstance(entry.index, int) else start.past.samples


def _blamed(scene: telling.Scene, failure: Failure, *, final: bool = False, strikes: int = STRIKES) -> WorkerGone:
    row = WHOLE_BATCH if scene.batch_of is not None else scene.entry.row
    return WorkerGone(scene.worker, scene.entry.task, row, failure, final, strikes, scene.item)
