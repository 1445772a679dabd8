"""Loading without workers: the same tasks, slots and decisions as the pool's, done at once in the user's own process.

1. Nothing is loaded before it is asked for, and a change of the data set is seen at once.
   A collated batch is handed over as it is: in one process there is nothing to pack.
2. The user's exception leaves as it was raised, its traceback intact.
3. The process's random generators are, after each batch, as the user left them.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from antifreeze.delivery.batches import build
from antifreeze.delivery.copy_threads import COPIES_MATTER_NS, CopyThreads, has_large
from antifreeze.delivery.own_effort import MEASURED_AFTER_NS, OwnEffort, Reading
from antifreeze.slots.layout import RowLayout
from antifreeze.slots.ring import Ring
from antifreeze.supervisor.exchange import Action, Ending, FreeSlot, LeftOut, RowFailed, Send, TaskEnded
from antifreeze.supervisor.state import PoolState
from antifreeze.supervisor.tasks import Batch, Task
from antifreeze.supervisor.work import Content, Costs, StreamStart
from antifreeze.torch_private import collate_alone, default_collate, swap_worker_info, worker_info
from antifreeze.worker.awaiting import AsyncMapFetcher, map_fetcher_for
from antifreeze.worker.fetch import MapFetcher
from antifreeze.worker.generators import global_generators
from antifreeze.worker.held_loop import HeldLoop
from antifreeze.worker.journal import JournalRow, UnreadRow
from antifreeze.worker.making import SampleMaker
from antifreeze.worker.seeding import KeptState, SampleSeeds
from antifreeze.worker.slot_writer import Limit, SlotWriter
from antifreeze.worker.stream import StreamExhausted, StreamFetcher
from antifreeze.worker.task import NOT_PLAIN, Bounce, FetchConfig, FetchError, Packed, Rows, few
from antifreeze.worker.task import Task as WorkerTask
from antifreeze.worker.turns import exclusively, in_worker_thread
from antifreeze.worker.twister import Generator

NO_SLOT = -1
LOOK_AGAIN_EVERY = 64
"""Of so many batches one goes the long way, in which it is seen whether rows have become large."""
SLOT_PAYS_BYTES = 32 << 20
"""Below this the C library keeps what was freed, so that fresh memory is warm and costs less than what a slot brings."""

LOCKED_SLOT_PAYS_BYTES = 1 << 20
"""The same where a device copies from slots, because their pages are locked."""


class _LocalMaker(SampleMaker):
    """Keeps what was collated instead of packing it, and uses slots only for large batches."""

    def __init__(
        self,
        config: FetchConfig,
        writer: SlotWriter,
        journal: JournalRow,
        collated: dict[int, Any],
        ring: Ring,
        copies: CopyThreads | None,
    ) -> None:
        super().__init__(config, writer, journal)
        self._copies = copies
        self._collated = collated
        self._ring = ring
        self._slot: int | None = None  # of a task that came without one

    def rows_of(self, task: WorkerTask, layout: RowLayout, first_row: int, rows: int) -> list[torch.Tensor]:
        return super().rows_of(self._with_slot(task), layout, first_row, rows)

    def _with_slot(self, task: WorkerTask) -> WorkerTask:
        if task.slot != NO_SLOT:
            return task
        self._slot = self._ring.take() if self._slot is None else self._slot
        return task._replace(slot=self._slot)

    def columns_for(self, task: WorkerTask, layout: RowLayout, rows: int) -> list[torch.Tensor]:
        if self._slot_pays(layout, task.batch_rows):
            return super().columns_for(task, layout, rows)
        return [torch.empty((rows, *leaf.shape), dtype=leaf.dtype) for leaf in layout.leaves]

    def written(self, task: WorkerTask, layout: RowLayout, columns: list[torch.Tensor], took_ns: int) -> Rows | Packed | Bounce:
        if self._slot_pays(layout, task.batch_rows):
            return super().written(task, layout, columns, took_ns)
        return self.pack(task, layout.assemble(columns), len(task.indices), took_ns, 0)

    @property
    def copies_alone(self) -> bool:
        return self._copies is not None and self._copies.alone

    def _default_collate(self, samples: Any) -> Any:
        if self._copies is None or not self._copies.alone:
            return super()._default_collate(samples)
        if not has_large(samples):
            self._copies.nothing_large()
        return collate_alone(samples)

    def give_up_slot(self) -> int | None:
        slot, self._slot = self._slot, None
        return slot

    def likely_layout(self, sample: Any, rows: int) -> RowLayout | None:
        layout = super().likely_layout(sample, rows)
        return layout if layout is not None and self._slot_pays(layout, rows) else None

    def layout_of(self, sample: Any, rows: int) -> RowLayout | None:
        layout = super().layout_of(sample, rows)
        self.rows_pay = layout is not None and self._slot_pays(layout, rows)
        return layout if self.rows_pay else None

    def _slot_pays(self, layout: RowLayout, rows: int) -> bool:
        if self._ring.closed:  # the loop goes on in a fork
            return False
        return layout.row_bytes * rows >= (SLOT_PAYS_BYTES if self._ring.keeper is None else LOCKED_SLOT_PAYS_BYTES)

    def pack(self, task: WorkerTask, collated: Any, rows: int, fetch_ns: int, collate_ns: int) -> Packed:
        self._collated[task.batch] = collated
        return Packed(rows, 0, fetch_ns, collate_ns, 0)


class Learnt:
    """What one epoch leaves to the next: what was found out about the data set, and nothing of the data set itself (it may lead to the
    iterator whose end gives this back)."""

    def __init__(self, seeds: SampleSeeds, generators: list[Generator], effort: OwnEffort) -> None:
        self.seeds = seeds
        self.effort = effort
        self.copies = CopyThreads()
        self.kept = KeptState(generators, seeds)
        self.loaded = 0  # batches
        self.rows_pay = True


class Lent:
    """What was learnt, in use; the end of the epoch gives it back."""

    def __init__(self, learnt: Learnt, spares: list[Learnt]) -> None:
        self._learnt: Learnt | None = learnt
        self._spares = spares

    def close(self, unheard: bool = False) -> None:
        """May be called twice; there is nothing to hear."""
        learnt, self._learnt = self._learnt, None
        if learnt is not None and not self._spares:
            self._spares.append(learnt)


def _learnt(seeds: tuple[int, int], spares: list[Learnt], before: SampleSeeds | None, costs: Costs) -> Learnt:
    """In an epoch that has ended; or, where the others are in use, at least what data sets draw."""
    with suppress(IndexError):  # there is none, or another thread has just taken it
        learnt = spares.pop()
        learnt.seeds.begin_epoch(*seeds)
        return learnt
    generators = global_generators()
    fresh = SampleSeeds(*seeds, generators)
    if before is not None:
        fresh.go_on_from(before)
    return Learnt(fresh, generators, OwnEffort(costs.own_threads))


class LocalPool:
    def __init__(
        self,
        dataset: Any,
        iterable: bool,
        config: FetchConfig,
        seeds: tuple[int, int],
        ring: Ring,
        limit: Limit,
        costs: Costs,
        spares: list[Learnt],
        before: SampleSeeds | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        beside_workers: bool = False,
    ) -> None:
        """`spares`, `before`: of earlier ones with the same data set. `worker_init_fn`: for streams of a run that had workers.
        `beside_workers`: with how many threads it loads is not decided here (thread_use.py)."""
        self.ring = ring
        self.costs = costs
        self.layouts: dict[int, RowLayout] = {}
        self.contents: dict[int, Content] = {}
        self.collated: dict[int, Any] = {}
        self.streams: dict[int, StreamStart] = {}
        self.state = PoolState(1, config.forgive)
        self._limit = limit
        self._config = config
        self._dataset = dataset
        self._iterable = iterable
        self._worker_init_fn = worker_init_fn
        self._base_seed = seeds[0]
        self._journal = UnreadRow()
        self._learnt = _learnt(seeds, spares, before, costs)
        self._effort = self._learnt.effort
        self._copies = self._learnt.copies if config.collate_fn is default_collate and not beside_workers else None
        self.lent = Lent(self._learnt, spares)
        self._kept, self.seeds = self._learnt.kept, self._learnt.seeds
        self._use_ring(ring)

    def __repr__(self) -> str:
        return f"<LocalPool {self.state!r}>"

    def _use_ring(self, ring: Ring) -> None:
        self.ring = ring
        self._maker = _LocalMaker(self._config, SlotWriter(ring.arena, self._limit), self._journal, self.collated, ring, self._copies)
        self._maker.rows_pay = self._learnt.rows_pay
        kind = StreamFetcher if self._iterable else map_fetcher_for(self._dataset)
        self._fetcher = kind(self._dataset, self._config, self._maker, self.seeds, self._journal)

    @property
    def held_loop(self) -> HeldLoop | None:
        """That samples of coroutines wait in, and their clients belong to."""
        return self._fetcher.held_loop if isinstance(self._fetcher, AsyncMapFetcher) else None

    @property
    def gathers(self) -> bool:
        return self._fetcher.gathers

    def settle(self) -> None:
        """After a signal's handler broke off whatever was under way."""
        self._kept.settle()

    def _run_kept(self, call: Callable[[], Any]) -> Any:
        """With the process's generators put back afterwards; a loader inside a worker's thread has them for itself meanwhile."""
        return exclusively(partial(self._kept.run, call, in_turn=True)) if in_worker_thread() else self._kept.run(call)

    def open_streams(self, starts: list[StreamStart]) -> None:
        for start in starts:
            self.streams[start.stream] = start
            self._run_kept(partial(self._open_stream, start))

    def _open_stream(self, start: StreamStart) -> None:
        """One that began in a worker sees what it saw there; the user's own data set is not what worker_init_fn changes."""
        assert isinstance(self._fetcher, StreamFetcher)
        worker_init_fn = self._worker_init_fn if start.streams else None
        dataset = self._fetcher.dataset_for_next(alone=start.streams <= 1, untouched=worker_init_fn is not None)
        info = worker_info(start.stream, start.streams, self._base_seed, dataset) if start.streams else None
        if worker_init_fn is not None:
            before = swap_worker_info(info)
            try:
                worker_init_fn(start.stream)
            finally:
                swap_worker_info(before)
        self._fetcher.open(start.stream, dataset, info, start.past, start.batch_rows, start.replay)

    def load(self, number: int, indices: Any, position: int, rows: int) -> tuple[Any, int]:
        """One batch, now: where no sample is forgiven there is nothing to decide. Raises FetchError."""
        fetcher = self._fetcher
        assert isinstance(fetcher, MapFetcher)
        if isinstance(indices, array) and not fetcher.gathers:
            indices = indices.tolist()
        task = WorkerTask(number, number, NO_SLOT, rows, 0, position, indices, True)
        self._learnt.loaded += 1
        if not self._learnt.loaded % LOOK_AGAIN_EVERY:
            self._maker.rows_pay = True
        elif fetcher.is_plain():
            collated = self._load_plainly(fetcher, task if not fetcher.gathers else task._replace(indices=_listed(indices)))
            if collated is not NOT_PLAIN:
                return collated, 0
        before = self._effort.begin()
        try:
            outcome = self._run_kept(partial(fetcher.load, task))
        except BaseException:
            slot = self._maker.give_up_slot()
            if slot is not None:
                self.ring.give_back(slot)
            raise
        self._learnt.rows_pay = self._maker.rows_pay
        if isinstance(outcome, Packed):
            self._count(before, outcome.rows, outcome.fetch_ns, outcome.collate_ns, outcome.write_ns)
            return self.collated.pop(number), 0
        slot = self._maker.give_up_slot()
        assert isinstance(outcome, Rows) and slot is not None
        self._count(before, outcome.rows, outcome.fetch_ns, 0, outcome.write_ns)
        batch = Batch(number, slot, rows, None, layout=outcome.layout.key, rows_loaded=rows)
        return build(batch, {outcome.layout.key: outcome.layout}, self.ring, self.costs.copies)

    def _load_plainly(self, fetcher: MapFetcher, task: WorkerTask) -> Any:
        """As most batches are loaded after the first few; NOT_PLAIN where that does not do: a random number was used after all, say."""
        draws = fetcher.deals()
        if draws and in_worker_thread():
            return NOT_PLAIN
        effort = self._effort
        before = None if effort.loaded_ns < MEASURED_AFTER_NS else effort.begin()
        began = time.perf_counter_ns()
        self._kept.begin()
        if draws:
            self.seeds.watch()
        try:
            collated = fetcher.collate_plainly(task)
        except BaseException as error:
            if self._was_late(draws) and isinstance(error, FetchError):
                return NOT_PLAIN  # it may be bad only because its numbers were not seeded
            raise
        if self._was_late(draws) or collated is NOT_PLAIN:
            return NOT_PLAIN
        ended, fetched = time.perf_counter_ns(), fetcher.fetched_ns
        self.costs.add_own(task.batch_rows, fetched - began, ended - fetched, 0, *effort.end(before, ended - began))
        if self._copies is not None and ended - fetched > COPIES_MATTER_NS:
            self._copies.add(ended - began)
        return collated

    def _was_late(self, draws: bool) -> bool:
        """Whether a random number was drawn that was not the sample's. The process's generators are as they were."""
        if not draws:
            return self._kept.end()
        late = self.seeds.late_use()
        if late or not self.seeds.others_rest:
            self._kept.end(seeded=True)
        else:
            self._kept.end_of(self.seeds.used)
        return late

    def submit(self, number: int, content: Content, rows: int, tasks: int, worker: int | None, stream: int | None = None) -> None:
        self.contents[number] = content
        self._perform(self.state.submit(number, self.ring.take(), rows, 1, stream=stream))

    def fill_row(self, number: int, row: int, index: Any) -> None:
        self.contents[number].indices[row] = index
        self._perform(self.state.fill_row(number, row))

    def reload(self, number: int, indices: Any, rows: int, offsets: list[int] | None = None) -> None:
        self.contents[number].indices, self.contents[number].offsets = indices, offsets
        self._perform(self.state.reload(number, rows))

    def wait_resolved(self, pick: Callable[[], Batch | None], waiting_for: Callable[[], str], timeout_s: float | None) -> Batch:
        batch = pick()
        assert batch is not None
        return batch

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._run_kept(partial(self._run, action.task))
            elif isinstance(action, FreeSlot):
                self.ring.give_back(action.slot)

    def _run(self, task: Task) -> None:
        batch, content = self.state.batches[task.batch], self.contents[task.batch]
        indices = content.indices
        if content.divisible and task.rows < len(indices):
            indices = indices[task.first_row : task.first_row + task.rows]
        offsets = None
        if content.offsets is not None:
            offsets = [at - task.first_row for at in content.offsets[task.first_row : task.first_row + task.rows]]
        position, whole = content.position + task.first_row, task.whole
        work = WorkerTask(task.number, task.batch, batch.slot, batch.rows, task.first_row, position, _listed(indices), whole, offsets)
        self._journal.begin(task.number, task.batch, time.monotonic_ns())
        self._learnt.loaded += 1
        self._maker.rows_pay |= not self._learnt.loaded % LOOK_AGAIN_EVERY
        before = self._effort.begin()
        try:
            if isinstance(self._fetcher, StreamFetcher):
                outcome = self._load_of_stream(self._fetcher, batch, work)
            else:
                outcome = self._fetcher.load(work)
        except StreamExhausted:
            self._perform(self.state.handle(TaskEnded(0, task.number, Ending.STREAM_ENDED)))
        except BaseException as error:  # Ctrl-C too: raised when the batch is delivered, so that the loop may go on after it
            self._note_failure(task, work, error)
        else:
            self._note(task, outcome, before)

    def _note_failure(self, task: Task, work: WorkerTask, error: BaseException) -> None:
        said = f"samples {few(work.indices)}" if work.indices else ""
        told = error if isinstance(error, FetchError) else self._maker.fetch_error(error, "loading", explanation=said)
        told.row, told.index = told.failure.row, told.failure.index  # type: ignore[attr-defined]
        self._perform(self.state.handle(TaskEnded(0, task.number, Ending.FAILED, failure=told)))

    def _note(self, task: Task, outcome: Rows | Packed | Bounce, before: Reading | None) -> None:
        ended = TaskEnded(0, task.number, Ending.BOUNCED)
        if isinstance(outcome, Packed):
            self._count(before, outcome.rows, outcome.fetch_ns, outcome.collate_ns, outcome.write_ns)
            ended = TaskEnded(0, task.number, Ending.PARCEL, rows=outcome.rows, parcel_bytes=outcome.size_bytes)
        else:
            for row, failure in outcome.failures.items():
                self._perform(self.state.handle(RowFailed(task.number, row, failure)))
        if isinstance(outcome, Rows):
            self._count(before, outcome.rows, outcome.fetch_ns, 0, outcome.write_ns)
            self.layouts[outcome.layout.key] = outcome.layout
            ended = TaskEnded(0, task.number, Ending.ROWS, rows=outcome.rows, layout=outcome.layout.key)
        self._perform(self.state.handle(ended))

    def _load_of_stream(self, fetcher: StreamFetcher, batch: Batch, work: WorkerTask) -> Rows | Packed | Bounce:
        assert batch.stream is not None
        try:
            return fetcher.load(batch.stream, work)
        finally:
            for failure in fetcher.take_left_out():
                self.state.handle(LeftOut(work.number, failure))
            stream = fetcher.streams[batch.stream]
            self.streams[batch.stream].advanced(batch.number, stream.drawn, stream.state(), stream.ended)

    def _count(self, before: Reading | None, rows: int, fetch_ns: int, collate_ns: int, write_ns: int) -> None:
        took_ns = fetch_ns + collate_ns + write_ns
        self.costs.add_own(rows, fetch_ns, collate_ns, write_ns, *self._effort.end(before, took_ns))
        if self._copies is not None and collate_ns + write_ns > COPIES_MATTER_NS:
            self._copies.add(took_ns)


def _listed(indices: Any) -> Any:
    return indices.tolist() if isinstance(indices, array) else indices
