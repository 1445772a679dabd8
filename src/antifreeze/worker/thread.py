"""A worker in a thread of the user's own process: the same loop as in a process of its own, and nothing of the process is touched.

1. A map-style data set is the user's own object; of an iterable one each thread has a copy, because each has a position of its own.
   It is copied in the loop's thread, as it is when workers are started: what it holds may belong to that thread (file systems of
   fsspec, which Hugging Face streams hold, exist once per thread, and cannot be copied in another one).
2. What was collated is handed over as it is: there is nothing to pack.
3. get_worker_info() answers for this thread; random generators are shared, and so used in turns (turns.py).
4. It ends when told to, or by ThreadEnded, which its parent raises in it where it does not come back; an event loop is woken for that.
"""

from __future__ import annotations

import copy
import threading
from functools import partial
from typing import Any

from antifreeze.channel.line import Line
from antifreeze.channel.messages import Collated, OpenStream, Work
from antifreeze.linux import wake_on_time
from antifreeze.slots.arena import Arena
from antifreeze.torch_private import collate_in_thread, enter_worker_thread, leave_worker_thread
from antifreeze.worker.awaiting import AsyncMapFetcher
from antifreeze.worker.effort import Effort, ThreadEffort
from antifreeze.worker.failure import Failure, ThreadEnded
from antifreeze.worker.journal import JournalRow, Stage, Word
from antifreeze.worker.main import Worker, WorkerSpec
from antifreeze.worker.making import SampleMaker
from antifreeze.worker.slot_writer import SlotWriter
from antifreeze.worker.task import Bounce, FetchConfig, Outcome, Packed, Task
from antifreeze.worker.thread_seeds import ThreadSeeds
from antifreeze.worker.turns import Of, Turns


class _Maker(SampleMaker):
    """Keeps what was collated, for the message that hands it over."""

    def __init__(self, config: FetchConfig, writer: SlotWriter, journal: JournalRow) -> None:
        super().__init__(config, writer, journal)
        self.collated: Any = None

    def pack(self, task: Task, collated: Any, rows: int, fetch_ns: int, collate_ns: int) -> Packed:
        self.collated = collated
        return Packed(rows, 0, fetch_ns, collate_ns, 0)

    def _default_collate(self, samples: Any) -> Any:
        return collate_in_thread(samples)


class ThreadWorker(Worker):
    def __init__(self, spec: WorkerSpec, line: Line, arena: Arena, journal: JournalRow, turns: Turns) -> None:
        self._turns = turns
        self.thread_seeds = ThreadSeeds(spec.base_seed, spec.epoch, turns, journal)
        writer = SlotWriter(arena, spec.limit)
        self._handing = _Maker(spec.fetching(), writer, journal)
        super().__init__(spec, line, journal, self.thread_seeds, writer, self._handing)
        if spec.iterable:
            try:
                self._dataset = copy.deepcopy(spec.dataset)
            except Exception as error:  # told by the thread, as whatever else keeps it from beginning
                self._init_failure = Failure.of(error, stage="copying the data set for a thread", worker=spec.worker_id)

    def run_in_thread(self) -> None:
        """The body of the thread."""
        self._journal.words[Word.PID] = threading.get_native_id()
        self._journal.stage(Stage.STARTING)
        enter_worker_thread()
        wake_on_time()
        self.thread_seeds.turn.enter_thread()
        try:
            self.run()
        except ThreadEnded:
            self._journal.stage(Stage.ENDED)
            raise
        else:
            self._journal.stage(Stage.ENDED)
        finally:  # of what else ends it (SystemExit) the journal says where that was
            leave_worker_thread()
            if isinstance(self._fetcher, AsyncMapFetcher):
                self._fetcher.end()

    def wake(self) -> None:
        """By its parent, which has raised ThreadEnded in it."""
        fetcher = self._fetcher
        if isinstance(fetcher, AsyncMapFetcher):
            fetcher.wake()

    def _initialise(self) -> None:
        if self._spec.worker_init_fn is None:
            self._begin()
        else:
            self._turns.take(self.thread_seeds.turn, 0, self._begin_seeded, Of.START, looks=True)
        self._say_ready(0)

    def _begin(self) -> None:
        if self._init_failure is None:
            super()._begin()

    def _begin_seeded(self) -> None:
        """With the floor, as torch does it; afterwards the process's generators are put back, and samples are seeded as everywhere."""
        self._seed_as_torch(self._spec.worker_id)
        self._begin()

    def _new_effort(self) -> Effort:
        return ThreadEffort()

    def _own_dataset(self) -> Any:
        return self._dataset

    def _open_stream(self, message: OpenStream) -> None:
        self.thread_seeds.around_stream(Of.START, partial(super()._open_stream, message))

    def _load(self, work: Work, task: Task) -> Any:
        if not self._spec.iterable:
            self.thread_seeds.take_waits_ns()  # a task that failed may have left some
            return self._less_waits(super()._load(work, task))
        return self.thread_seeds.around_stream(Of.STREAM, partial(super()._load, work, task))

    def _less_waits(self, outcome: Outcome) -> Outcome:
        """What was waited for the floor says nothing about the samples: they would seem slow, and be given time accordingly."""
        waited_ns, waited_to_collate_ns = self.thread_seeds.take_waits_ns()
        if not isinstance(outcome, Bounce):
            outcome.fetch_ns = max(0, outcome.fetch_ns - waited_ns)
        if isinstance(outcome, Packed):
            outcome.collate_ns = max(0, outcome.collate_ns - waited_to_collate_ns)
        return outcome

    def _report(self, work: Work, outcome: Outcome) -> None:
        if not isinstance(outcome, Packed):
            super()._report(work, outcome)
            return
        took = (self._journal.words[Word.SINCE_NS], outcome.fetch_ns, outcome.collate_ns, self._effort.cpu_ns())
        collated, self._handing.collated = self._handing.collated, None
        self._channel.send(Collated(work.task, outcome.rows, *took, collated))
