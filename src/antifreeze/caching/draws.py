"""Which random generators some code draws from: a sample that did must not be kept, or it would be the same in every epoch.

    step of the coroutine ── marks ──▶ its code ──▶ marks, the same? ── others' steps ──▶ its next step …

1. `random`, `numpy.random` and `torch` are looked at before and after each step: what other samples of an event loop draw in between, or
   the loader seeds, is nothing of this one's. Code that does not wait is one step. (What it lets a thread of its own draw while it waits
   is not seen here; the sample that is loaded twice, cached.py, may tell.)
2. In a worker that is a thread the generators are the process's: where it has not the floor (turns.py), somebody else may have drawn.
   Then nothing is known (`unsure`), and the sample is not kept this time.
3. The generators are left as they are found, also the seal by which the loader sees that somebody set their state.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

from antifreeze.worker.generators import global_generators
from antifreeze.worker.steps import step_by_step
from antifreeze.worker.turns import draws_alone, unless_given_up

_NAMES = ("random", "numpy.random", "torch")


class Draws:
    """Awaits what `ask` gives, and notes what its own steps draw from (`names`); `unsure`: it drew, or somebody else did meanwhile."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._ask = ask
        self._generators = global_generators()
        self.names = ""
        self.unsure = False

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine = self._ask()
        try:
            return (yield from step_by_step(coroutine, self._step))
        finally:
            coroutine.close()

    def _step(self, step: Callable[[Any], Any], given: Any) -> Any:
        seals = [generator.broken_seal() for generator in self._generators]
        alone, marks = draws_alone(), [generator.mark() for generator in self._generators]
        try:
            return step(given)
        finally:
            self._note(marks, alone)
            for generator, seal in zip(self._generators, seals, strict=True):
                generator.break_seal(seal)

    def _note(self, marks: list[Any], alone: bool) -> None:
        moved = [name for name, generator, mark in zip(_NAMES, self._generators, marks, strict=True) if generator.moved_since(mark)]
        self.unsure |= bool(moved)
        if moved and alone and draws_alone():
            self.names = self.names or ", ".join(moved) + _others()


def _others() -> str:
    """Threads of somebody else's, whose draws cannot be told from the sample's."""
    known = (threading.current_thread(), threading.main_thread())
    others = [each.name for each in threading.enumerate() if each not in known and not each.name.startswith("antifreeze-worker-")]
    return f"; unless it is the thread {others[0]}" if others else ""


def at_once(awaited: Awaitable[Any]) -> Any:
    """What it returns, where nothing in it waits."""
    steps = awaited.__await__()
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    steps.close()
    raise RuntimeError("a data set that is asked as one that does not wait has waited")


def put_back_after(call: Callable[[], Any]) -> Any:
    """What it returns; where nobody else can have drawn meanwhile, the generators are as they were before."""
    generators = global_generators()
    alone, before = draws_alone(), [(generator, generator.seen(), generator.save()) for generator in generators]
    try:
        return call()
    finally:
        for generator, seen, state in before:
            if alone and draws_alone() and generator.moved_since(seen):
                unless_given_up(partial(generator.restore, state))
