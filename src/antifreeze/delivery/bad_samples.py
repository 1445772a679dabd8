"""What is done about a bad sample, and the list of those there were."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import Any

from antifreeze.errors import OptionError, StaleCache, TooManyBadSamples, add_note
from antifreeze.naming import shown
from antifreeze.options import OnBadSample, Options
from antifreeze.saying import say
from antifreeze.supervisor.sample_path import path_of
from antifreeze.worker.failure import Failure
from antifreeze.worker.hands import mix
from antifreeze.worker.task import FetchError

DATASET_SUFFIX = ".dataset"
_LARGEST_SAVED_DATASET = 64 << 20
DONE = {OnBadSample.SKIP: "skipped", OnBadSample.REPLACE: "replaced", OnBadSample.RAISE: "raised"}


@dataclass(frozen=True)
class BadSampleRecord:
    """One sample that was skipped or replaced, or whose error was raised."""

    epoch: int
    batch: int
    failure: Failure
    done: OnBadSample
    seed: int
    path: str | None = None

    @property
    def index(self) -> str | None:
        """As it is shown: the repr of what the sampler gave; None where a whole batch failed."""
        return self.failure.index

    @property
    def stage(self) -> str:
        return self.failure.stage

    @property
    def exception(self) -> str:
        """The name of its type."""
        return self.failure.type_name

    @property
    def message(self) -> str:
        return self.failure.message

    @property
    def traceback(self) -> str:
        return self.failure.traceback_text

    def as_dict(self) -> dict[str, Any]:
        """Plain data: enough to run exactly this sample again."""
        failure = self.failure
        return {
            "index": failure.index,
            "path": self.path,
            "seed": self.seed,
            "epoch": self.epoch,
            "batch": self.batch,
            "row": failure.row,
            "position": failure.position,
            "stage": failure.stage,
            "worker": failure.worker,
            "exception": failure.type_name,
            "message": failure.message,
            "traceback": failure.traceback_text,
            "done": self.done.value,
        }

    def __str__(self) -> str:
        path = "" if self.path is None else f" [{self.path}]"
        return f"{self.failure.describe()}{path}; {DONE[self.done]} in batch {self.batch} of epoch {self.epoch}"


class BadSampleDesk:
    """Decides by policy, counts against the limit, keeps the records."""

    def __init__(self, options: Options, records: list[BadSampleRecord], raised: list[BadSampleRecord], dataset: Any) -> None:
        self._raised = raised
        self._options = options
        self._dataset = dataset
        self._dataset_saved = False
        self.records = records
        self.exceeded_in = 0
        """The epoch in which the limit was passed last."""

    def decide(self, failure: Failure, index: Any, *, epoch: int, batch: int, seed: int, samples: int | None) -> OnBadSample:
        """Raises TooManyBadSamples past the limit; RAISE means: raise the failure itself."""
        try:
            choice = self._choose(failure, index)
        except Exception as error:  # the user's own policy failed: what it was about is known all the same
            self.note_raised(failure, index, epoch=epoch, batch=batch, seed=seed)
            add_note(error, f"antifreeze: this was about {failure.describe()}")
            raise
        if choice is not OnBadSample.RAISE:  # else whoever raises it notes it
            record = BadSampleRecord(epoch, batch, failure, choice, seed, path_of(self._dataset, index))
            self._write(record)
            self.records.append(record)
            try:
                self.check_limit(epoch, samples)
            except TooManyBadSamples as error:
                add_note(error, f"antifreeze: this was about {failure.describe()}")
                raise
        return choice

    def _choose(self, failure: Failure, index: Any) -> OnBadSample:
        if (failure.type_module, failure.type_name) == (StaleCache.__module__, StaleCache.__qualname__):
            return OnBadSample.RAISE  # the folder is bad, no sample is: all of them would be skipped, and the loop end with nothing
        choice = self._options.on_bad_sample
        if isinstance(choice, OnBadSample):
            return choice
        answer = choice(index, failure.to_exception())
        try:
            return OnBadSample(answer)
        except ValueError:
            raise OptionError(
                f'on_bad_sample returned {answer!r} for sample {shown(index)}; expected "raise", "skip" or "replace"'
            ) from None

    def note_raised(self, failure: Failure, index: Any, *, epoch: int, batch: int, seed: int) -> None:
        """A bad sample (or batch) that is about to be raised: for the file and the report, not for the count."""
        record = BadSampleRecord(epoch, batch, failure, OnBadSample.RAISE, seed, path_of(self._dataset, index))
        self._raised.append(record)
        self._write(record)

    def _write(self, record: BadSampleRecord) -> None:
        path = self._options.bad_samples_file
        if path is None:
            return
        try:
            with open(path, "ab") as file:
                before = b"\n" if file.tell() and _is_cut_off(path) else b""  # the line of a run that was ended within it stays its own
                file.write(before + json.dumps(record.as_dict()).encode("utf-8", errors="replace") + b"\n")
            if not self._dataset_saved:
                self._dataset_saved = True
                save_dataset(self._dataset, path)
        except OSError as why:  # it is no reason to end the training, and hides no error
            say(f"bad_samples_file={path!r} cannot be written: {why.strerror}; it lacks {record.failure.describe()}")

    def has_bad_of(self, epoch: int) -> bool:
        return bool(self.records) and self.records[-1].epoch == epoch

    def check_limit(self, epoch: int, samples: int | None) -> None:
        limit = self._options.max_bad_samples
        if limit is None:
            return
        count = sum(record.epoch == epoch for record in self.records)
        allowed = limit if isinstance(limit, int) else int(limit * samples) if samples is not None else None
        if allowed is not None and count > allowed:
            self.exceeded_in = epoch
            lines = "\n".join(f"  {record}" for record in self.records[-10:])
            raise TooManyBadSamples(
                f"{count} bad samples in epoch {epoch}, and max_bad_samples={limit} allows {allowed}; the last ones:\n{lines}"
            )


def _is_cut_off(path: str) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def save_dataset(dataset: Any, path: str) -> None:
    """Beside the list, so that `antifreeze replay` needs nothing else; where that cannot be, it will ask for the data set."""
    try:
        import cloudpickle  # type: ignore[import-untyped]

        content = cloudpickle.dumps(dataset)
    except Exception:
        return
    if len(content) <= _LARGEST_SAVED_DATASET:
        with open(path + DATASET_SUFFIX, "wb") as file:
            file.write(content)


def replacement(seed: int, position: int, attempt: int, samples: int) -> int:
    """Another sample of the data set, the same one in every run."""
    return mix(mix(seed ^ position) ^ attempt) % samples


def exception_of(failure: Failure | FetchError, path: str | None = None) -> BaseException:
    """What the loop gets to see: the data set's own exception as raised where it was raised here, else with the worker's traceback;
    and in its text which sample it was, from which file (`path`) where that is known."""
    told = failure_of(failure)
    if path is not None and path not in told.message and path not in told.traceback_text:
        told = replace(told, explanation="\n".join(filter(None, (told.explanation, f"its file: {path}"))))
    if isinstance(failure, Failure):
        return told.to_exception()
    cause = failure.__cause__
    assert cause is not None
    note = told._place()
    if note:
        add_note(cause, note)
    return cause


def failure_of(failure: Failure | FetchError) -> Failure:
    return failure if isinstance(failure, Failure) else failure.failure
