"""Data sets whose `__getitem__` is `async def`: many samples at a time in one event loop, of as many tasks as it takes.

    task ──begin──▶ its samples in line ──room for `concurrency` at a time──▶ steps of their coroutines ──all there──▶ rows or parcel

1. Up to `concurrency` samples wait at once, whichever tasks they are of; each has its own deadline, error and place in its batch.
2. A sample past sample_timeout_s is cancelled, and it alone is bad. Its time is what its own steps take, and what the loop spends
   waiting: while another sample keeps the loop, or a batch is collated, or a thread waits for its turn, it may have been ready for long.
   One that keeps the loop is the parent's affair: the journal names it at each step. So is what is awaited alone (`__getitems__`, a
   sample that is a batch, or is tried singly), for as long as it waits.
3. Each sample has its own random numbers however the others interleave (steps.py). One that turns out to use a generator for the first
   time is loaded again.
4. The loop is there before and after a batch, so clients can be kept: for how long, held_loop.py says.
5. Whatever ends the worker itself (its thread was told to end) leaves through `run`, whoever's code it fell into.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from antifreeze.errors import LoadingError, SampleTimeout
from antifreeze.signals import came_from_signal
from antifreeze.worker.failure import Failure, ThreadEnded
from antifreeze.worker.fetch import MapFetcher
from antifreeze.worker.held_loop import HeldLoop, give_up, loop_of_thread
from antifreeze.worker.journal import JournalRow, Stage, Word
from antifreeze.worker.making import SampleMaker, none_error
from antifreeze.worker.seeding import Seeds
from antifreeze.worker.steps import Randomness, Steps
from antifreeze.worker.task import Bounce, FetchConfig, FetchError, Outcome, Task
from antifreeze.worker.ways import getitems_of

CANCEL_S = 1.0
AHEAD = 4
"""One sample in line for so many places, and the next task is read."""
_TICK_S = 0.001
_MOST_FRAMES = 8
_TASK, _BATCH, _SINCE, _FIRST, _ROW, _INDEX = (
    *(int(Word.TASK), int(Word.BATCH), int(Word.SINCE_NS)),
    *(int(Word.FIRST_ROW), int(Word.ROW), int(Word.INDEX)),
)
_LISTED, _IS_TEXT = int(Word.LISTED), int(Word.INDEX_IS_TEXT)


def awaits(dataset: Any) -> bool:
    """Whether its samples are coroutines."""
    if type(dataset) is Subset:
        return awaits(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return bool(dataset.datasets) and all(map(awaits, dataset.datasets))
    return inspect.iscoroutinefunction(getattr(type(dataset), "__getitem__", None)) or gives_many_async(dataset)


def gives_many_async(dataset: Any) -> bool:
    return inspect.iscoroutinefunction(getitems_of(dataset))


def map_fetcher_for(dataset: Any) -> type[MapFetcher]:
    return AsyncMapFetcher if awaits(dataset) else MapFetcher


class _Pulse:
    """Tells whoever runs the loop that something has changed; and what ended it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None
        self._fatal: BaseException | None = None

    def beat(self, fatal: BaseException | None = None) -> None:
        self._fatal = fatal or self._fatal
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        self._future = self._loop.create_future()
        if self._fatal is None:
            await self._future
        self.raise_fatal()

    def raise_fatal(self) -> None:
        fatal, self._fatal = self._fatal, None
        try:
            if fatal is not None:
                raise fatal
        finally:
            del fatal

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What a callback raised: asyncio would only log it, and whoever waits for that callback would wait for ever."""
        error = context.get("exception")
        if isinstance(error, ThreadEnded):
            self.beat(error)
        elif isinstance(error, Exception) and came_from_signal(error):
            self.beat(error)
            loop.stop()  # it may have fallen between a result and the word of it
        else:
            loop.default_exception_handler(context)


class _Together:
    """A task whose samples are on their way."""

    def __init__(self, task: Task, ended: Callable[[Callable[[], Outcome]], None]) -> None:
        self.task = task
        self.ended = ended
        self.began_ns = time.perf_counter_ns()
        self.left = len(task.indices)
        self.samples: list[Any] = [None] * self.left
        self.errors: dict[int, FetchError] = {}


class _Sample:
    """One of them: in line, on its way, or left behind."""

    steps: Steps
    lane: _Lane | None = None
    timer: asyncio.TimerHandle | None = None
    waited_before_s = 0.0
    late = ""

    def __init__(self, of: _Together, number: int) -> None:
        self.of = of
        self.number = number
        self.index = of.task.indices[number]
        self.row = of.task.first_row + number
        self.position = of.task.position_of(number)


class _Lane:
    """One of the `concurrency` places: samples go through it one after the other, the next in the very step in which the last one ended,
    all in one asyncio task. Were each a task of its own, those that are due together would begin together, and so stay in step for ever."""

    job: asyncio.Task[None] | None = None

    def __init__(self, fetcher: AsyncMapFetcher) -> None:
        self._fetcher: AsyncMapFetcher | None = fetcher
        self.sample: _Sample | None = None

    async def run(self) -> None:
        while self.sample is not None:
            steps, value = self.sample.steps, None
            error: BaseException | None = None
            try:
                value = await steps
            except GeneratorExit as raised:
                if not steps.exited:  # nobody holds our task any more
                    raise
                error = raised
            except BaseException as raised:  # KeyboardInterrupt too, which asyncio would raise, and find not retrieved
                error = raised
            self._is_cancelled_no_more()  # also where it passed over that
            sample, self.sample = self.sample, None
            if self._fetcher is not None and sample is not None:
                self._go_on(self._fetcher, sample, value, error)
            del steps, sample, value, error

    def _go_on(self, fetcher: AsyncMapFetcher, sample: _Sample, value: Any, error: BaseException | None) -> None:
        try:
            fetcher.ended(sample, self, value, error)
        except BaseException as fatal:
            fetcher.pulse.beat(fatal)

    def _is_cancelled_no_more(self) -> None:
        """Who cancelled it meant that sample, and it goes on with others."""
        if sys.version_info >= (3, 11):
            while self.job is not None and self.job.cancelling():
                self.job.uncancel()

    def leave_behind(self) -> None:
        """What does not end holds nothing of ours any more."""
        self._fetcher = self.sample = None


class AsyncMapFetcher(MapFetcher):
    def __init__(self, dataset: Any, config: FetchConfig, maker: SampleMaker, seeds: Seeds, journal: JournalRow) -> None:
        super().__init__(dataset, config, maker, seeds, journal)
        self._use_loop(HeldLoop(journal) if config.worker is not None else loop_of_thread())
        self._randomness = Randomness()
        self._awaited = self._source
        self._source = _InLoop(self._awaited, self._run_alone)
        self._line: deque[_Sample] = deque()
        self._room = config.concurrency
        self._ended_ns = 0  # the last task
        get_many = self._get_many
        if get_many is not None:
            self._get_many = lambda indices: self._run_if_awaited(get_many(indices))

    def is_plain(self) -> bool:
        return False

    def _use_loop(self, held: HeldLoop) -> None:
        self.held_loop, self.loop, self.pulse = held, held.loop, _Pulse(held.loop)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """In our own loop, also where the calling thread has another one that runs (a notebook)."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        self.loop.set_exception_handler(self.pulse.on_loop_error)
        raised: list[BaseException] = []
        try:
            value = self.loop.run_until_complete(_noting(raised, coroutine))
        except RuntimeError:
            self.pulse.raise_fatal()
            raise
        finally:
            asyncio._set_running_loop(outer)
        if raised:
            raise raised.pop()
        return value

    def _run_if_awaited(self, value: Any) -> Any:
        return self._run_alone(value) if inspect.iscoroutine(value) else value

    def _run_alone(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with self.held_loop.for_one():
            return self.run(coroutine)

    def takes_more(self) -> bool:
        """Whether there is room for samples of another task, or will be soon: a place that waits for one to be read stands empty."""
        return self._spare_places > 0

    @property
    def _spare_places(self) -> int:
        return self._room + self._config.concurrency // AHEAD - len(self._line)

    def is_together(self, task: Task) -> bool:
        """Whether its samples may wait beside those of other tasks."""
        return self._config.auto_collation and self._get_many is None and not task.singly

    def load(self, task: Task, check: Callable[[], None] | None = None) -> Outcome:
        """This task alone."""
        if self._config.worker is None and (held := loop_of_thread()) is not self.held_loop:
            self._use_loop(held)  # an iterator may be made in one thread and used in another
        if not self.is_together(task._replace(singly=False)):
            return super().load(task, check)
        failures = self._try_alone(task, check) if task.singly else {}
        if failures:
            return Bounce(failures)
        made: list[Callable[[], Outcome]] = []
        try:
            self.begin(task, made.append)
            self.run(self._until(made))
        except BaseException:
            self._line.clear()
            if self._config.worker is None:
                give_up(self.held_loop)  # who knows what it broke off
            raise
        return made[0]()

    def wake(self) -> None:
        """From another thread: what was raised in this one falls when it next runs, and its loop may wait for long."""
        try:
            self.loop.call_soon_threadsafe(_note_nothing)
        except RuntimeError:
            pass  # it is closed

    def end(self) -> None:
        """What is still on its way is dropped: its timers and callbacks hold us, and whoever closes the loop holds them."""
        self.loop.set_exception_handler(None)
        self.held_loop.close()

    async def _until(self, made: list[Any]) -> None:
        while not made:
            await self.pulse.wait()

    def begin(self, task: Task, ended: Callable[[Callable[[], Outcome]], None]) -> None:
        """Its samples come as there is room; when all are there `ended` is called, in the loop, with what makes the outcome of them, or
        raises FetchError."""
        if not isinstance(task.indices, (list, tuple)):
            task = task._replace(indices=self._as_list(task.indices))
        together = _Together(task, ended)
        self._journal.stage(Stage.FETCH)
        if not together.left:
            ended(partial(self._finish_together, together))
        self._line.extend(_Sample(together, number) for number in range(together.left))
        self._let_in()

    def _let_in(self) -> None:
        while self._line and self._room > 0:
            self._room -= 1
            lane = _Lane(self)
            if self._begin_next(lane):
                lane.job = self.loop.create_task(lane.run())

    def _begin_next(self, lane: _Lane) -> bool:
        """The next of the line that can be begun; where there is none, the lane's place is free."""
        while self._line:
            sample = self._line.popleft()
            try:
                self._begin(sample, lane, self._randomness.begins_watched())
                if self._spare_places == 1:  # just now: whoever reads tasks may wait for that
                    self.pulse.beat()
                return True
            except BaseException as error:
                self._settle(sample, self._error_of(sample, error))
        self._room += 1
        self.pulse.beat()
        return False

    def _begin(self, sample: _Sample, lane: _Lane, watched: bool) -> None:
        self._use_key_of(sample.of.task)
        seed = self._seeds.seed_of(sample.position)
        sample.steps = Steps(self._awaited, sample.index, self._randomness, seed, watched, partial(self._note_step, sample))
        limit_s = self._config.sample_timeout_s
        if limit_s is not None:
            sample.waited_before_s = self.held_loop.waited_s
            sample.timer = self.loop.call_later(limit_s, self._is_due, sample, limit_s)
        sample.lane, lane.sample = lane, sample

    def ended(self, sample: _Sample, lane: _Lane, value: Any, error: BaseException | None) -> None:
        """It ran to its end; where its random numbers were nobody's, what came of it does not count, and it begins again."""
        if sample.timer is not None:
            sample.timer.cancel()
        if sample.steps.watched:
            self._randomness.ended_watched()
        if sample.steps.used_unseeded and not sample.steps.watched and not sample.late:
            self._begin(sample, lane, watched=True)
            return
        self._settle(sample, self._outcome(sample, value, error))
        self._begin_next(lane)

    def _outcome(self, sample: _Sample, value: Any, error: BaseException | None) -> Any:
        """The sample, or the FetchError that is in its place."""
        if sample.late:
            return self._error_of(sample, self._timeout(sample))
        if error is None and value is None and self._none_is_bad:
            error = none_error(f"sample {sample.index!r}")
        return value if error is None else self._error_of(sample, error)

    def _error_of(self, sample: _Sample, error: BaseException) -> FetchError:
        if isinstance(error, asyncio.CancelledError):
            cancelled = LoadingError(f"sample {sample.index!r} was cancelled by its own code")
            cancelled.__cause__ = error
            error = cancelled
        return self._sample_error(error, sample.index, sample.row, sample.position)

    def _settle(self, sample: _Sample, outcome: Any) -> None:
        together = sample.of
        if isinstance(outcome, FetchError):
            together.errors[sample.number] = outcome
        else:
            together.samples[sample.number] = outcome
        together.left -= 1
        if not together.left:
            self.loop.call_soon(self._end, together)  # after the next sample has begun

    def _end(self, together: _Together) -> None:
        try:
            together.ended(partial(self._finish_together, together))
        except BaseException as error:
            self.pulse.beat(error)
        self._journal.stage(Stage.FETCH)
        self.pulse.beat()

    def _finish_together(self, together: _Together) -> Outcome:
        """Of samples that are all there. Tasks overlap; what each says it took is counted once."""
        task, words = together.task, self._journal.words
        words[_LISTED], words[_TASK], words[_BATCH] = 0, task.number, task.batch
        words[_FIRST] = words[_ROW] = task.first_row
        words[_SINCE] = time.monotonic_ns()
        words[_IS_TEXT] = 0
        began_ns = max(together.began_ns, self._ended_ns)
        self._use_key_of(task)
        self._seeds.look_again()
        words[Word.SAMPLES] += len(task.indices)
        try:
            if together.errors and not self._config.forgive:
                raise together.errors.pop(min(together.errors))
            failures = {task.first_row + number: error.failure for number, error in together.errors.items()}
            return self._finish(task, together.samples, failures, began_ns)
        finally:
            together.errors.clear()  # their frames lead here
            self._ended_ns = time.perf_counter_ns()
            words[_SINCE] = time.monotonic_ns() - (self._ended_ns - together.began_ns)  # for what is said of the whole task

    def _use_key_of(self, task: Task) -> None:
        """Tasks of two epochs may be at hand."""
        if task.key is not None:
            self._seeds.use_key(task.key)

    # --- deadlines ---

    def _is_due(self, sample: _Sample, limit_s: float) -> None:
        left_s = limit_s - (self.held_loop.waited_s - sample.waited_before_s) - sample.steps.own_s
        if left_s > _TICK_S:
            sample.timer = self.loop.call_later(left_s, self._is_due, sample, limit_s)
            return
        sample.late = f"sample {sample.index!r} took longer than {limit_s:g} s and was cancelled\n{_where(sample.steps.coroutine)}"
        assert sample.lane is not None and sample.lane.job is not None
        sample.lane.job.cancel()
        sample.timer = self.loop.call_later(CANCEL_S, self._leave_behind, sample)

    def _leave_behind(self, sample: _Sample) -> None:
        sample.late += "\n    it did not end when it was cancelled, and is left behind"
        assert sample.lane is not None
        sample.lane.leave_behind()
        sample.steps.note = _note_nothing
        try:
            self._settle(sample, self._error_of(sample, self._timeout(sample)))
        except BaseException as error:
            self.pulse.beat(error)
            return
        self._room += 1
        self._let_in()
        self.pulse.beat()

    def _timeout(self, sample: _Sample) -> SampleTimeout:
        limit_s = self._config.sample_timeout_s
        way_on = f'on_bad_sample="skip" goes on without the sample; sample_timeout_s={limit_s:g} is the limit'
        return SampleTimeout(f"{sample.late}\n  what to do: {way_on}")

    def _note_step(self, sample: _Sample) -> None:
        """In the journal: this sample has the loop now."""
        if self._config.worker is None:
            return
        words, task = self._journal.words, sample.of.task
        words[_LISTED], words[_TASK], words[_BATCH], words[_FIRST] = 0, task.number, task.batch, task.first_row
        words[_SINCE] = time.monotonic_ns()
        try:
            words[_ROW], words[_INDEX] = sample.row, sample.index
            words[_IS_TEXT] = 0
        except (TypeError, ValueError):
            self._journal.at_key(sample.row, sample.index)

    def _fetch_plainly(self, task: Task) -> tuple[list[Any] | None, dict[int, Failure]]:
        return None, {}


class _InLoop:
    """A data set whose samples are waited for, one at a time."""

    def __init__(self, source: Any, run: Callable[[Any], Any]) -> None:
        self._source = source
        self._run = run

    def __getitem__(self, index: Any) -> Any:
        return self._run(self._source[index])


async def _noting(raised: list[BaseException], coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What it raises is told beside the asyncio task: that keeps it, and it keeps asyncio's frames, which keep the task."""
    try:
        return await coroutine
    except GeneratorExit:
        raise
    except BaseException as error:
        raised.append(error)


def _note_nothing() -> None:
    pass


def _where(coroutine: Any) -> str:
    """The lines at which it waits, outermost first."""
    lines: list[str] = []
    while coroutine is not None and len(lines) < _MOST_FRAMES:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            lines.append(f'    File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return "\n".join(lines) or "    it had not begun"
