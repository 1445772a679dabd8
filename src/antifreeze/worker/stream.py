"""An iterable data set in one process: one stream, or several when a run resumes with fewer workers than it began with.

1. Stream k of n sees get_worker_info() with id k of n, whatever process hosts it; a stream begun without workers sees None.
2. A stream resumes from the state its data set (or its iterator) gives, else by drawing again what was delivered before, else (where
   the user said that it cannot be drawn again) with whatever comes. One that ends while it is drawn again is an error, not an end.
3. Generators are seeded once per batch, so a resumed stream goes on with the same random numbers.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable, Generator
from typing import Any

from antifreeze.errors import LoadingError
from antifreeze.slots.layout import Irregular
from antifreeze.torch_private import swap_worker_info
from antifreeze.worker.fetch import FetchConfig, Outcome, Rows, SampleMaker, Task, none_error
from antifreeze.worker.journal import JournalRow, Stage, Word
from antifreeze.worker.seeding import SampleSeeds


class StreamExhausted(Exception):
    """The stream has no further batch."""


class Stream:
    """One iterator over (a copy of) the data set, and how far it is."""

    def __init__(self, dataset: Any, worker_info: Any, seeds: SampleSeeds, number: int) -> None:
        self.dataset = dataset
        self.number = number
        self.batches = 0
        self.ended = False
        self.lost = 0  # with the batch that raised
        self._info = worker_info
        self._seeds = seeds
        self._iterator: Any = None

    def open(self, state: bytes | None, skip_samples: int, batch_rows: int, replay: bool, on_batch: Callable[[int], None]) -> None:
        """`on_batch` is told of every batch that is drawn again, so that whoever watches sees that something happens."""
        with _WorkerInfo(self._info):
            self._seeds.for_batch(_position(self.number, 0), collating=True)
            saved = pickle.loads(state) if state else None
            if saved is not None and saved["of"] == "dataset":
                self.dataset.load_state_dict(saved["state"])
            self._iterator = iter(self.dataset)
            if saved is not None and saved["of"] == "iterator":
                self._iterator.load_state_dict(saved["state"])
            if saved is not None or not replay:
                self.batches = -(-skip_samples // max(1, batch_rows))
        if saved is None and replay:
            self._draw_again(skip_samples, batch_rows, on_batch)

    def take(self, count: int) -> list[Any]:
        """Up to `count` samples; fewer when the iterator ends."""
        samples: list[Any] = []
        with _WorkerInfo(self._info):
            self._seeds.for_batch(_position(self.number, self.batches))
            self.batches += 1
            while len(samples) < count and not self.ended:
                try:
                    samples.append(next(self._iterator))
                except StopIteration:
                    self.ended = True
                except BaseException:
                    self.lost = len(samples)
                    raise
        return samples

    @property
    def is_generator(self) -> bool:
        return isinstance(self._iterator, Generator)

    def state(self) -> bytes | None:
        """What the data set says of its own position, or None where it says nothing."""
        for of, source in (("iterator", self._iterator), ("dataset", self.dataset)):
            if callable(getattr(source, "state_dict", None)) and callable(getattr(source, "load_state_dict", None)):
                return pickle.dumps({"of": of, "state": source.state_dict()})
        return None

    def _draw_again(self, skip_samples: int, batch_rows: int, on_batch: Callable[[int], None]) -> None:
        left = skip_samples
        while left > 0 and not self.ended:
            drawn = len(self.take(min(batch_rows, left)))
            on_batch(drawn)
            left -= drawn
        if left > 0:
            raise LoadingError(
                f"stream {self.number} had delivered {skip_samples:,} samples, but ended after {skip_samples - left:,} when it was drawn "
                "again to go on from there: it does not repeat itself\n"
                '  what to do: give the data set state_dict() and load_state_dict(), or say lost_stream="continue", which goes on with '
                "whatever a new iterator gives"
            )


class StreamFetcher:
    """Loads the tasks of an iterable data set."""

    def __init__(self, dataset: Any, config: FetchConfig, maker: SampleMaker, seeds: SampleSeeds, journal: JournalRow) -> None:
        self._dataset = dataset
        self._config = config
        self._maker = maker
        self._seeds = seeds
        self._journal = journal
        self._unmoved: Any = None
        self.streams: dict[int, Stream] = {}

    def open(
        self,
        number: int,
        worker_info: Any,
        state: bytes | None,
        skip_samples: int,
        batch_rows: int,
        replay: bool = True,
        alone: bool = False,
    ) -> None:
        """`alone`: no other stream will be opened in this process. Others must not share the data set's position with the first: each
        has a copy of the data set as it was before any stream moved it."""
        if not alone and self._unmoved is None:
            self._unmoved = copy.deepcopy(self._dataset)
        dataset = copy.deepcopy(self._unmoved) if self.streams else self._dataset
        stream = Stream(dataset, worker_info, self._seeds, number)
        self.streams[number] = stream
        stream.open(state, skip_samples, batch_rows, replay, self._note_drawn_again)

    def _note_drawn_again(self, samples: int) -> None:
        self._journal.words[Word.SAMPLES] += samples

    def load(self, number: int, task: Task) -> Outcome:
        stream = self.streams[number]
        if stream.ended:
            raise StreamExhausted
        began = time.perf_counter_ns()
        self._journal.stage(Stage.FETCH)
        self._journal.at_key(0, f"batch {stream.batches} of stream {number}")
        try:
            samples = stream.take(task.batch_rows)
        except Exception as error:
            lost = f"{stream.lost} samples that it gave for this batch before are lost with it" if stream.lost else ""
            over = f"stream {number} ends here: a generator that raised is over" if stream.is_generator else ""
            place = f"__next__ of the iterable data set (batch {stream.batches - 1} of stream {number})"
            raise self._maker.fetch_error(error, place, explanation="; ".join(filter(None, (lost, over)))) from error
        self._journal.words[Word.SAMPLES] += len(samples)
        fetched = time.perf_counter_ns()
        if not samples or (self._config.auto_collation and self._config.drop_last and len(samples) < task.batch_rows):
            raise StreamExhausted
        return self._make(stream, task, samples, fetched - began)

    def _make(self, stream: Stream, task: Task, samples: list[Any], fetch_ns: int) -> Outcome:
        fetched = time.perf_counter_ns()
        if self._maker.may_write_rows:
            self._refuse_none(stream, samples)
            layout = self._maker.layout_of(samples[0], task.batch_rows)
            if layout is not None:
                try:
                    self._journal.stage(Stage.WRITE)
                    self._maker.write_rows(task, layout, samples, 0)
                except Irregular:
                    pass  # torch's own collate has the last word
                else:
                    return Rows(layout, len(samples), {}, fetch_ns, time.perf_counter_ns() - fetched)
        with _WorkerInfo(stream._info):
            collated = self._maker.collate(samples if self._config.auto_collation else samples[0], task, self._seeds)
        return self._maker.pack(task, collated, len(samples), fetch_ns, time.perf_counter_ns() - fetched)

    def _refuse_none(self, stream: Stream, samples: list[Any]) -> None:
        for number, sample in enumerate(samples):
            if sample is None:
                place = f"sample {number} of batch {stream.batches - 1} of stream {stream.number}"
                raise self._maker.fetch_error(none_error(place), "__next__ of the iterable data set")


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
