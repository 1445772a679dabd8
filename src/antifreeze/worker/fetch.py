"""From a task to what lies in its slot: the data set is asked, the samples become rows or a parcel.

    task ──▶ fetch (data set) ──▶ rows written in place                       ──▶ Rows
                              └─▶ collate ──▶ pickled with buffers beside ──▶ Packed
                              └─▶ part of a batch that has no rows         ──▶ Bounce: ask for the batch whole

1. How samples become rows or a parcel is making.py's; here they are asked for, and what cannot be had is dealt with.
2. With `forgive`, a sample that raises is noted and the task goes on; otherwise the first one ends the task.
   A `None` is a bad sample where default_collate would refuse it, and, with `forgive`, everywhere; otherwise the user's own
   collate function may know it.
3. An exception that leaves `load` is a FetchError that knows its stage and sample.
4. A task that ended its worker comes again to be tried `singly`: each sample is loaded alone, and dropped, before all are loaded
   together, so that the journal tells which one is guilty; what is delivered is the same, with the same random numbers.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any

import torch

from antifreeze.errors import LoadingError
from antifreeze.naming import shown
from antifreeze.plan.given import Given, as_given
from antifreeze.slots.layout import Irregular
from antifreeze.torch_private import default_convert
from antifreeze.worker.failure import Failure, ThreadEnded
from antifreeze.worker.gather import Gather, gather_of
from antifreeze.worker.journal import JournalRow, Stage, Word, places_are_found
from antifreeze.worker.making import NoRows, RowByRow, SampleMaker, none_error
from antifreeze.worker.seeding import Seeds
from antifreeze.worker.task import NOT_PLAIN, Bounce, FetchConfig, FetchError, Outcome, Rows, Task, few
from antifreeze.worker.ways import ways_to_fetch

_NONE = type(None)
_NEVER_BESIDE_NONE = frozenset({tuple, list, dict, int, float, torch.Tensor})
"""Where the first sample is one of these, default_collate itself refuses a None further on."""

_TIMED, _QUICK_NS = 20_000, 3_500
"""A word for each sample costs about 70 ns: a fiftieth of what takes 3.5 µs. So many samples are timed before that is said of them."""

_ROW, _INDEX, _SAMPLES, _IS_TEXT = int(Word.ROW), int(Word.INDEX), int(Word.SAMPLES), int(Word.INDEX_IS_TEXT)


class MapFetcher:
    """Loads tasks of a map-style data set."""

    def __init__(self, dataset: Any, config: FetchConfig, maker: SampleMaker, seeds: Seeds, journal: JournalRow) -> None:
        self._dataset = dataset
        self._config = config
        self._maker = maker
        self._seeds = seeds
        self._journal = journal
        self._pid = os.getpid()
        self._source, self._get_many = ways_to_fetch(dataset) if config.auto_collation else (dataset, None)
        self._gather = gather_of(dataset) if maker.may_write_rows else None
        self.gathers = self._gather is not None  # as long as the data set is what it is; indices had better be an array then
        self._asks = "__getitem__" if self._get_many is None else "__getitems__"
        self._none_is_bad = maker.may_write_rows or config.forgive
        self._timed = self._timed_ns = 0
        self._is_quick = False
        self.fetched_ns = 0
        self._place: Any = None  # of the last task, as long as the journal may point to it

    def load(self, task: Task, check: Callable[[], None] | None = None) -> Outcome:
        """`check` raises where the worker can answer no more; it is asked after each sample that is tried alone."""
        began = time.perf_counter_ns()
        if not self._config.auto_collation:
            sample = self._fetch_one(task)
            fetched = time.perf_counter_ns()
            collated = self._maker.collate(sample, task, self._seeds)
            return self._maker.pack(task, collated, 1, fetched - began, time.perf_counter_ns() - fetched)
        if task.singly:
            failures = self._try_alone(self._with_list(task), check)
            if failures:
                return Bounce(failures)
        if self._gather is not None:
            gathered = self._gather_rows(self._gather, task, began)
            if gathered is not None:
                return gathered
            if self._get_many is not None and not task.whole:
                return Bounce()  # __getitems__ is promised whole batches
        task = self._with_list(task)
        if self._get_many is not None:
            try:
                many = self._fetch_many(task)
            except FetchError:
                failures = self._try_alone(task) if self._config.forgive else {}
                if not failures:
                    raise
                return Bounce(failures)
            return self._finish(task, many, {}, began)
        if self._maker.may_write_rows and self._maker.rows_pay and task.indices and self._maker.rows_may_be_large:
            return self._load_rows(task, began)
        if self._seeds.may_go_plainly():
            outcome = self._load_plainly(task, began)
            if outcome is not None:
                return outcome
        samples, failures = self._fetch_each(task)
        return self._finish(task, samples, failures, began)

    def _load_plainly(self, task: Task, began: int) -> Outcome | None:
        """Without a call of our own per sample; None where random numbers were used that were not the sample's: then what came of it
        does not count."""
        seeds = self._seeds
        collates_unseeded = seeds.samples_need_none() and (self._maker.may_write_rows or seeds.batches_need_none())
        seeds.watch()
        try:
            samples, failures = self._fetch_plainly(task)
            if samples is None or (not collates_unseeded and seeds.late_use()):
                return None
            outcome = self._finish(task, samples, failures, began, unseeded=collates_unseeded)
        except FetchError:
            if seeds.late_use():
                return None  # it may be bad only because its numbers were not seeded
            raise
        return None if collates_unseeded and seeds.late_use() else outcome

    def _with_list(self, task: Task) -> Task:
        return task if isinstance(task.indices, (list, tuple)) else task._replace(indices=self._as_list(task.indices))

    def _as_list(self, indices: Any) -> list[Any]:
        if self._get_many is not None and not isinstance(indices, array):
            return Given([indices], indices)  # no batch to us, but what __getitems__ makes of it is the data set's affair
        try:
            return list(indices)
        except TypeError as error:
            raise self._maker.fetch_error(error, "reading the batch that the sampler gave") from error

    def _gather_rows(self, gather: Gather, task: Task, began: int) -> Outcome | None:
        """None where the data set must be asked after all."""
        layout, chosen = gather.layout(), gather.choose(task.indices)
        if layout is None or chosen is None:
            return None
        self._journal.stage(Stage.WRITE)
        columns = self._maker.columns_for(task, layout, len(chosen))
        if not gather.write(chosen, columns):
            return None
        self._journal.words[_SAMPLES] += len(chosen)
        self._seeds.no_code_ran()
        return self._maker.written(task, layout, columns, time.perf_counter_ns() - began)

    # --- asking the data set ---

    def _fetch_one(self, task: Task, seeded: bool = True) -> Any:
        self._journal.stage(Stage.FETCH)
        self._journal.at_key(0, task.indices, task.position)
        source, index, sample = self._source, task.indices, None

        def fetch(number: int) -> None:
            nonlocal sample
            sample = source[index]

        try:
            if seeded:
                self._seeds.for_each(task.position, 1, fetch)
            else:
                sample = source[index]
            if sample is None and self._none_is_bad:
                raise none_error(f"sample {shown(task.indices)}")
        except BaseException as error:
            raise self._sample_error(error, task.indices, 0, task.position) from error
        self._journal.words[_SAMPLES] += 1
        return sample

    def _fetch_many(self, task: Task, seeded: bool = True) -> Any:
        task = self._with_list(task)
        self._journal.stage(Stage.FETCH)
        if len(task.indices) == 1:
            self._note(task, 0)
        else:
            self._journal.at_many(task.indices)
        assert self._get_many is not None
        try:
            if not seeded:
                samples = self._get_many(as_given(task.indices))
            else:
                samples = self._seeds.around_batch(task.position, partial(self._get_many, as_given(task.indices)))
        except Exception as error:
            raise self._maker.fetch_error(error, "__getitems__", explanation=f"samples {few(task.indices)}") from error
        self._journal.words[_SAMPLES] += len(task.indices)
        return samples

    def is_plain(self) -> bool:
        """Samples are asked for and collated, and nothing of that was seen to use a random number that `seeding_each` does not deal."""
        maker, seeds = self._maker, self._seeds
        may_write_rows = maker.may_write_rows
        if may_write_rows and maker.rows_pay:
            return False
        if not self._config.auto_collation:
            return seeds.samples_need_none() and (self._config.collate_fn is default_convert or seeds.batches_need_none())
        if self._gather is not None and self._gather.layout() is not None:
            return False
        if self._get_many is None:
            return seeds.may_go_plainly() and (may_write_rows or seeds.batches_need_none())
        return seeds.batches_need_none()

    def deals(self) -> bool:
        """Where it `is_plain`: samples are dealt their random numbers, or it is not known yet whether they draw any."""
        return self._get_many is None and not self._seeds.samples_need_none()

    def collate_plainly(self, task: Task) -> Any:
        """The batch of a plain data set, as torch's own fetcher makes it; NOT_PLAIN where the samples must be loaded one by one.
        `fetched_ns`: when they were there."""
        if not self._config.auto_collation:
            sample = self._fetch_one(task, seeded=False)
            self.fetched_ns = time.perf_counter_ns()
            return self._maker.collate(sample, task, None)
        samples = self._fetch_all(task) if self._get_many is None else self._fetch_many(task, seeded=False)
        self.fetched_ns = time.perf_counter_ns()
        if samples is None:
            return NOT_PLAIN
        if not self._maker.may_write_rows and self.deals():
            if self._seeds.late_use():
                return NOT_PLAIN
            return self._maker.collate(samples, task, self._seeds)
        looked = not self._none_is_bad
        if not looked and not (isinstance(samples, list) and samples and type(samples[0]) in _NEVER_BESIDE_NONE):
            self._refuse_any_none(task, samples)
            looked = True
        try:
            return self._maker.collate(samples, task, None)
        except FetchError:
            if not looked:
                self._refuse_any_none(task, samples)
            raise

    def _note(self, task: Task, number: int) -> None:
        """In the journal: this sample of the task is next."""
        words, index = self._journal.words, task.indices[number]
        try:
            words[_INDEX] = index
            words[_IS_TEXT], words[_ROW] = 0, task.first_row + number
        except (TypeError, ValueError):
            self._journal.at_key(task.first_row + number, index, task.position_of(number))

    def _try_alone(self, task: Task, check: Callable[[], None] | None = None) -> dict[int, Failure]:
        """The samples that cannot be had by themselves either, by row, where all of them together could not be had; what can be had
        is dropped. With `check` each goes the whole way, since what becomes of it in the batch may have ended the worker."""
        failures: dict[int, Failure] = {}
        self._journal.stage(Stage.FETCH)
        for number, index in enumerate(task.indices):
            self._note(task, number)
            try:
                sample = self._seeds.around_batch(task.position_of(number), partial(self._fetch_alone, task, number))
                if sample is None and self._none_is_bad:
                    raise none_error(f"sample {shown(index)}")
            except BaseException as error:
                row, position = task.first_row + number, task.position_of(number)
                if not self._config.forgive:
                    raise self._sample_error(error, index, row, position) from error
                failures[row] = self._sample_error(error, index, row, position).failure
            else:
                if check is not None:
                    self._maker.try_out(task, number, sample)
            if check is not None:
                check()
        return failures

    def _fetch_alone(self, task: Task, number: int) -> Any:
        if self._get_many is None:
            return self._source[task.indices[number]]
        alone = as_given(task.indices) if len(task.indices) == 1 else task.indices[number : number + 1]
        samples = self._get_many(alone)
        if not isinstance(samples, (list, tuple)) or not samples:
            return samples
        return None if any(sample is None for sample in samples) else samples[0]

    def _fetch_each(self, task: Task, keep: Callable[[int, Any], None] | None = None) -> tuple[list[Any], dict[int, Failure]]:
        """All samples of the task (None in the place of a bad one) and the failures by row; `keep` may take each one at once."""
        indices, source, words, none_is_bad = task.indices, self._source, self._journal.words, self._none_is_bad
        samples: list[Any] = [None] * len(indices)
        failures: dict[int, Failure] = {}
        first_row = task.first_row
        self._journal.stage(Stage.FETCH)

        def fetch(number: int) -> None:
            index = indices[number]
            failures.pop(first_row + number, None)
            try:
                words[_ROW] = first_row + number
                words[_INDEX] = index
            except (TypeError, ValueError):
                self._journal.at_key(first_row + number, index, task.position_of(number))
            try:
                sample = source[index]
                if sample is None and none_is_bad:
                    raise none_error(f"sample {shown(index)}")
            except BaseException as error:
                if not self._config.forgive:
                    raise self._sample_error(error, index, first_row + number, task.position_of(number)) from error
                failures[first_row + number] = self._sample_error(error, index, first_row + number, task.position_of(number)).failure
                return
            if keep is None:
                samples[number] = sample
            else:
                keep(number, sample)

        words[Word.INDEX_IS_TEXT] = 0
        self._seeds.for_each(task.position, len(indices), fetch, task.offsets)
        words[Word.SAMPLES] += len(indices)
        return samples, failures

    def _fetch_plainly(self, task: Task) -> tuple[list[Any] | None, dict[int, Failure]]:
        """What _fetch_each does; no samples where the journal does not list their indices: each is noted by itself then."""
        indices, source, words, first_row = task.indices, self._source, self._journal.words, task.first_row
        samples: list[Any] = []
        failures: dict[int, Failure] = {}
        add = samples.append
        self._journal.stage(Stage.FETCH)
        words[_IS_TEXT] = 0
        if self._config.worker is not None and not self._journal.lists:
            return None, {}
        if not self._config.forgive:
            return self._fetch_timed(task), failures
        if not self._seeds.samples_need_none():
            return None, {}
        index: Any = None
        while len(samples) < len(indices):
            done = len(samples)
            try:
                for row, index in enumerate(islice(indices, done, None), first_row + done):
                    words[_ROW] = row
                    add(source[index])
            except BaseException as error:
                if type(index) is not int:
                    return None, {}
                row, position = first_row + len(samples), task.position_of(len(samples))
                failures[row] = self._sample_error(error, index, row, position).failure
                add(None)
        words[_SAMPLES] += len(indices)
        return samples, failures

    def _fetch_timed(self, task: Task) -> list[Any] | None:
        """And from then on without a word for each sample, where that would be felt."""
        if self._is_quick or self._timed >= _TIMED:
            return self._fetch_all(task)
        began_ns = time.perf_counter_ns()
        samples = self._fetch_all(task)
        self._timed += len(task.indices)
        self._timed_ns += time.perf_counter_ns() - began_ns
        self._is_quick = self._timed >= _TIMED and self._timed_ns < _QUICK_NS * self._timed and places_are_found()
        return samples

    def _fetch_all(self, task: Task) -> list[Any] | None:
        """The same where the first bad sample ends the task."""
        indices, source, words, row_word = task.indices, self._source, self._journal.words, _ROW
        place = iter(indices)
        each = self._seeds.seeding_each(place, task.position, len(indices), task.offsets)
        try:
            if self._config.worker is None:  # nobody but this very code looks at the journal
                samples = [source[index] for index in each]
            elif self._is_quick and type(indices) is list:
                self._place = place
                self._journal.at_place(place)
                samples = [source[index] for index in each]
                self._journal.at_no_place()
            else:
                samples = [source[index] for words[row_word], index in enumerate(each, task.first_row)]
        except BaseException as error:
            number = len(indices) - length_hint(place) - 1
            self._journal.at_no_place()  # they may be asked for once more, and noted then
            if type(indices[number]) is not int:
                return None
            raise self._sample_error(error, indices[number], task.first_row + number, task.position_of(number)) from error
        words[_SAMPLES] += len(indices)
        return samples

    def _sample_error(self, error: BaseException, index: Any, row: int, position: int) -> FetchError:
        if isinstance(error, ThreadEnded):
            raise error
        if os.getpid() != self._pid and self._config.worker is not None:
            os._exit(1)  # a child that the data set forked has come back here: it is no worker
        if isinstance(error, StopIteration) or (not isinstance(error, Exception) and self._config.worker is not None):
            # raised in the loop it would end the epoch silently, or the training, or look like the user's own Ctrl-C
            replaced = LoadingError(f"sample {shown(index)}: {self._asks} raised {type(error).__name__}: {error}")
            replaced.__cause__ = error
            error = replaced
        elif not isinstance(error, Exception):
            raise error
        return self._maker.fetch_error(error, self._asks, index=index, row=row, position=position)

    # --- rows ---

    def _load_rows(self, task: Task, began: int) -> Outcome:
        """Large rows are written at once, so that their memory serves the next sample; small ones together at the end."""
        rows = RowByRow(self._maker, task)
        try:
            _, failures = self._fetch_each(task, rows.keep)
        except (Irregular, NoRows):
            if not task.whole and not self._config.forgive:
                return Bounce()  # else all that are bad are to be known before anything takes the place of one
            samples, failures = self._fetch_each(task)
            return self._finish(task, samples, failures, began)
        if rows.kept is not None:
            return self._finish(task, rows.kept, failures, began)
        if rows.layout is None:  # every sample of the task is bad
            return Bounce(failures)
        took_ns = time.perf_counter_ns() - began
        return Rows(rows.layout, len(task.indices), failures, took_ns - rows.write_ns, rows.write_ns)

    def _finish(self, task: Task, samples: Any, failures: dict[int, Failure], began: int, unseeded: bool = False) -> Outcome:
        """Rows where the samples allow it; else, with the batch whole and all samples good, collated and packed."""
        fetched = time.perf_counter_ns()
        good = [number for number in range(len(samples)) if task.first_row + number not in failures] if failures else None
        rows = self._maker.may_write_rows and self._maker.rows_pay and isinstance(samples, list) and len(samples) == len(task.indices)
        if rows and good != [] and samples:
            layout = self._maker.write_as_rows(task, samples, good)
            if layout is not None:
                return Rows(layout, len(samples), failures, fetched - began, time.perf_counter_ns() - fetched)
        if self._none_is_bad and not failures:
            failures = self._refuse_any_none(task, samples)
        if failures or not task.whole:
            return Bounce(failures)
        collated = self._maker.collate(samples, task, None if unseeded else self._seeds)
        return self._maker.pack(task, collated, task.batch_rows, fetched - began, time.perf_counter_ns() - fetched)

    def _refuse_any_none(self, task: Task, samples: Any) -> dict[int, Failure]:
        failures: dict[int, Failure] = {}
        if not isinstance(samples, (list, tuple)) or _NONE not in set(map(type, samples)):
            return failures
        if len(samples) != len(task.indices):
            return self._find_none(task, len(samples))
        for number, index in enumerate(task.indices):
            if samples[number] is None:
                row, position = task.first_row + number, task.position_of(number)
                if not self._config.forgive:
                    raise self._sample_error(none_error(f"sample {shown(index)}"), index, row, position)
                failures[row] = self._sample_error(none_error(f"sample {shown(index)}"), index, row, position).failure
        return failures

    def _find_none(self, task: Task, given: int) -> dict[int, Failure]:
        """Among more samples than `__getitems__` was asked for, or fewer: its place does not say whose it is, so each is asked for."""
        failures = self._try_alone(task)
        if not failures:
            which = f"one of the {given} samples that __getitems__ gave for {len(task.indices)} (asked for alone, none was)"
            raise self._maker.fetch_error(none_error(which), "__getitems__", explanation=f"samples {few(task.indices)}")
        return failures
