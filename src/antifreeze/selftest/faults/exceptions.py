"""`__getitem__` raises. The exception keeps its type and text, and the sample is named, whatever the exception is like."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from antifreeze.selftest.fault import Expectation, Outcome, Sickness, fault, sample_fault
from antifreeze.selftest.trial import Trial

WORDS = "the picture is torn"


def raising(name: str, what: str, source: str, error: str, cause: str = WORDS) -> Callable[[Sickness], Sickness]:
    return sample_fault(name, what, source, error=error, cause=cause)


@raising("exception", "`__getitem__` raises ValueError", "B1, pt#1137", error="ValueError")
def plain(_: Path) -> NoReturn:
    raise ValueError(WORDS)


@raising("missing-file", "the file of one sample was deleted", "B1", error="FileNotFoundError", cause=r"gone\.jpg")
def missing_file(folder: Path) -> Any:
    return (folder / "gone.jpg").read_bytes()


class HoldsLock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


@raising("unpicklable-exception", "an exception that does not pickle", "FIELD 6: safetensors#492", error="Exception")
def unpicklable(_: Path) -> NoReturn:
    raise HoldsLock(WORDS)


class NeedsThree(Exception):
    def __init__(self, first: int, second: int, text: str) -> None:
        super().__init__(text)


@raising("exception-with-odd-init", "an exception whose `__init__` wants three arguments", "pt#30147", error="Exception")
def odd_init(_: Path) -> NoReturn:
    raise NeedsThree(1, 2, WORDS)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@raising("exception-without-text", "an exception whose `__str__` raises", "B1", error="Exception", cause="Mute")
def mute(_: Path) -> NoReturn:
    raise Mute


@raising(
    "stop-iteration",
    "`__getitem__` raises StopIteration, which ends any `for` loop silently",
    "F7",
    error="Exception",
    cause="StopIteration",
)
def stop_iteration(_: Path) -> NoReturn:
    raise StopIteration


@raising(
    "stop-async-iteration",
    "`__getitem__` raises an exception with a meaning of its own",
    "F7",
    error="Exception",
    cause="StopAsyncIteration",
)
def stop_async_iteration(_: Path) -> NoReturn:
    raise StopAsyncIteration


@raising(
    "keyboard-interrupt", "KeyboardInterrupt raised in a worker: not the user's Ctrl-C", "F4", error="Exception", cause="KeyboardInterrupt"
)
def keyboard_interrupt(_: Path) -> NoReturn:
    raise KeyboardInterrupt


@raising(
    "system-exit", "SystemExit(0) raised in a worker must not end the training with success", "F4", error="Exception", cause="SystemExit"
)
def system_exit(_: Path) -> NoReturn:
    raise SystemExit(0)


@raising("generator-exit", "GeneratorExit raised in a worker", "F4", error="Exception", cause="GeneratorExit")
def generator_exit(_: Path) -> NoReturn:
    raise GeneratorExit


class Basic(BaseException):
    pass


@raising("base-exception", "a BaseException of the user's own", "F4", error="Exception|Basic", cause=WORDS)
def base_exception(_: Path) -> NoReturn:
    raise Basic(WORDS)


@raising("recursion", "endless recursion", "B1", error="RecursionError", cause="recursion")
def recursion(folder: Path) -> Any:
    return recursion(folder)


@raising("memory-error", "`__getitem__` raises MemoryError", "B1", error="MemoryError", cause="MemoryError")
def memory_error(_: Path) -> NoReturn:
    raise MemoryError


@raising("long-exception", "an exception with ten megabytes of text", "F7", error="ValueError")
def long_text(_: Path) -> NoReturn:
    raise ValueError(WORDS + " x" * 5_000_000)


@fault(
    "exception-without-workers",
    "`__getitem__` raises, and there are no workers",
    "B1",
    Expectation((Outcome.ERROR,), "ValueError", WORDS, names_sample=True),
    confined=True,
)
def without_workers(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.sick(plain), num_workers=0))


def bad_policy(index: object, error: BaseException) -> str:
    raise KeyError("no policy today")


@fault(
    "policy-raises",
    "a sample raises, and so does the user's on_bad_sample",
    "issue 3 Bad samples",
    Expectation((Outcome.ERROR,), "Exception", f"{WORDS}|no policy today"),
    options={"on_bad_sample": bad_policy},
)
def policy_raises(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.sick(plain)))
