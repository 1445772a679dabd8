"""A coroutine taken step by step, so that each sample has its own random numbers however others interleave with it.

    step of sample 7 ── its state in place ──▶ its code, until it waits ──▶ its state taken away ── step of sample 3 ──▶ …

1. Where a generator is used, its state is put in place before each step of the sample and taken away after it.
2. The first samples are watched: all generators are theirs, and it is noted which of them were used.
3. A sample that was not watched and used another one says so (`used_unseeded`): its numbers were nobody's, and it must be loaded again.
4. The data set is asked for the coroutine when its first step is due: a sample that is dropped before leaves none behind that was never
   awaited. Whatever breaks it off closes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from typing import Any

from antifreeze.worker.generators import glance_at, global_generators
from antifreeze.worker.hands import seed_for_sample
from antifreeze.worker.seeding import WARM_UP
from antifreeze.worker.turns import exclusively, in_worker_thread, unless_given_up


class Randomness:
    """The process's generators, and which of them the data set uses."""

    def __init__(self) -> None:
        self.generators = global_generators()
        self.glance = glance_at(self.generators)
        self.used: list[int] = []
        self._warm_up_left = WARM_UP

    def begins_watched(self) -> bool:
        """In a thread, until the first ones have ended: one that is not watched has no turn, and may draw from the numbers of a sample that
        has it in another thread."""
        if not in_worker_thread():
            self._warm_up_left -= self._warm_up_left > 0
        return self._warm_up_left > 0

    def ended_watched(self) -> None:
        self._warm_up_left -= self._warm_up_left > 0

    def note(self, moved: list[int]) -> None:
        self.used += [number for number in moved if number not in self.used]


def step_by_step(coroutine: Coroutine[Any, Any, Any], take: Callable[[Callable[[Any], Any], Any], Any]) -> Generator[Any, Any, Any]:
    """To its end, each step by `take(send or throw, what is given)`."""
    step: Callable[[Any], Any] = coroutine.send
    given: Any = None
    while True:
        try:
            waited_for = take(step, given)
        except StopIteration as end:
            return end.value
        try:
            step, given = coroutine.send, (yield waited_for)
        except GeneratorExit:  # nobody holds its task any more
            raise
        except BaseException as error:
            step, given = coroutine.throw, error


class Steps:
    """The coroutine of `source[index]`, step by step: before each step its random state is put in place, after it taken away."""

    def __init__(self, source: Any, index: Any, randomness: Randomness, seed: int, watched: bool, note: Callable[[], None]) -> None:
        self._source, self._index = source, index
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.own_s = 0.0
        self.used_unseeded = False
        self.exited = False
        """By a GeneratorExit of its own: another one means that it was broken off."""
        self._randomness = randomness
        self._seed = seed
        self.watched = watched
        self.note = note
        self._states: dict[int, Any] = {}
        self._context = copy_context()  # its own, though others have its asyncio task before and after it

    def __await__(self) -> Generator[Any, Any, Any]:
        self.coroutine = coroutine = self._source[self._index]  # no call: what is raised in this thread falls before it, or into the try
        try:
            return (yield from step_by_step(coroutine, self._step))
        finally:
            coroutine.close()

    def _step(self, step: Callable[[Any], Any], given: Any) -> Any:
        self.note()
        randomness = self._randomness
        mine = range(len(randomness.generators)) if self.watched else [*randomness.used]
        if mine:
            return exclusively(lambda: self._step_seeded(step, given, mine))
        return self._step_watching(step, given, ())

    def _step_seeded(self, step: Callable[[Any], Any], given: Any, mine: Any) -> Any:
        generators = self._randomness.generators
        outside = [(number, generators[number].save()) for number in mine]
        for number in mine:
            if number in self._states:
                generators[number].restore(self._states[number])
            else:
                seed_for_sample(generators[number], self._seed)
        try:
            return self._step_watching(step, given, mine)
        finally:
            unless_given_up(partial(self._put_back, outside))

    def _put_back(self, outside: list[tuple[int, Any]]) -> None:
        generators = self._randomness.generators
        for number, state in outside:
            self._states[number] = generators[number].save()
            generators[number].restore(state)

    def _step_watching(self, step: Callable[[Any], Any], given: Any, mine: Any) -> Any:
        randomness = self._randomness
        generators, glance = randomness.generators, randomness.glance
        before, marks = glance(), [generator.mark() for generator in generators] if self.watched or mine else []
        began_s = time.monotonic()
        try:
            return self._context.run(step, given)
        except GeneratorExit:
            self.exited = True
            raise
        finally:
            self.own_s += time.monotonic() - began_s
            if glance() != before:
                moved = [number for number, mark in enumerate(marks) if generators[number].moved_since(mark)]
                self.used_unseeded |= not marks or any(number not in mine for number in moved)
                if self.watched:
                    randomness.note(moved)
