"""The table: one row per disease, filled by the decorators as `antifreeze.selftest.faults` is imported."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antifreeze.selftest.trial import Trial

Program = Callable[["Trial"], None]
Sickness = Callable[[Path], Any]
"""What happens in `__getitem__` of the one sick sample; it is given the trial's folder."""

SAMPLES = 24
BATCH = 4
SICK = 13
"""The sample that a fault confined to one sample is confined to."""


class Outcome(Enum):
    FINISHED = "finished"
    ERROR = "error"
    FROZEN = "frozen"
    DIED = "died"
    WRONG_DATA = "wrong data"
    SKIPPED = "not run"


class Variant(Enum):
    """`raise` is what everybody gets; `skip` asks ours to leave the sick sample out and go on."""

    RAISE = "raise"
    SKIP = "skip"


@dataclass(frozen=True)
class Expectation:
    """What issue 3 demands. Patterns are regular expressions, matched without regard to case."""

    outcomes: tuple[Outcome, ...] = (Outcome.FINISHED,)
    error: str = ""
    """Pattern for the error's type."""
    cause: str = ""
    """Pattern for the error's text."""
    names_sample: bool = False
    missing: tuple[Any, ...] = ()
    """Samples that may be absent from a finished epoch, and must be in `loader.report()`."""
    said: str = ""
    """Pattern for what must be printed, reported or raised."""
    exit_codes: tuple[int, ...] = (0,)
    tracebacks: int | None = None
    stop_s: float = 3.0
    """The bound for stopping: 2 s by design, and one for a busy machine."""


@dataclass(frozen=True)
class Fault:
    name: str
    what: str
    source: str
    """Where it was seen: a thread (pt#142884), a row of the mission (F2), a section of the field study."""
    program: Program
    expected: Expectation
    confined: bool = False
    """To the sample SICK: then skipping it must end in a finished epoch without exactly that one."""
    needs: tuple[str, ...] = ()
    heavy: bool = False
    uncaught: bool = False
    """The program's end is the fault: its exception is left to the interpreter."""
    limit_s: float = 15.0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Ours only; torch's loader does not get them."""

    @property
    def variants(self) -> tuple[Variant, ...]:
        return (Variant.RAISE, Variant.SKIP) if self.confined else (Variant.RAISE,)

    def expects(self, variant: Variant) -> Expectation:
        if variant is Variant.RAISE:
            return self.expected
        return Expectation(missing=(SICK,), exit_codes=self.expected.exit_codes)

    def options_for(self, variant: Variant) -> dict[str, Any]:
        return {**self.options, **({"on_bad_sample": "skip"} if variant is Variant.SKIP else {})}


_TABLE: dict[str, Fault] = {}


def all_faults() -> dict[str, Fault]:
    importlib.import_module("antifreeze.selftest.faults")
    return dict(_TABLE)


def fault(name: str, what: str, source: str, expected: Expectation | None = None, **rest: Any) -> Callable[[Program], Program]:
    """Register a whole program."""

    def register(program: Program) -> Program:
        _add(Fault(name, what, source, program, expected or Expectation(), **rest))
        return program

    return register


def sample_fault(
    name: str,
    what: str,
    source: str,
    *,
    error: str,
    cause: str,
    make: Callable[[Trial, Sickness], Any] = lambda trial, sickness: trial.loader(trial.sick(sickness)),
    during: Callable[[Trial], AbstractContextManager[Any]] = lambda trial: nullcontext(),
    outcomes: tuple[Outcome, ...] = (Outcome.ERROR,),
    **rest: Any,
) -> Callable[[Sickness], Sickness]:
    """Register what one sick sample does; the program around it is one epoch over 24 samples, the 13th of which is sick. `make` may make
    another loader of it."""

    def register(sickness: Sickness) -> Sickness:
        def program(trial: Trial) -> None:
            with during(trial):
                trial.epoch(make(trial, sickness))

        expected = Expectation(outcomes, error, cause, names_sample=True)
        _add(Fault(name, what, source, program, expected, confined=True, **rest))
        return sickness

    return register


def _add(row: Fault) -> None:
    if row.name in _TABLE:
        raise ValueError(f"two faults are called {row.name!r}")
    _TABLE[row.name] = row
