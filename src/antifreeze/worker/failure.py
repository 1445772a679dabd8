"""An exception on its way from a worker to the user's loop: as plain text and names, so that it always arrives."""

from __future__ import annotations

import pickle
import sys
import traceback
from dataclasses import dataclass
from typing import Any

from antifreeze.errors import LoadingError, with_causes
from antifreeze.naming import shown
from antifreeze.torch_private import is_worker_thread

_LONGEST_MESSAGE = 2000

_inherited: list[BaseException] = []
"""What was being handled where this process was forked: Python takes it for the context of all that is raised here."""


class ThreadEnded(BaseException):
    """Raised inside a worker's thread that was given up: no failure of a sample, and nobody waits for what the thread does."""


@dataclass(frozen=True)
class Failure:
    """What happened, where, to which sample; `type_pickle` is None where the exception's class does not pickle."""

    type_module: str
    type_name: str
    type_pickle: bytes | None
    message: str
    traceback_text: str
    stage: str
    index: str | None
    row: int | None
    position: int | None
    worker: int | None
    explanation: str = ""
    ends_stream: bool = False  # what the stream had after this is lost with it
    in_thread: bool = False  # the worker is one

    @classmethod
    def of(
        cls,
        error: BaseException,
        *,
        stage: str,
        worker: int | None,
        index: Any = None,
        row: int | None = None,
        position: int | None = None,
        explanation: str = "",
    ) -> Failure:
        kind = type(error)
        _leave_inherited_behind(error)
        return cls(
            type_module=kind.__module__,
            type_name=kind.__qualname__,
            type_pickle=_pickled(kind),
            message=_first_line(error)[:_LONGEST_MESSAGE],
            traceback_text="".join(traceback.format_exception(kind, error, error.__traceback__)),
            stage=stage,
            index=None if index is None else shown(index, position),
            row=row,
            position=position,
            worker=worker,
            explanation=explanation,
            in_thread=is_worker_thread(),
        )

    @classmethod
    def without_traceback(
        cls,
        kind: type[BaseException],
        text: str,
        *,
        stage: str,
        worker: int | None,
        index: Any,
        row: int | None,
        position: int | None,
        explanation: str = "",
        ends_stream: bool = False,
    ) -> Failure:
        """For what happened to a worker rather than in its code."""
        return cls(
            type_module=kind.__module__,
            type_name=kind.__qualname__,
            type_pickle=_pickled(kind),
            message=text,
            traceback_text="",
            stage=stage,
            index=None if index is None else str(index),
            row=row,
            position=position,
            worker=worker,
            explanation=explanation,
            ends_stream=ends_stream,
        )

    def describe(self) -> str:
        """One line: which sample, what, where."""
        sample = f"sample {self.index}" if self.index is not None else "a batch"
        first_line = self.message.partition("\n")[0]
        more = f"; {self.explanation}" if self.ends_stream else ""
        return f"{sample}: {self.type_name.rpartition('.')[2]}: {first_line} (in {self.stage}){more}"

    def to_exception(self) -> BaseException:
        """The data set's own exception type where it can be had, with the worker's traceback in its text."""
        if not self.traceback_text:
            told: BaseException = self._kind()(self.message)
            return told
        where = "" if self.worker is None else f" in DataLoader worker {'thread' if self.in_thread else 'process'} {self.worker}"
        text = f"Caught {self.type_name.rpartition('.')[2]}{where}.\nOriginal {self.traceback_text}{self._place()}"
        kind = self._kind()
        if kind is None or issubclass(kind, StopIteration):
            return LoadingError(text)
        if kind is KeyError:
            return KeyError(_Verbatim(text))
        try:
            rebuilt: BaseException = kind(message=text) if getattr(kind, "message", None) else kind(text)
        except Exception:
            return LoadingError(text)
        if not _shows(rebuilt, text):
            rebuilt.__cause__ = LoadingError(text)  # its own words would not tell
            if hasattr(rebuilt, "add_note"):
                rebuilt.add_note(text)
        return rebuilt

    def _place(self) -> str:
        lines = []
        if self.index is not None:
            row = "" if self.row is None else f", row {self.row} of its batch"
            lines.append(f"antifreeze: this was sample {self.index}{row}, in {self.stage}")
        elif self.stage:
            lines.append(f"antifreeze: this was in {self.stage}")
        if self.explanation:
            lines.append(f"antifreeze: {self.explanation}")
        return "\n".join(lines)

    def _kind(self) -> Any:
        if self.type_pickle is not None:
            try:
                return pickle.loads(self.type_pickle)
            except Exception:
                return None
        # a class made inside a function: the parent of a forked worker has it too, only not by a name that can be imported
        alike = [
            kind for kind in _all_subclasses(BaseException) if (kind.__module__, kind.__qualname__) == (self.type_module, self.type_name)
        ]
        return alike[0] if len(alike) == 1 else None


class _Verbatim(str):
    """KeyError shows repr() of its argument; a traceback should be readable."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def begin_process() -> None:
    """In a worker's process, when it begins."""
    handled = sys.exc_info()[1]
    _inherited[:] = [] if handled is None else [handled]


def _leave_inherited_behind(error: BaseException) -> None:
    for one in with_causes(error) if _inherited else ():
        if one.__context__ is _inherited[0]:
            one.__context__ = None


def _pickled(kind: type) -> bytes | None:
    try:
        return pickle.dumps(kind)
    except Exception:
        return None


def _shows(error: BaseException, text: str) -> bool:
    try:
        return text in str(error)
    except Exception:
        return False


def _first_line(error: BaseException) -> str:
    try:
        return str(error).partition("\n")[0]
    except Exception:
        return "<its text cannot be shown>"


def _all_subclasses(kind: type) -> list[type]:
    found: list[type] = []
    waiting = [kind]
    while waiting:
        below: list[type] = type.__subclasses__(waiting.pop())
        found += below
        waiting += below
    return found
