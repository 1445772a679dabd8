"""A page of shared memory, one row per worker: what it is doing, on which sample, since when.

    row 0: MAGIC, version, rows, parent pid          row k: one worker        row k: …
    32 int64 each; words 16–31 of a worker's row are the text of a key that is no int

1. Only the worker writes its row, one word at a time; the parent (and the doctor) only read. Nobody waits for anybody.
2. It is an anonymous file named `antifreeze-journal`: any process of the same user finds it under /proc/PID/fd.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

MAGIC = 0x616E746966727A31  # "antifrz1"
VERSION = 1
ROW_WORDS = 32
NAME = "antifreeze-journal"
_TEXT_FROM = 16
_TEXT_BYTES = (ROW_WORDS - _TEXT_FROM) * 8


class Stage(IntEnum):
    STARTING = 0
    IDLE = 1
    FETCH = 2
    COLLATE = 3
    WRITE = 4
    SEND = 5
    ENDED = 6
    INITIALISING = 7  # worker_init_fn


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


class Journal:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self.words: Any = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, workers: int) -> Journal:
        descriptor = os.memfd_create(NAME)
        os.ftruncate(descriptor, (workers + 1) * ROW_WORDS * 8)
        journal = cls(descriptor)
        journal.words[0:4] = memoryview(_int64s(MAGIC, VERSION, workers, os.getpid())).cast("q")
        return journal

    def row(self, number: int) -> JournalRow:
        start = (number + 1) * ROW_WORDS
        return JournalRow(self.words[start : start + ROW_WORDS])

    def clear(self, number: int) -> None:
        """Before another worker takes the row over: the last one is dead."""
        start = (number + 1) * ROW_WORDS
        self.words[start : start + ROW_WORDS] = memoryview(bytes(ROW_WORDS * 8)).cast("q")

    def close(self) -> None:
        """May be called twice."""
        if self.descriptor >= 0:
            self.words.release()
            self._map.close()
            os.close(self.descriptor)
            self.descriptor = -1


class JournalRow:
    """One worker's words: it writes them, its parent reads them."""

    def __init__(self, words: Any) -> None:
        self.words = words

    def begin(self, task: int, batch: int, now_ns: int) -> None:
        words = self.words
        words[Word.TASK] = task
        words[Word.BATCH] = batch
        words[Word.SINCE_NS] = now_ns

    def stage(self, stage: Stage) -> None:
        self.words[Word.STAGE] = stage

    def note_peak(self, kibibytes: int) -> None:
        self.words[Word.PEAK_KIB] = kibibytes

    def at_key(self, row: int, key: Any) -> None:
        """A sample whose key is no int."""
        text = repr(key).encode()[:_TEXT_BYTES]
        words = self.words
        words[Word.ROW] = row
        words[Word.TEXT_BYTES] = len(text)
        words[_TEXT_FROM:ROW_WORDS] = memoryview(text.ljust(_TEXT_BYTES, b"\0")).cast("q")
        words[Word.INDEX_IS_TEXT] = 1

    def read(self) -> Entry:
        words = self.words.tolist()
        index: int | str = words[Word.INDEX]
        if words[Word.INDEX_IS_TEXT]:
            index = bytes(self.words[_TEXT_FROM:ROW_WORDS])[: words[Word.TEXT_BYTES]].decode(errors="replace")
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


def _int64s(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)
