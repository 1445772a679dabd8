"""Randomness in threads: `random`, `numpy.random` and `torch` exist once per process, and each sample needs its own numbers.

    the loop ── next() ──▶ waits: turns are given ─────────────────────▶ has its batch: none is given ── the loop's own code
    thread k               [save · seed · sample · put back]  one at a time, of all loaders of the process

1. A data set that uses none of the three runs freely, as many threads as there are.
2. One that does takes turns: a sample has the generators for itself, seeded from its position as everywhere, and they are put back as
   they were. Turns are given only while the loop waits in next(): the loop's own random numbers are never touched.
3. Whether it does, the first WARM_UP samples of a loader tell, which take turns to be watched. A generator that moves while samples run
   freely was moved by one of them or by the loop: such a task is loaded again in turns, which tells. (Where it was the loop, again and
   again, this is done ever more rarely; a data set that begins to draw later than that is noticed late.) Those that still run freely
   when it is told may draw from another's numbers: what had the floor meanwhile waits for them, and is loaded once more.
4. Whoever has the floor and does not come back loses it when its thread is given up: the generators are put back at once. Should it
   come back later, it leaves them alone, and what it sees of them says nothing about the data set.
5. What has the floor while the loop is interrupted in next(), by a signal's handler, loses it at once, and is run again when the loop
   waits again: what it draws in between are the loop's numbers, not its own. Until it has ended it may draw from anybody's: who has the
   floor meanwhile, of whatever loader, waits for it and is run again, and what the loop loads itself waits for it before.
6. A loader inside a sample: what has the floor lends it to its own workers. One without workers puts the generators back only as long
   as its thread has the floor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any

from antifreeze.gate import Gate
from antifreeze.linux import on_fork
from antifreeze.worker.failure import ThreadEnded
from antifreeze.worker.generators import global_generators
from antifreeze.worker.hands import seed_for_sample
from antifreeze.worker.journal import JournalRow, Stage, Word
from antifreeze.worker.twister import Generator

WARM_UP = 2
FALSE_ALARMS = 8
"""After so many tasks that were loaded again for nothing, since somebody else had moved a generator: the 1st, 2nd, 4th, 8th … one."""

FREELY: Any = object()
"""In the place of a result: no turn is needed, so let the samples run."""

_LOOK_S = 0.5
_FREE_S = 10.0
"""Who still runs freely after that, since the others began to take turns, is stuck, and draws nothing."""


class Of(Enum):
    """What takes a turn: each kind has its own warm-up."""

    SAMPLE = 0
    BATCH = 1  # what is called once per batch and can be called again
    STREAM = 2  # what cannot
    START = 3  # worker_init_fn, __iter__: always with the floor


class Usage:
    """Which generators a data set uses, as far as its samples have told; a loader's, for all its epochs."""

    def __init__(self) -> None:
        self.generators: list[Generator] = global_generators()
        self.used: list[Generator] = []
        self.warm_up_left = dict.fromkeys(Of, WARM_UP)
        self.found_late = False  # after the warm-up, a sample that ran freely has moved one
        self.free: set[Turn] = set()  # whose threads run samples freely just now
        self._false_alarms = 0
        self._alarms = 0

    def __repr__(self) -> str:
        return f"<Usage: {self.names() or 'none'}>"

    def names(self) -> str:
        names = ("random", "numpy.random", "torch")
        return ", ".join(name for name, generator in zip(names, self.generators, strict=True) if generator in self.used)

    def needs_no_turn(self, of: Of) -> bool:
        return not self.used and not self.warm_up_left[of]

    def is_worth_a_look(self) -> bool:
        """A generator has moved while samples ran freely: whether to find out by whom. Before that is known of the first ones, all threads
        may ask."""
        if self.used or self._false_alarms < FALSE_ALARMS:
            return True
        self._alarms += 1
        return self._alarms & (self._alarms - 1) == 0

    def was_looked_at(self) -> None:
        """A task was loaded again."""
        self._false_alarms += not self.used


class _Floor:
    """Who has the generators; and how they are when nobody has them."""

    def __init__(self) -> None:
        self.holder: Turn | None = None
        self.turns = 0
        self.kept: dict[int, tuple[Any, Any]] = {}

    def keep(self, generators: Sequence[Generator]) -> None:
        for number, generator in enumerate(generators):
            if number not in self.kept or generator.moved_since(self.kept[number][0]):
                self.kept[number] = (generator.mark(), generator.save())

    def put_back(self, generators: Sequence[Generator]) -> None:
        for number, generator in enumerate(generators):
            mark, state = self.kept[number]
            if generator.moved_since(mark):
                generator.restore(state)


_lock = threading.Lock()
_floor = _Floor()
_waiting: list[Turn] = []
_gates: list[Gate] = []  # of those who wait until something has changed: opened, and forgotten, when it has
losers: set[Turn] = set()  # in samples that have lost the floor
_here = threading.local()


class Turn:
    """One thread's: it has a floor, or waits for it, or neither."""

    def __init__(self, turns: Turns, journal: JournalRow) -> None:
        self.turns = turns
        self.journal = journal
        self.ends = False  # its thread was told to end: it waits for no floor any more
        self.given_up = False
        self.floor: _Floor | None = None
        self.lost = False  # the floor that it was given last
        self.of = Of.SAMPLE
        self.looks = False
        self.granted = Gate()
        self.collates = False
        self.waited_ns = 0
        self.waited_to_collate_ns = 0

    def enter_thread(self) -> None:
        """From now on it is this thread's."""
        _here.turn = self

    def end_free(self) -> None:
        """Its thread runs no samples freely any more."""
        usage = self.turns.usage
        usage.free.discard(self)
        if usage.used:  # somebody may be waiting for that
            with _lock:
                _end_free(self)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What goes on meanwhile is nothing of the sample's, neither in the journal nor in what it took."""
        stage, began_ns = Stage(self.journal.words[Word.STAGE]), time.perf_counter_ns()
        self.journal.stage(Stage.TURN)
        yield
        self.journal.stage(stage)
        waited_ns = time.perf_counter_ns() - began_ns
        if self.collates:
            self.waited_to_collate_ns += waited_ns
        else:
            self.waited_ns += waited_ns


class _FloorLost(Exception):
    """The loop went on in the middle of it (rule 5): it may have drawn the loop's numbers."""


class Turns:
    """One pool's way to the floor."""

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.floor = _floor
        self.is_open = False
        self._at_open: dict[int, tuple[Any, Any]] = {}

    def __repr__(self) -> str:
        return f"<Turns {'open' if self.is_open else 'closed'}, {self.usage!r}>"

    def seen(self) -> list[Any]:
        """How the generators are, and how many turns were given: where two looks differ, somebody has moved one in between."""
        return [_floor.turns, *(generator.mark() for generator in self.usage.generators)]

    def open(self) -> None:
        """The loop waits, and uses no generator."""
        with _lock:
            mine = getattr(_here, "turn", None)
            self.floor = _Floor() if mine is not None and mine.floor is not None else _floor
            if self.floor.holder is None:
                self.floor.keep(self.usage.generators)
                self._at_open = dict(self.floor.kept)
            self.is_open = True
            _grant()

    def try_close(self, limit_s: float) -> bool:
        """No turn is given any more; whether, after limit_s, none is left."""
        with _lock:  # or somebody who has just seen that it is open gives one after this
            self.is_open = False
        left = _wait_until(lambda: self.floor.holder is None or self.floor.holder.turns is not self, limit_s)
        if left and self.usage.found_late:
            with _lock:
                self._forget_late_use()
        return left

    def _forget_late_use(self) -> None:
        """Samples that ran freely, while the loop waited, have moved generators: as far as that can be told, they are put back."""
        self.usage.found_late = False
        for number, generator in enumerate(self.usage.generators):
            if generator in self.usage.used and number in self._at_open:
                generator.restore(self._at_open[number][1])

    def close(self) -> None:
        """At once: a turn that is still taken, because whoever waited was interrupted, is over."""
        with _lock:
            self.is_open = False
            holder = self.floor.holder
            if holder is not None and holder.turns is self:
                _leave(holder)
                holder.lost = True
                losers.add(holder)

    def end(self, turn: Turn) -> None:
        """Its thread shall end. Where it has the floor it keeps it until then; where it waits for one, or is about to, it does not: what
        tells it to end may fall into one sample's code, and others of an event loop would wait after that."""
        with _lock:
            turn.ends = True
            if turn in _waiting:
                _waiting.remove(turn)
                turn.granted.open()

    def give_up(self, turn: Turn) -> None:
        """Its thread has ended, or nobody waits for it any more."""
        self.end(turn)
        with _lock:
            turn.given_up = True
            _end_free(turn)
            _leave(turn)

    def take(self, turn: Turn, seed: int, call: Callable[[], Any], of: Of, looks: bool) -> Any:
        """What `call` returns, with the floor. FREELY, and it was not called, where the data set has turned out to use no generator
        while its thread waited; with `looks` it has the floor even then."""
        if turn.floor is not None:  # the collate function of a stream
            return self._run(turn, seed, call, of, looks, again=False)
        while True:
            try:
                if not _enter(turn, of, looks):
                    return FREELY
                return self._run(turn, seed, call, of, looks, again=True)
            except _FloorLost:
                continue
            finally:
                with _lock:
                    _leave(turn)

    def _run(self, turn: Turn, seed: int, call: Callable[[], Any], of: Of, looks: bool, again: bool) -> Any:
        """`again`: it can be, where it loses the floor."""
        usage = self.usage
        warms_up = bool(usage.warm_up_left[of])
        settled = not usage.used and not warms_up
        looks |= warms_up
        while True:
            among_free = bool(usage.free or losers)
            seeded = usage.generators if looks else list(usage.used)
            if not if_it_has_the_floor(turn, partial(_seed, seeded, seed, of)) and again:
                raise _FloorLost
            marks = [(generator, generator.mark()) for generator in usage.generators]
            failed = result = None
            try:
                result = call()
            except Exception as error:
                failed = error
            if turn.given_up:
                raise ThreadEnded
            if again and turn.floor is None:
                raise _FloorLost
            moved = [generator for generator, mark in marks if generator.moved_since(mark)]
            usage.used += [generator for generator in moved if generator not in usage.used and of is not Of.START]
            usage.found_late |= settled and bool(usage.used)
            if moved and of is not Of.START and (among_free or usage.free or losers):
                looks = True  # one of them may have drawn from what was this sample's
                if _wait_for_free(turn, _FREE_S):
                    continue
            if set(moved) <= set(seeded) or of is Of.START:
                break
            looks = True  # one that was not seeded was used: it does not count
        if warms_up and of is not Of.START:
            usage.warm_up_left[of] = max(0, usage.warm_up_left[of] - 1)  # only now: from then on others run freely
        if failed is not None:
            raise failed
        return result


def _seed(generators: Sequence[Generator], seed: int, of: Of) -> None:
    for generator in generators:
        if of is Of.SAMPLE:
            seed_for_sample(generator, seed)
        else:
            generator.seed(seed)


def if_it_has_the_floor(turn: Turn, call: Callable[[], None]) -> bool:
    """Whether it was called: generators are seeded by whoever has them, and the loop may take the floor away at any moment before."""
    with _lock:
        if turn.floor is None:
            return False
        call()
        return True


def wait_for_losers() -> None:
    """For whoever loads samples in the loop's own thread: those who have lost the floor draw from the same generators."""
    mine = getattr(_here, "turn", None)  # a loader inside such a sample
    if not _wait_until(lambda: losers <= {mine}, _FREE_S):
        with _lock:
            losers.intersection_update({mine})  # they are stuck, and draw nothing


def in_worker_thread() -> bool:
    return getattr(_here, "turn", None) is not None


def exclusively(call: Callable[[], Any]) -> Any:
    """For whoever uses the generators inside a sample and puts them back: in a worker's thread it has the floor meanwhile."""
    turn: Turn | None = getattr(_here, "turn", None)
    if turn is None or turn.floor is not None:
        return call()
    with floor_of(turn, Of.START):
        return call()


def has_floor() -> bool:
    """Whether nobody else moves the generators now, as far as that is ours to say: the loop's own code always has them."""
    turn: Turn | None = getattr(_here, "turn", None)
    return turn is None or turn.floor is not None


def draws_alone() -> bool:
    """The same, and no other thread runs samples freely of which it is not sure yet that they draw nothing."""
    turn: Turn | None = getattr(_here, "turn", None)
    return turn is None or (turn.floor is not None and not turn.turns.usage.free)


def unless_given_up(call: Callable[[], Any]) -> None:
    """For whoever puts generators back `exclusively`: they are not this thread's any more where its turn was ended meanwhile."""
    turn: Turn | None = getattr(_here, "turn", None)
    if turn is None:
        call()
    else:
        if_it_has_the_floor(turn, call)


@contextmanager
def floor_of(turn: Turn, of: Of) -> Iterator[None]:
    try:
        _enter(turn, of, looks=True)
        yield
    finally:
        with _lock:
            _leave(turn)


def _enter(turn: Turn, of: Of, looks: bool) -> bool:
    """Waits for the floor; False where the data set has turned out to need none."""
    turn.of, turn.looks = of, looks
    while True:
        turn.granted.close()
        with turn.waiting():
            with _lock:
                _end_free(turn)
                if turn.ends:
                    raise ThreadEnded
                turn.lost = False
                _waiting.append(turn)
                _grant()
            while not turn.granted.wait(_LOOK_S):
                if _is_granted_unsaid(turn):
                    break
        with _lock:
            if turn.ends:
                raise ThreadEnded
            if turn.floor is not None:
                turn.floor.keep(turn.turns.usage.generators)
                return True
            if not turn.lost:
                return False


def _is_granted_unsaid(turn: Turn) -> bool:
    """Whoever was about to say so, or to give the floor on, was ended by ThreadEnded in the middle of it."""
    with _lock:
        _grant()
        if turn.floor is not None and turn in _waiting:
            _waiting.remove(turn)
        return turn not in _waiting


def _wait_until(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Whether it came to that, which is asked with the lock whenever somebody tells that something has changed."""
    deadline_s = time.monotonic() + limit_s
    while True:
        with _lock:
            if is_so():
                return True
            _gates.append(gate := Gate())
        if not gate.wait(deadline_s - time.monotonic()):
            with _lock:
                _gates[:] = [other for other in _gates if other is not gate]
                return is_so()


def _tell() -> None:
    """With the lock."""
    while _gates:
        _gates.pop().open()


def _end_free(turn: Turn) -> None:
    """With the lock."""
    turn.turns.usage.free.discard(turn)
    losers.discard(turn)
    _tell()


def _wait_for_free(turn: Turn, limit_s: float) -> bool:
    """Until no other thread runs samples of this data set freely, or has lost the floor; whoever begins one now takes turns. Whether it
    came to that; who is left after it is stuck, and waited for no more."""
    free = turn.turns.usage.free
    with turn.waiting():
        if _wait_until(lambda: not free and not losers, limit_s):
            return True
        with _lock:
            free.clear()
            losers.clear()
        return False


def _grant() -> None:
    """To the first who may have it, of those who wait; those who turned out to need none go on at once."""
    for turn in list(_waiting):
        turns = turn.turns
        if not turn.looks and turns.usage.needs_no_turn(turn.of):
            _waiting.remove(turn)
            turn.granted.open()
        elif turns.is_open and turns.floor.holder is None:
            turns.floor.holder, turn.floor = turn, turns.floor
            turns.floor.turns += 1
            _waiting.remove(turn)
            turn.granted.open()


def _leave(turn: Turn) -> None:
    """By itself or, where ThreadEnded met it on its way out, again by whoever gives it up: its floor is its own until all is done."""
    floor = turn.floor
    if floor is not None and floor.holder is turn:
        floor.put_back(turn.turns.usage.generators)
        floor.holder = None
        _tell()
        _grant()
    elif turn in losers:
        _end_free(turn)
    turn.floor = None


def _after_fork_in_child() -> None:
    """The threads are not here; whoever had the floor does not give it back."""
    global _lock, _floor, _here
    _lock = threading.Lock()
    _floor = _Floor()
    _here = threading.local()
    _waiting.clear()
    losers.clear()
    _gates.clear()


on_fork(child=_after_fork_in_child)
