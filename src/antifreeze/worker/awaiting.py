"""Data sets whose `__getitem__` is `async def`: many samples of a task at a time in one event loop.

1. Up to `concurrency` samples of a task wait at once; each has its own deadline, error and place in the batch.
2. A sample past sample_timeout_s is cancelled, and it alone is bad. One that keeps the loop itself busy is the parent's affair: the
   journal names it.
3. Each sample has its own random numbers however the others interleave: where a generator is used, its state is put in place before
   each step of the sample and taken away after it. A sample that turns out to use one for the first time is loaded again.
4. One loop for as long as the fetcher lives (a worker; a pass over the loader where there are no workers), so clients can be kept.
"""

from __future__ import annotations

import asyncio
import inspect
import selectors
import weakref
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from antifreeze.errors import LoadingError, SampleTimeout
from antifreeze.worker.failure import Failure
from antifreeze.worker.fetch import MapFetcher
from antifreeze.worker.journal import JournalRow, Stage, Word
from antifreeze.worker.making import SampleMaker, none_error
from antifreeze.worker.seeding import WARM_UP, Seeds, global_generators
from antifreeze.worker.task import FetchConfig, FetchError, Task
from antifreeze.worker.turns import exclusively

CANCEL_S = 1.0
_MOST_FRAMES = 8


def awaits(dataset: Any) -> bool:
    """Whether its samples are coroutines."""
    if type(dataset) is Subset:
        return awaits(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return bool(dataset.datasets) and all(map(awaits, dataset.datasets))
    return inspect.iscoroutinefunction(getattr(type(dataset), "__getitem__", None)) or gives_many_async(dataset)


def gives_many_async(dataset: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(dataset, "__getitems__", None))


def map_fetcher_for(dataset: Any) -> type[MapFetcher]:
    return AsyncMapFetcher if awaits(dataset) else MapFetcher


class _Selector(selectors.DefaultSelector):
    """Notes in the journal when every sample waits for something outside: then none of them keeps the worker."""

    def __init__(self, journal: JournalRow) -> None:
        super().__init__()
        self._journal = journal

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        before = self._journal.words[Word.STAGE]
        self._journal.stage(Stage.AWAIT)
        try:
            return super().select(timeout)
        finally:
            self._journal.words[Word.STAGE] = before


class AsyncMapFetcher(MapFetcher):
    def __init__(self, dataset: Any, config: FetchConfig, maker: SampleMaker, seeds: Seeds, journal: JournalRow) -> None:
        super().__init__(dataset, config, maker, seeds, journal)
        self._loop = asyncio.SelectorEventLoop(_Selector(journal))
        weakref.finalize(self, _close, self._loop).atexit = False
        self._randomness = _Randomness()
        self._awaited = self._source
        self._source = _InLoop(self._awaited, self._run)
        get_many = self._get_many
        if get_many is not None:
            self._get_many = lambda indices: self._run_if_awaited(get_many(indices))

    def is_plain(self) -> bool:
        return False

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """In our own loop, also where the calling thread has another one that runs (a notebook)."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return self._loop.run_until_complete(coroutine)
        finally:
            asyncio._set_running_loop(outer)

    def _run_if_awaited(self, value: Any) -> Any:
        return self._run(value) if inspect.iscoroutine(value) else value

    def _fetch_plainly(self, task: Task) -> tuple[list[Any] | None, dict[int, Failure]]:
        return None, {}

    def _fetch_each(self, task: Task, keep: Callable[[int, Any], None] | None = None) -> tuple[list[Any], dict[int, Failure]]:
        self._journal.stage(Stage.FETCH)
        self._journal.words[Word.INDEX_IS_TEXT] = 0
        outcomes: list[Any] = self._run(self._all_of(task))
        self._seeds.look_again()
        self._journal.words[Word.SAMPLES] += len(task.indices)
        samples: list[Any] = [None] * len(outcomes)
        failures: dict[int, Failure] = {}
        for number, outcome in enumerate(outcomes):
            if isinstance(outcome, FetchError):
                if not self._config.forgive:
                    raise outcome from outcome.__cause__
                failures[task.first_row + number] = outcome.failure
            elif keep is None:
                samples[number] = outcome
            else:
                keep(number, outcome)
        return samples, failures

    async def _all_of(self, task: Task) -> list[Any]:
        room = asyncio.Semaphore(self._config.concurrency)
        return await asyncio.gather(*(self._one(task, number, room) for number in range(len(task.indices))))

    async def _one(self, task: Task, number: int, room: asyncio.Semaphore) -> Any:
        """The sample, or the FetchError that is in its place."""
        index, row = task.indices[number], task.first_row + number
        async with room:
            try:
                sample = await self._limited(index, row, task.position_of(number))
                if sample is None and self._none_is_bad:
                    raise none_error(f"sample {index!r}")
            except asyncio.CancelledError as error:
                cancelled = LoadingError(f"sample {index!r} was cancelled by its own code")
                cancelled.__cause__ = error
                return self._sample_error(cancelled, index, row, task.position_of(number))
            except BaseException as error:
                return self._sample_error(error, index, row, task.position_of(number))
            return sample

    async def _limited(self, index: Any, row: int, position: int) -> Any:
        watched = self._randomness.begins_watched()
        while True:
            steps = _Steps(self._awaited[index], self._randomness, self._seeds.seed_of(position), watched, self._noting(row, index))
            job = self._loop.create_task(steps.whole())
            limit_s = self._config.sample_timeout_s
            done, _ = await asyncio.wait({job}, timeout=limit_s)
            if not done:
                text = f"sample {index!r} took longer than {limit_s:g} s and was cancelled\n{_where(steps.coroutine)}"
                job.cancel()
                _, left = await asyncio.wait({job}, timeout=CANCEL_S)
                text += "\n    it did not end when it was cancelled, and is left behind" if left else ""
                way_on = f'on_bad_sample="skip" goes on without the sample; sample_timeout_s={limit_s:g} is the limit'
                raise SampleTimeout(f"{text}\n  what to do: {way_on}")
            if watched or not steps.used_unseeded:
                return job.result()
            watched = True  # what came of it does not count: its random numbers were nobody's
            if not job.cancelled():
                job.exception()

    def _noting(self, row: int, index: Any) -> Callable[[], None]:
        words, journal = self._journal.words, self._journal

        def note() -> None:
            try:
                words[Word.ROW], words[Word.INDEX] = row, index
            except (TypeError, ValueError):
                journal.at_key(row, index)

        return note


class _InLoop:
    """A data set whose samples are waited for, one at a time."""

    def __init__(self, source: Any, run: Callable[[Any], Any]) -> None:
        self._source = source
        self._run = run

    def __getitem__(self, index: Any) -> Any:
        return self._run(self._source[index])


class _Randomness:
    """The process's generators, and which of them the data set uses."""

    def __init__(self) -> None:
        self.generators = global_generators()
        self.used: list[int] = []
        self._warm_up_left = WARM_UP

    def begins_watched(self) -> bool:
        self._warm_up_left -= self._warm_up_left > 0
        return self._warm_up_left > 0

    def note(self, moved: list[int]) -> None:
        self.used += [number for number in moved if number not in self.used]


class _Steps:
    """One sample's coroutine, step by step: before each step its random state is put in place, after it taken away."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], randomness: _Randomness, seed: int, watched: bool, note: Callable[[], None]
    ) -> None:
        self.coroutine = coroutine
        self.used_unseeded = False
        self._randomness = randomness
        self._seed = seed
        self._watched = watched
        self._note = note
        self._states: dict[int, Any] = {}

    async def whole(self) -> Any:
        return await self

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self.coroutine.send
        given: Any = None
        while True:
            try:
                waited_for = self._step(step, given)
            except StopIteration as end:
                return end.value
            try:
                step, given = self.coroutine.send, (yield waited_for)
            except BaseException as error:
                step, given = self.coroutine.throw, error

    def _step(self, step: Callable[[Any], Any], given: Any) -> Any:
        self._note()
        randomness = self._randomness
        mine = range(len(randomness.generators)) if self._watched else [*randomness.used]
        if mine:
            return exclusively(lambda: self._step_seeded(step, given, mine))
        return self._step_watching(step, given, ())

    def _step_seeded(self, step: Callable[[Any], Any], given: Any, mine: Any) -> Any:
        generators = self._randomness.generators
        outside = [(number, generators[number].save()) for number in mine]
        for number in mine:
            if number in self._states:
                generators[number].restore(self._states[number])
            else:
                generators[number].seed(self._seed)
        try:
            return self._step_watching(step, given, mine)
        finally:
            for number, state in outside:
                self._states[number] = generators[number].save()
                generators[number].restore(state)

    def _step_watching(self, step: Callable[[Any], Any], given: Any, mine: Any) -> Any:
        generators = self._randomness.generators
        marks = [generator.mark() for generator in generators]
        try:
            return step(given)
        finally:
            moved = [number for number, generator in enumerate(generators) if generator.moved_since(marks[number])]
            self.used_unseeded |= any(number not in mine for number in moved)
            if self._watched:
                self._randomness.note(moved)


def _where(coroutine: Any) -> str:
    """The lines at which it waits, outermost first."""
    lines: list[str] = []
    while coroutine is not None and len(lines) < _MOST_FRAMES:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            lines.append(f'    File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return "\n".join(lines) or "    it had not begun"


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """With what still waits in it."""
    if loop.is_running() or loop.is_closed():
        return
    for job in asyncio.all_tasks(loop):
        job._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
