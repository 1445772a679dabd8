"""Samples in, rows or a parcel out: shared by map-style and iterable data sets.

1. Rows are for torch's own default_collate alone; whatever deviates is handed to the real default_collate, whole batch, so that
   the result, or the error, is torch's.
2. An error of the collate function names the sample that does not fit, where that can be told.
"""

from __future__ import annotations

import time
from typing import Any
from zlib import crc32

import torch

from antifreeze.errors import BadSample, BatchNotPicklable, OptionError
from antifreeze.naming import shown
from antifreeze.slots import parcel, texts
from antifreeze.slots.layout import LARGE_ROW_BYTES, Irregular, LeafKind, RowLayout, learn, starts_as, transpose, write_column, write_sample
from antifreeze.torch_private import default_collate, default_convert
from antifreeze.worker.failure import Failure
from antifreeze.worker.journal import JournalRow, Stage
from antifreeze.worker.odd_one import odd_one
from antifreeze.worker.seeding import Seeds
from antifreeze.worker.slot_writer import SlotWriter
from antifreeze.worker.task import FetchConfig, FetchError, Outcome, Packed, Rows, Task, few


class SampleMaker:
    """Shared by map-style and iterable data sets: samples in, rows or a parcel out."""

    def __init__(self, config: FetchConfig, writer: SlotWriter, journal: JournalRow) -> None:
        self.config = config
        self._writer = writer
        self._journal = journal
        self._layouts: dict[int, RowLayout] = {}
        self._last_layout: RowLayout | None = None
        self._has_looked = False
        self.may_write_rows = config.auto_collation and config.collate_fn is default_collate

    def likely_layout(self, sample: Any, rows: int) -> RowLayout | None:
        """The layout of the samples before, for whoever writes all of them and finds out; but the first one has the say about the
        order of keys and the dtypes of a batch."""
        last = self._last_layout
        if last is None or not starts_as(last, sample) or (last.has_keys and not _same_order(last.tree, sample)):
            return None
        return last

    def layout_of(self, sample: Any, rows: int) -> RowLayout | None:
        """The layout this sample has, known or newly learned; None where its batch of `rows` rows is better collated."""
        if self._last_layout is not None and _fits(self._last_layout, sample):
            return self._last_layout
        layout = learn(sample)
        self._has_looked = True
        if layout is not None:
            layout = self._layouts.setdefault(layout.key, layout)
            self._last_layout = layout
        return layout

    @property
    def copies_alone(self) -> bool:
        """Whether large rows are copied in this thread alone, though torch has several."""
        return False

    rows_pay = True
    """Whether it is worth a look if samples can be written as rows."""

    @property
    def rows_may_be_large(self) -> bool:
        """As far as the samples so far tell."""
        return not self._has_looked if self._last_layout is None else self._last_layout.row_bytes >= LARGE_ROW_BYTES

    def write_as_rows(self, task: Task, samples: list[Any], good: list[int] | None) -> RowLayout | None:
        """The layout by which they were written (those of these numbers; None: all); None where they are no rows."""
        first = samples[good[0] if good else 0]
        likely = self.likely_layout(first, task.batch_rows)
        if likely is not None and self._try_write(task, likely, samples, good):
            return likely
        layout = self.layout_of(first, task.batch_rows)
        if layout is not None and layout is not likely and self._try_write(task, layout, samples, good):
            return layout
        return None

    def _try_write(self, task: Task, layout: RowLayout, samples: list[Any], good: list[int] | None) -> bool:
        self._journal.stage(Stage.WRITE)
        try:
            if good is None:
                self.write_rows(task, layout, samples, task.first_row)
            else:
                for number in good:
                    self.write_rows(task, layout, [samples[number]], task.first_row + number)
        except Irregular:
            return False  # torch's own collate has the last word
        return True

    def write_rows(self, task: Task, layout: RowLayout, samples: list[Any], first_row: int) -> None:
        """Raises Irregular where one of them does not fit."""
        rows = self.rows_of(task, layout, first_row, len(samples))
        for leaf, into, column in zip(layout.leaves, rows, transpose(layout, samples), strict=True):
            write_column(leaf, into, column, self.copies_alone)

    def rows_of(self, task: Task, layout: RowLayout, first_row: int, rows: int) -> list[torch.Tensor]:
        """Where these rows of a batch are to be written: a part of each column."""
        return self._writer.rows(task.slot, layout, task.batch_rows, first_row, first_row + rows)

    def columns_for(self, task: Task, layout: RowLayout, rows: int) -> list[torch.Tensor]:
        """The same for all rows of a task, to be followed by `written`."""
        return self.rows_of(task, layout, task.first_row, rows)

    def written(self, task: Task, layout: RowLayout, columns: list[torch.Tensor], took_ns: int) -> Outcome:
        """They are there."""
        return Rows(layout, len(task.indices), {}, took_ns, 0)

    def pack(self, task: Task, collated: Any, rows: int, fetch_ns: int, collate_ns: int) -> Packed:
        began = time.perf_counter_ns()
        self._journal.stage(Stage.WRITE)
        try:
            packed = parcel.pack(collated)
        except Exception as error:
            raise self.not_picklable(task, error) from error
        packed.write(self._writer.room(task.slot, packed.size_bytes))
        return Packed(rows, packed.size_bytes, fetch_ns, collate_ns, time.perf_counter_ns() - began)

    def try_out(self, task: Task, number: int, sample: Any) -> None:
        """What becomes of one sample of a batch, for this one alone; an exception says nothing here, it may come of being alone."""
        try:
            layout = self.layout_of(sample, task.batch_rows) if self.may_write_rows else None
            if layout is not None:
                self.write_rows(task, layout, [sample], task.first_row + number)
            elif task.whole:
                packed = parcel.pack(self.config.collate_fn([sample]))
                packed.write(self._writer.room(task.slot, packed.size_bytes))
        except Exception:
            pass

    def not_picklable(self, task: Task, error: Exception) -> FetchError:
        maker = getattr(self.config.collate_fn, "__qualname__", repr(self.config.collate_fn))
        made_by = f"collate_fn {maker}" if self.config.auto_collation else f"the data set (sample {shown(task.indices)}) through {maker}"
        text = (
            f"batch {task.batch} cannot leave its worker: {type(error).__name__}: {error}\n"
            f"  it was made by {made_by}; samples {few(task.indices)}\n"
            "  what to do: return tensors, arrays, numbers, strings and containers of them (or anything that pickles)"
        )
        if self.config.auto_collation:
            return self.fetch_error(BatchNotPicklable(text), "pickling the batch")
        return self.fetch_error(BatchNotPicklable(text), "pickling the batch", index=task.indices, row=0, position=task.position)

    def fetch_error(
        self,
        error: BaseException,
        stage: str,
        *,
        index: Any = None,
        row: int | None = None,
        position: int | None = None,
        explanation: str = "",
    ) -> FetchError:
        failure = Failure.of(
            error, stage=stage, worker=self.config.worker, index=index, row=row, position=position, explanation=explanation
        )
        wrapped = FetchError(failure)
        wrapped.__cause__ = error
        return wrapped

    def collate(self, samples: Any, task: Task, seeds: Seeds | None) -> Any:
        """The user's collate function (or torch's), seeded for this batch where it needs it; its error names the sample that does not
        fit."""
        self._journal.stage(Stage.COLLATE)
        collate_fn = self.config.collate_fn
        try:
            if collate_fn is default_collate:
                return self._default_collate(samples)
            if seeds is None or collate_fn is default_convert:
                return collate_fn(samples)
            return seeds.around_batch(task.position, lambda: collate_fn(samples), collating=True)
        except Exception as error:
            odd = self._odd_one(samples, error, task) if self.config.auto_collation and isinstance(samples, list) else None
            if odd is None:
                raise self.fetch_error(error, "collate", explanation=f"samples {few(task.indices)}") from error
            row, text = odd
            if len(samples) != len(task.indices):
                which = f"number {row} of the {len(samples)} samples that __getitems__ gave for {few(task.indices)}"
                raise self.fetch_error(error, "collate", explanation=f"{which}: {text}" if text else which) from error
            index, position = task.indices[row], task.position_of(row)
            raise self.fetch_error(error, "collate", index=index, row=row, position=position, explanation=text) from error

    def _odd_one(self, samples: list[Any], error: Exception, task: Task) -> tuple[int, str] | None:
        """The row, and how it differs; a collate function of ours knows by itself, and takes samples of different shapes."""
        if isinstance(error, BadSample) and error.row is not None:
            return error.row, ""
        if isinstance(error, OptionError):
            return None
        of_two = crc32(" ".join(map(shown, task.indices)).encode()) if self.config.forgive else 0  # another one, where another moved up
        return odd_one(samples, self.config.collate_fn, of_two)

    def _default_collate(self, samples: Any) -> Any:
        return default_collate(samples)


class RowByRow:
    """Takes a task's samples as they come: large rows are written at once, small ones (and those that are no rows) are kept."""

    def __init__(self, maker: SampleMaker, task: Task) -> None:
        self._maker = maker
        self._task = task
        self.layout: RowLayout | None = None
        self.kept: list[Any] | None = None
        self.write_ns = 0
        self._rows: list[torch.Tensor] = []

    def keep(self, number: int, sample: Any) -> None:
        if self.layout is None and self.kept is None:
            self.layout = self._maker.layout_of(sample, self._task.batch_rows)
            if self.layout is None and not self._task.whole:
                raise NoRows
            if self.layout is None or self.layout.row_bytes < LARGE_ROW_BYTES:
                self.kept = [None] * len(self._task.indices)
            else:
                self._rows = self._maker.rows_of(self._task, self.layout, self._task.first_row, len(self._task.indices))
        if self.kept is not None:
            self.kept[number] = sample
            return
        assert self.layout is not None
        began = time.perf_counter_ns()
        write_sample(self.layout, self._rows, number, sample, self._maker.copies_alone)
        self.write_ns += time.perf_counter_ns() - began


class NoRows(Exception):
    """The first sample of a task has no row layout."""


def none_error(which: str) -> BadSample:
    return BadSample(
        f"{which} is None (does __getitem__ lack a return?)\n"
        '  what to do: on_bad_sample="skip" leaves such samples out; or a collate_fn of your own, which gets to see them under "raise"'
    )


def _same_order(node: Any, sample: Any) -> bool:
    """A dict of another key order makes a batch of another key order."""
    if not hasattr(node, "children"):
        return True
    if node.keys is not None and tuple(sample) != node.keys:
        return False
    parts = sample.values() if node.keys is not None else sample
    return all(map(_same_order, node.children, parts))


def _fits(layout: RowLayout, sample: Any) -> bool:
    try:
        columns = transpose(layout, [sample])
    except Irregular:
        return False
    if not _same_order(layout.tree, sample):
        return False
    for leaf, column in zip(layout.leaves, columns, strict=True):
        part = column[0]
        if type(part) is torch.Tensor:
            if part.dtype != leaf.dtype or part.shape != leaf.shape:
                return False
        elif leaf.kind is LeafKind.TEXT:
            if not texts.fits(leaf.python_type, part):
                return False
        elif not isinstance(part, leaf.python_type) or getattr(part, "shape", ()) != leaf.shape:
            return False
    return True
