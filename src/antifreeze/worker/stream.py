"""An iterable data set in one process: one stream, or several when a run resumes with fewer workers than it began with.

1. Stream k of n sees get_worker_info() with id k of n and its own copy of the data set, as worker_init_fn(k) has left it, whatever process
   hosts it; a stream begun without workers sees None.
2. A stream resumes from the state its data set (or its iterator) gives, else by drawing again what was drawn before, else (where
   the user said that it cannot be drawn again) with whatever comes. One that ends while it is drawn again is an error, not an end.
3. Generators are seeded once per batch, so a resumed stream goes on with the same random numbers.
4. An item is one call of next(), counted from 0, whether it gave a sample, None or an exception. With `forgive`, an item that is bad
   is left out and reported, and (with `fill`) the next one takes its place; otherwise it takes its batch with it. Of an item that is
   itself a batch (StreamByLength) only the sample is left out that is to blame.
5. An iterator that raised is asked for its next item all the same. A generator has none: it is over, which is said.
"""

from __future__ import annotations

import copy
import pickle
import time
import warnings
from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import repeat
from typing import Any

from antifreeze.errors import AntifreezeWarning, LoadingError
from antifreeze.plan.stream_plan import StreamProgress
from antifreeze.signals import came_from_signal
from antifreeze.slots.layout import Irregular
from antifreeze.torch_private import loads, swap_worker_info
from antifreeze.worker.failure import Failure, ThreadEnded
from antifreeze.worker.journal import ALL_ROWS, JournalRow, Stage, Word
from antifreeze.worker.making import SampleMaker, none_error
from antifreeze.worker.seeding import Seeds
from antifreeze.worker.task import FetchConfig, FetchError, Outcome, Rows, Task

_INDEX = int(Word.INDEX)
_NEXT = "__next__ of the iterable data set"
MOST_BAD_IN_A_ROW = 1000
"""A stream that gives nothing else is over: nobody would wait for its next sample for ever."""


class StreamExhausted(Exception):
    """The stream has no further batch."""


class Stream:
    """One iterator over (a copy of) the data set, and how far it is."""

    def __init__(self, dataset: Any, worker_info: Any, seeds: Seeds, number: int) -> None:
        self.dataset = dataset
        self.number = number
        self.batches = 0
        self.items = 0
        self.ended = False
        self.stop_at = -1  # the item before which it comes to its end
        self.first_item = 0  # of the batch at hand
        self._info = worker_info
        self._seeds = seeds
        self._iterator: Any = None
        self._has_complained = False

    def open(self, past: StreamProgress, batch_rows: int, replay: bool, on_batch: Callable[[int], None]) -> None:
        """`on_batch` is told of every batch that is drawn again, so that whoever watches sees that something happens."""
        self.ended = True  # until it is open
        with self.as_worker():
            self._seeds.for_batch(_position(self.number, 0), collating=True, initial_seed=self._torchs_seed)
            saved = loads(past.state) if past.state else None
            if saved is not None and saved["of"] == "dataset":
                self.dataset.load_state_dict(saved["state"])
            self._iterator = iter(self.dataset)
            if saved is not None and saved["of"] == "iterator":
                self._iterator.load_state_dict(saved["state"])
        self.ended = False
        if saved is None and replay:
            self._draw_again(past, batch_rows, on_batch)
        else:
            self.batches, self.items = past.batches, past.samples

    def begin_batch(self) -> int:
        """Its number; from here on random numbers are its own."""
        self._seeds.for_batch(_position(self.number, self.batches), initial_seed=self._torchs_seed)
        self.first_item = self.items
        self.batches += 1
        return self.batches - 1

    def take(self, count: int, words: Any) -> list[Any]:
        """Up to `count` samples; fewer when the iterator ends. What it raises takes those before it along."""
        first = self.items
        last = first + count if self.stop_at < 0 else min(first + count, self.stop_at)
        words[_INDEX] = first
        try:
            drawing = zip(range(first + 1, last + 1), map(next, repeat(self._iterator)), strict=False)
            samples = [sample for words[_INDEX], sample in drawing]
        except BaseException:
            self.items = words[_INDEX] + 1
            raise
        self.items = first + len(samples)
        self.ended = len(samples) < count
        return samples

    def take_one(self, words: Any) -> Any:
        """The next item, which may be an exception; StreamExhausted where there is none."""
        words[_INDEX] = self.items
        if self.items == self.stop_at:
            self.ended = True
            raise StreamExhausted
        try:
            sample = next(self._iterator)
        except StopIteration:
            self.ended = True
            raise StreamExhausted from None
        except BaseException:
            self.items += 1
            raise
        self.items += 1
        return sample

    @property
    def drawn(self) -> int:
        """Items of the batch at hand."""
        return self.items - self.first_item

    @property
    def is_generator(self) -> bool:
        return isinstance(self._iterator, Generator)

    def state(self) -> bytes | None:
        """What the data set says of its own position, or None where it says nothing. torch never asks: where that fails, all goes on."""
        try:
            for of, source in (("iterator", self._iterator), ("dataset", self.dataset)):
                if callable(getattr(source, "state_dict", None)) and callable(getattr(source, "load_state_dict", None)):
                    return pickle.dumps({"of": of, "state": source.state_dict()})
        except Exception as error:
            if came_from_signal(error):
                raise
            self._complain(f"{type(error).__name__}: {error}")
        return None

    def _complain(self, cause: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            warnings.warn(
                f"antifreeze: stream {self.number} has no state, as state_dict() of {type(self.dataset).__name__} failed, or gave what "
                f"does not pickle ({cause}); where it must be resumed, it is drawn again from its beginning",
                AntifreezeWarning,
                stacklevel=2,
            )

    @property
    def _torchs_seed(self) -> int | None:
        """Of the worker that torch would have for it."""
        return None if self._info is None else int(self._info.seed)

    def as_worker(self) -> _WorkerInfo:
        return _WorkerInfo(self._info)

    def _draw_again(self, past: StreamProgress, batch_rows: int, on_batch: Callable[[int], None]) -> None:
        """Batch by batch, as they were drawn; what was bad then is bad again, and was reported then."""
        odd, unseen = dict(past.odd), [0] * (_INDEX + 1)
        for batch in range(past.batches):
            with self.as_worker():
                self.begin_batch()
                while self.drawn < odd.get(batch, batch_rows) and not self.ended:
                    try:
                        self.take_one(unseen)
                    except Exception:
                        pass
            on_batch(self.drawn)
        if self.items < past.samples:
            raise LoadingError(
                f"stream {self.number} had given {past.samples:,} samples, but ended after {self.items:,} when it was drawn "
                "again to go on from there: it does not repeat itself\n"
                '  what to do: give the data set state_dict() and load_state_dict(), or say lost_stream="continue", which goes on with '
                "whatever a new iterator gives"
            )


class StreamFetcher:
    """Loads the tasks of an iterable data set."""

    gathers = False

    def __init__(self, dataset: Any, config: FetchConfig, maker: SampleMaker, seeds: Seeds, journal: JournalRow) -> None:
        self._dataset = dataset
        self._config = config
        self._maker = maker
        self._seeds = seeds
        self._journal = journal
        self._unmoved: Any = None
        self._left_out: list[Failure] = []
        self.streams: dict[int, Stream] = {}

    def dataset_for_next(self, alone: bool, untouched: bool = False) -> Any:
        """What the next stream iterates. `alone`: no other stream will be opened in this process. Others must not share the data set's
        position with the first: each has a copy of the data set as it was before any stream moved it. `untouched`: the first, too."""
        if not alone and self._unmoved is None:
            self._unmoved = copy.deepcopy(self._dataset)
        if self.streams or untouched:
            return copy.deepcopy(self._dataset if self._unmoved is None else self._unmoved)
        return self._dataset

    def open(
        self,
        number: int,
        dataset: Any,
        worker_info: Any,
        past: StreamProgress,
        batch_rows: int,
        replay: bool = True,
        stop_at: int = -1,
    ) -> None:
        stream = Stream(dataset, worker_info, self._seeds, number)
        self.streams[number] = stream
        stream.stop_at = stop_at
        stream.open(past, batch_rows, replay, self._note_drawn_again)

    def _note_drawn_again(self, samples: int) -> None:
        self._journal.words[Word.SAMPLES] += samples

    def take_left_out(self) -> list[Failure]:
        """The bad items since it was asked last; the batch that was loaded then came without them."""
        left_out, self._left_out = self._left_out, []
        return left_out

    def load(self, number: int, task: Task) -> Outcome:
        stream = self.streams[number]
        if stream.ended:
            raise StreamExhausted
        began = time.perf_counter_ns()
        words = self._journal.words
        self._journal.stage(Stage.FETCH)
        words[Word.INDEX_IS_TEXT] = 0
        # before its first sample a stream may have much to do, so that one counts as a batch
        words[Word.ROW] = 0 if stream.items else ALL_ROWS
        with stream.as_worker():
            batch = stream.begin_batch()
            items: list[int] = []
            if self._config.forgive:
                samples = self._take_good(stream, task.batch_rows, items)
            else:
                samples = self._take(stream, task.batch_rows, batch)
        words[Word.SAMPLES] += len(samples)
        took_ns = time.perf_counter_ns() - began
        while True:
            if not samples or (self._config.auto_collation and self._config.drop_last and len(samples) < task.batch_rows):
                raise StreamExhausted
            try:
                return self._make(stream, self._naming_items(task, stream, items), samples, took_ns)
            except FetchError as error:
                if self._leave_out_row(stream, error, samples, items):
                    continue
                if error.failure.row is None and error.failure.explanation:
                    error.failure = replace(error.failure, explanation=f"{error.failure.explanation} of stream {stream.number}")
                if not self._may_leave_out(error.failure, samples):
                    if error.failure.row is not None and not self._config.forgive:
                        self._naming(error, stream, stream.first_item + error.failure.row)
                    raise
                row = error.failure.row or 0
                self._note_left_out(stream, error.failure, items.pop(row))
                del samples[row]
                self._journal.stage(Stage.FETCH)
                with stream.as_worker():
                    samples += self._take_good(stream, task.batch_rows, items, len(samples))

    def _take(self, stream: Stream, count: int, batch: int) -> list[Any]:
        """The first bad item ends it."""
        first = stream.items
        try:
            samples = stream.take(count, self._journal.words)
        except BaseException as error:
            raise self._broken(stream, batch, error)  # noqa: B904 (it has its cause)
        if self._maker.may_write_rows and type(None) in set(map(type, samples)):
            item = first + next(number for number, sample in enumerate(samples) if sample is None)
            place = f"sample {item} of stream {stream.number} (row {item - first} of its batch {batch})"
            raise self._naming(self._maker.fetch_error(none_error(place), _NEXT), stream, item)
        return samples

    def _broken(self, stream: Stream, batch: int, error: BaseException) -> FetchError:
        """By an item that raised. No frame of its traceback has it: nothing is left to the garbage collector."""
        lost = stream.drawn - 1
        said = [
            f"{lost} samples that it gave for this batch before are lost with it" if lost else "",
            f"stream {stream.number} ends here: a generator that raised is over" if stream.is_generator else "",
        ]
        raised = self._as_exception(error)
        place = f"{_NEXT} (batch {batch} of stream {stream.number})"
        told = self._maker.fetch_error(raised, place, explanation="; ".join(filter(None, said)))
        told.__cause__ = raised
        return self._naming(told, stream, stream.items - 1)

    def _naming_items(self, task: Task, stream: Stream, items: list[int]) -> Task:
        """The task, with the numbers of its samples in the place of indices, which streams do not have."""
        numbers = items if self._config.forgive else range(stream.first_item, stream.items)
        return task._replace(indices=numbers if self._config.auto_collation else numbers[0])

    @staticmethod
    def _naming(error: FetchError, stream: Stream, item: int) -> FetchError:
        error.failure = replace(error.failure, index=f"{item} of stream {stream.number}")
        return error

    def _take_good(self, stream: Stream, count: int, items: list[int], have: int = 0) -> list[Any]:
        """Up to `count` good samples, with those we `have`; `items` is told the number of each. What is bad is left out, and with
        `fill` the next one takes its place."""
        samples: list[Any] = []
        bad_in_a_row, raised, tried = 0, False, have
        while have + len(samples) < count and not stream.ended:
            if tried == count and not self._config.fill:
                if have or samples:
                    break
                tried = 0  # all of it was bad: that was no batch
            tried += 1
            error: Exception | None = None
            try:
                sample = stream.take_one(self._journal.words)
                error = none_error(f"sample {stream.items - 1} of stream {stream.number}") if sample is None else None
            except StreamExhausted:
                if raised:
                    self._say_of_last(f"stream {stream.number} ended right after it: if it had more, its iterator cannot go on after that")
                break
            except BaseException as raising:
                sample, error = None, self._as_exception(raising)
            raised = error is not None and error.__traceback__ is not None
            if error is None:
                bad_in_a_row = 0
                items.append(stream.items - 1)
                samples.append(sample)
                continue
            bad_in_a_row += 1
            failure = Failure.of(error, stage=_NEXT, worker=self._config.worker, position=stream.items - 1)
            error = None  # its traceback leads here
            self._note_left_out(stream, failure, stream.items - 1)
            if raised and stream.is_generator:
                self._end(stream, f"the rest of stream {stream.number} is lost because a generator cannot go on after an exception")
            elif bad_in_a_row >= MOST_BAD_IN_A_ROW:
                self._end(stream, f"{bad_in_a_row:,} items in a row were bad, so stream {stream.number} ends here")
        return samples

    def _as_exception(self, error: BaseException) -> Exception:
        """What may cross to the loop without looking like its own Ctrl-C or exit; where this is the loop's process, it is."""
        if isinstance(error, Exception):
            return error
        if self._config.worker is None or isinstance(error, ThreadEnded):
            raise error
        told = LoadingError(f"{_NEXT} raised {type(error).__name__}: {error}").with_traceback(error.__traceback__)
        told.__cause__ = error
        return told

    def _note_left_out(self, stream: Stream, failure: Failure, item: int) -> None:
        self._journal.words[Word.SAMPLES] += 1
        self._left_out.append(replace(failure, index=f"{item} of stream {stream.number}", row=None))

    def _end(self, stream: Stream, why: str) -> None:
        stream.ended = True
        self._say_of_last(why)

    def _say_of_last(self, why: str) -> None:
        last = self._left_out[-1]
        self._left_out[-1] = replace(last, explanation="; ".join(filter(None, (last.explanation, why))), ends_stream=True)

    def _may_leave_out(self, failure: Failure, samples: list[Any]) -> bool:
        """Whether one sample is known that keeps the others from being a batch."""
        if not self._config.forgive:
            return False
        return len(samples) == 1 or (failure.row is not None and failure.row < len(samples))

    def _leave_out_row(self, stream: Stream, error: FetchError, samples: list[Any], items: list[int]) -> bool:
        """Of a batch that the data set has made itself: without the sample that a collate function of ours blames it is one."""
        row, batch = getattr(error.__cause__, "row", None), samples[0]
        if not self._config.forgive or self._config.auto_collation or row is None or not isinstance(batch, list) or len(batch) < 2:
            return False
        told = replace(error.failure, explanation=f"row {row} of the {len(batch)} samples that are its batch")
        self._note_left_out(stream, told, items[0])
        samples[0] = batch[:row] + batch[row + 1 :]
        return True

    def _make(self, stream: Stream, task: Task, samples: list[Any], fetch_ns: int) -> Outcome:
        fetched = time.perf_counter_ns()
        if self._maker.may_write_rows:
            layout = self._maker.layout_of(samples[0], task.batch_rows)
            if layout is not None:
                try:
                    self._journal.stage(Stage.WRITE)
                    self._maker.write_rows(task, layout, samples, 0)
                except Irregular:
                    pass  # torch's own collate has the last word
                else:
                    return Rows(layout, len(samples), {}, fetch_ns, time.perf_counter_ns() - fetched)
        with stream.as_worker():
            collated = self._maker.collate(samples if self._config.auto_collation else samples[0], task, self._seeds)
        return self._maker.pack(task, collated, len(samples), fetch_ns, time.perf_counter_ns() - fetched)


class _WorkerInfo:
    def __init__(self, info: Any) -> None:
        self._info = info

    def __enter__(self) -> None:
        self._previous = swap_worker_info(self._info)

    def __exit__(self, *_: object) -> None:
        swap_worker_info(self._previous)


def _position(stream: int, batch: int) -> int:
    """Streams draw from ranges of positions that do not meet."""
    return (stream + 1) << 40 | batch
