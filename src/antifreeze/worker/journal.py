"""Shared memory with one row per worker: what it is doing, on which sample, since when.

    row 0: MAGIC, version, rows, parent pid          row k: one worker        row k: …
    of a worker's int64s: 0–15 the words below, 16–31 the text of a key that is no int, from 32 the indices of its task

1. Only the worker writes its row, one word at a time; the parent (and the doctor) only read. Nobody waits for anybody.
   Where samples are so quick that a word for each would be felt, the worker notes where in its memory the iterator over them is:
   who wants to know reads there how far it is. Who is not allowed to, or comes after the worker's death, knows the task only, and
   its samples are tried singly as after any call for all of them together.
2. What the worker has used (page faults, context switches) is noted at its looks (effort.py) and when it is told to end: of one that was
   killed, what came after its last look is not counted. Its row is counted until the next worker takes it, and then in what was cleared.
3. It is an anonymous file named `antifreeze-journal`: any process of the same user finds it under /proc/PID/fd.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

from antifreeze.descriptors import Held
from antifreeze.naming import shown
from antifreeze.slots.arena import map_shared
from antifreeze.worker.effort import Usage

MAGIC = 0x616E746966727A31  # "antifrz1"
VERSION = 3
ROW_WORDS = 8192  # only those that were written take memory
NAME = "antifreeze-journal"
ALL_ROWS = -1
"""In the place of a row: the worker is at all samples of its task together."""

_SHOWN = 4
"""Keys of many, where they are named."""
_TEXT_FROM = 16
_LIST_FROM = 32
_TEXT_BYTES = (_LIST_FROM - _TEXT_FROM) * 8
_LISTED_MOST = ROW_WORDS - _LIST_FROM


class Stage(IntEnum):
    STARTING = 0
    IDLE = 1
    FETCH = 2
    COLLATE = 3
    WRITE = 4
    SEND = 5
    ENDED = 6
    INITIALISING = 7  # worker_init_fn
    TURN = 8  # a thread that waits for the random generators
    AWAIT = 9  # every sample of an async data set waits for something outside


class Word(IntEnum):
    PID = 0
    STAGE = 1
    TASK = 2
    BATCH = 3
    ROW = 4
    INDEX = 5
    SINCE_NS = 6  # monotonic clock, when the task began
    SAMPLES = 7
    TEXT_BYTES = 8
    INDEX_IS_TEXT = 9
    PEAK_KIB = 10  # the largest resident memory so far, shared pages included
    LISTED = 11  # how many indices of the task are in the list; then ROW tells which one it is
    FIRST_ROW = 12  # of the task
    PLACE_AT = 13  # an address in the worker, or 0: how many samples of the task its iterator has given out
    FAULTS = 14  # page faults since the worker was ready, as of its last look
    SWITCHES = 15  # context switches, likewise


_STAGE, _SINCE_NS, _LISTED, _PLACE_AT = int(Word.STAGE), int(Word.SINCE_NS), int(Word.LISTED), int(Word.PLACE_AT)
"""Written for every task: a member of an enum costs as much to find as its word to write."""
_THREE_WORDS = Struct("3q")
_TASK_AT, _LIST_AT = 8 * Word.TASK, 8 * Word.LISTED


@dataclass(frozen=True)
class Entry:
    """One worker's row, read at one moment."""

    pid: int
    stage: Stage
    task: int
    batch: int
    row: int
    index: int | str
    since_ns: int
    samples: int
    peak_bytes: int = 0


class Used(NamedTuple):
    """What workers have used, and how many samples they have begun for it."""

    samples: int = 0
    faults: int = 0
    switches: int = 0

    def and_also(self, other: Used) -> Used:
        return Used(self.samples + other.samples, self.faults + other.faults, self.switches + other.switches)


class Journal:
    def __init__(self, descriptor: int, held: Held | None = None) -> None:
        """`held`: who owns the descriptor; without, it is the journal's."""
        self._held = held or Held()
        self.descriptor = descriptor if held else self._held.open(int, descriptor)
        mapped = map_shared(descriptor, os.fstat(descriptor).st_size, 0)
        self.words: Any = memoryview(mapped).cast("B").cast("q")  # the mapping goes with the last of them
        self._counted: tuple[Used, frozenset[int]] = (Used(), frozenset())
        """What is no more in any row, and the rows that somebody has or had; together, because a signal's handler may ask at any time."""

    @classmethod
    def create(cls, workers: int) -> Journal:
        held = Held()
        descriptor = held.open(os.memfd_create, NAME)
        os.ftruncate(descriptor, (workers + 1) * ROW_WORDS * 8)
        journal = cls(descriptor, held)
        journal.words[0:4] = memoryview(_int64s(MAGIC, VERSION, workers, os.getpid())).cast("q")
        return journal

    def row(self, number: int) -> JournalRow:
        start = (number + 1) * ROW_WORDS
        return JournalRow(self.words[start : start + ROW_WORDS])

    def clear(self, number: int) -> None:
        """Before another worker takes the row over: the last one is dead."""
        start = (number + 1) * ROW_WORDS
        cleared, taken = self._counted
        self._counted = (cleared.and_also(self.row(number).used()), taken | {number})
        self.words[start : start + _LIST_FROM] = memoryview(bytes(_LIST_FROM * 8)).cast("q")

    def used(self) -> Used:
        """By all workers so far, those that have ended included. Who made the journal may ask, also after he has closed it."""
        used, taken = self._counted
        try:
            for number in taken:
                used = used.and_also(self.row(number).used())
        except ValueError:
            return self._counted[0]  # another thread has closed it meanwhile
        return used

    @property
    def closed(self) -> bool:
        return self.descriptor < 0

    def is_whole(self) -> bool:
        """Whether nobody else has closed its descriptor."""
        return self._held.is_whole()

    def close(self) -> None:
        """May be called twice."""
        if not self.closed:
            self._counted = (self.used(), frozenset())
            self._held.close()
            self.words.release()
            self.descriptor = -1


class JournalRow:
    """One worker's words: it writes them, its parent reads them."""

    def __init__(self, words: Any) -> None:
        self.words = words
        self.lists = False  # the indices of the task at hand

    def begin(self, task: int, batch: int, now_ns: int, first_row: int = 0, indices: bytes = b"") -> None:
        """`indices`: of the task's samples, int64; listed once, so that a sample is noted by its row alone."""
        words, count = self.words, len(indices) // 8
        words[_LISTED] = 0
        _THREE_WORDS.pack_into(words, _TASK_AT, task, batch, first_row)
        words[_SINCE_NS] = now_ns
        self.lists = 0 < count <= _LISTED_MOST
        if self.lists:
            words[_LIST_FROM : _LIST_FROM + count] = memoryview(indices).cast("q")
        _THREE_WORDS.pack_into(words, _LIST_AT, count if self.lists else 0, first_row, 0)

    def stage(self, stage: Stage) -> None:
        self.words[_STAGE] = stage

    def note(self, usage: Usage) -> None:
        words = self.words
        words[Word.PEAK_KIB], words[Word.FAULTS], words[Word.SWITCHES] = usage

    def used(self) -> Used:
        words = self.words
        return Used(words[Word.SAMPLES], words[Word.FAULTS], words[Word.SWITCHES])

    def at_key(self, row: int, key: Any, position: int | None = None) -> None:
        """A sample whose key is no int."""
        text = shown(key, position).encode(errors="replace")[:_TEXT_BYTES]
        words = self.words
        words[Word.ROW] = row
        words[Word.TEXT_BYTES] = len(text)
        words[_TEXT_FROM:_LIST_FROM] = memoryview(text.ljust(_TEXT_BYTES, b"\0")).cast("q")
        words[Word.INDEX_IS_TEXT] = 1

    def at_many(self, keys: Any) -> None:
        """Samples that are asked for together."""
        self.at_key(ALL_ROWS, keys[:_SHOWN])

    def at_place(self, place: Any) -> None:
        """The samples of the task that this iterator over a list gives out; it must live until the task has ended. Only where
        `places_are_found()`."""
        self.words[_PLACE_AT] = id(place) + _PLACE_OFFSET

    def at_no_place(self) -> None:
        self.words[_PLACE_AT] = 0

    def read(self) -> Entry:
        words = self.words[:_LIST_FROM].tolist()
        index: int | str = words[Word.INDEX]
        if words[Word.PLACE_AT]:
            words[Word.ROW] = _row_at_place(words)
        number = words[Word.ROW] - words[Word.FIRST_ROW]
        if words[Word.INDEX_IS_TEXT]:
            index = bytes(self.words[_TEXT_FROM:_LIST_FROM])[: words[Word.TEXT_BYTES]].decode(errors="replace")
        elif words[Word.ROW] == ALL_ROWS and words[Word.LISTED]:
            index = shown(self.words[_LIST_FROM : _LIST_FROM + min(_SHOWN, words[Word.LISTED])].tolist())
        elif 0 <= number < words[Word.LISTED]:
            index = self.words[_LIST_FROM + number]
        return Entry(
            pid=words[Word.PID],
            stage=Stage(words[Word.STAGE]),
            task=words[Word.TASK],
            batch=words[Word.BATCH],
            row=words[Word.ROW],
            index=index,
            since_ns=words[Word.SINCE_NS],
            samples=words[Word.SAMPLES],
            peak_bytes=words[Word.PEAK_KIB] * 1024,
        )


class UnreadRow(JournalRow):
    """The row of whoever loads in the user's own process: nobody but its writer could look at it."""

    def __init__(self) -> None:
        super().__init__([0] * _LIST_FROM)

    def begin(self, task: int, batch: int, now_ns: int, first_row: int = 0, indices: bytes = b"") -> None:
        pass

    def stage(self, stage: Stage) -> None:
        pass

    def at_key(self, row: int, key: Any, position: int | None = None) -> None:
        pass

    def at_many(self, keys: Any) -> None:
        pass


_PLACE_OFFSET = object.__basicsize__
"""In an iterator over a list: behind the header of every object."""


@cache
def places_are_found() -> bool:
    """Whether an iterator over a list counts there what it has given out; another interpreter may do it otherwise."""
    place = iter([None] * 7)
    if type(place).__basicsize__ < _PLACE_OFFSET + 8:
        return False
    counts = []
    for _ in range(5):
        next(place)
        counts.append(int.from_bytes(ctypes.string_at(id(place) + _PLACE_OFFSET, 8), "little"))
    return counts == [1, 2, 3, 4, 5]


def _row_at_place(words: list[int]) -> int:
    """ALL_ROWS where that cannot be read: the worker is dead, or another user's, or the system does not allow it; or it is in
    uninterruptible sleep: who reads its memory might wait with it."""
    try:
        with open(f"/proc/{words[Word.PID]}/stat") as stat:
            if stat.read().rpartition(") ")[2][:1] == "D":
                return ALL_ROWS
        with open(f"/proc/{words[Word.PID]}/mem", "rb", buffering=0) as memory:
            given_out = int.from_bytes(os.pread(memory.fileno(), 8, words[Word.PLACE_AT]), "little")
    except (OSError, OverflowError):
        return ALL_ROWS
    return words[Word.FIRST_ROW] + given_out - 1 if 1 <= given_out <= words[Word.LISTED] else ALL_ROWS


def _int64s(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)
