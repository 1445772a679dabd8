"""Every exception antifreeze raises by itself; a data set's own exception keeps its own type.

AntifreezeError
├── OptionError          (ValueError)    an argument that cannot be, or two that contradict each other
│   └── OptionTypeError  (TypeError)     one of torch's own, of a type for which torch raises TypeError
├── StateMismatch        (ValueError)    load_state_dict() with a state of another loader
├── StaleCache           (RuntimeError)  a folder of `cached` with other samples than the data set gives now
├── TraceError           (RuntimeError)  two traces at once, or one that has ended
├── LoaderClosed         (RuntimeError)  next() on an iterator that was closed, or that belongs to another process
└── LoadingError         (RuntimeError)  a batch could not be delivered
    ├── LoaderTimeout                    `timeout` seconds passed without a batch
    ├── SampleTimeout                    one sample took longer than `sample_timeout_s`
    ├── SampleLost                       one sample ended its worker again and again
    ├── BadSample        (TypeError)     a sample that is None, or does not fit the others of its batch
    ├── TooManyBadSamples                more were skipped or replaced than `max_bad_samples` allows
    ├── BatchNotPicklable                what the collate function made cannot leave the worker
    ├── BatchTooLarge                    a batch that does not fit into memory or `memory_budget`
    ├── UnevenRanks                      ranks of one process group have different numbers of batches
    ├── WorkerStartFailed                a worker could not be started
    ├── DescriptorsClosed                somebody else closed what the loader had opened
    └── LoaderGaveUp                     workers died faster than the restart budget allows

AntifreezeWarning        (UserWarning)   something that runs, and is probably not what was meant
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

_OURS = os.path.dirname(__file__) + os.sep


class AntifreezeError(Exception):
    """The root: `except AntifreezeError` catches what antifreeze says, and nothing of the user's."""


class OptionError(AntifreezeError, ValueError):
    pass


class OptionTypeError(OptionError, TypeError):
    pass


class StateMismatch(AntifreezeError, ValueError):
    pass


class StaleCache(AntifreezeError, RuntimeError):
    pass


class TraceError(AntifreezeError, RuntimeError):
    pass


class LoaderClosed(AntifreezeError, RuntimeError):
    pass


class LoadingError(AntifreezeError, RuntimeError):
    pass


class LoaderTimeout(LoadingError):
    pass


class SampleTimeout(LoadingError):
    pass


class SampleLost(LoadingError):
    pass


class BadSample(LoadingError, TypeError):
    row: int | None = None
    """Of the batch, where whoever raises it (a collate function) knows which one is to blame."""


class TooManyBadSamples(LoadingError):
    pass


class BatchNotPicklable(LoadingError):
    pass


class BatchTooLarge(LoadingError):
    pass


class UnevenRanks(LoadingError):
    pass


class WorkerStartFailed(LoadingError):
    pass


class DescriptorsClosed(LoadingError):
    pass


class LoaderGaveUp(LoadingError):
    pass


class AntifreezeWarning(UserWarning):
    pass


def add_note(error: BaseException, text: str) -> None:
    """Words shown with the exception. Python 3.10 knows no notes: there they are the cause at the end of its chain."""
    if hasattr(error, "add_note"):
        error.add_note(text)
        return
    last, seen = error, {id(error)}
    while (earlier := last.__cause__ or (None if last.__suppress_context__ else last.__context__)) and id(earlier) not in seen:
        last = earlier
        seen.add(id(last))
    last.__cause__ = LoadingError(text)


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """It, and whatever it was raised from or while, each once; what is cut off from one that came is not followed."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]


def empty_own_frames(error: BaseException) -> None:
    """For whoever hands it to the user: of our code, names and lines stay in its tracebacks, and no variables. Those lead to batches, to
    the loop's own frames and back to the error, so that all would live until the garbage collector comes. The user's own stay."""
    for one in with_causes(error):
        traceback = one.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename.startswith(_OURS):
                with suppress(RuntimeError):  # it still runs
                    traceback.tb_frame.clear()
            traceback = traceback.tb_next
