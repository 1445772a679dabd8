"""What is done about a bad sample, and the list of those there were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from antifreeze.errors import OptionError, TooManyBadSamples
from antifreeze.options import OnBadSample, Options
from antifreeze.worker.failure import Failure
from antifreeze.worker.fetch import FetchError
from antifreeze.worker.seeding import mix


@dataclass(frozen=True)
class BadSampleRecord:
    """One sample that was skipped or replaced."""

    epoch: int
    batch: int
    failure: Failure
    done: OnBadSample

    def __str__(self) -> str:
        verb = "skipped" if self.done is OnBadSample.SKIP else "replaced"
        return f"{self.failure.describe()}; {verb} in batch {self.batch} of epoch {self.epoch}"


class BadSampleDesk:
    """Decides by policy, counts against the limit, keeps the records."""

    def __init__(self, options: Options, records: list[BadSampleRecord]) -> None:
        self._options = options
        self.records = records

    def decide(self, failure: Failure, index: Any, *, epoch: int, batch: int, samples: int | None) -> OnBadSample:
        """Raises TooManyBadSamples past the limit; RAISE means: raise the failure itself."""
        choice = self._options.on_bad_sample
        if not isinstance(choice, OnBadSample):
            answer = choice(index, failure.to_exception())
            try:
                choice = OnBadSample(answer)
            except ValueError:
                raise OptionError(
                    f'on_bad_sample returned {answer!r} for sample {index!r}; expected "raise", "skip" or "replace"'
                ) from None
        if choice is not OnBadSample.RAISE:
            self.records.append(BadSampleRecord(epoch, batch, failure, choice))
            self._check_limit(epoch, samples)
        return choice

    def _check_limit(self, epoch: int, samples: int | None) -> None:
        limit = self._options.max_bad_samples
        if limit is None:
            return
        count = sum(record.epoch == epoch for record in self.records)
        allowed = limit if isinstance(limit, int) else int(limit * samples) if samples is not None else None
        if allowed is not None and count > allowed:
            lines = "\n".join(f"  {record}" for record in self.records[-10:])
            raise TooManyBadSamples(
                f"{count} bad samples in epoch {epoch}, and max_bad_samples={limit} allows {allowed}; the last ones:\n{lines}"
            )


def replacement(seed: int, position: int, attempt: int, samples: int) -> int:
    """Another sample of the data set, the same one in every run."""
    return mix(mix(seed ^ position) ^ attempt) % samples


def exception_of(failure: Failure | FetchError) -> BaseException:
    """What the loop gets to see: the data set's own exception as raised where it was raised here, else with the worker's traceback."""
    if isinstance(failure, Failure):
        return failure.to_exception()
    cause = failure.__cause__
    assert cause is not None
    note = failure.failure._place()
    if note and hasattr(cause, "add_note"):
        cause.add_note(note)
    return cause


def failure_of(failure: Failure | FetchError) -> Failure:
    return failure if isinstance(failure, Failure) else failure.failure
