"""What antifreeze's own workers wrote about themselves: a copy of the page, read through /proc, is all that is touched."""

from __future__ import annotations

import os
import time

from antifreeze.doctor.facts.model import JournalEntry
from antifreeze.worker.journal import MAGIC, NAME, ROW_WORDS, VERSION, Entry, JournalRow

LARGEST = 1 << 26


def read_journals(pid: int) -> dict[int, JournalEntry]:
    """The rows that this process can see, by who writes them: a process, or a thread of this one."""
    found: dict[int, JournalEntry] = {}
    for page in _read_pages(pid):
        if len(page) < ROW_WORDS * 8 or len(page) % 8:
            continue
        words = memoryview(page).cast("q")
        if words[0] != MAGIC or words[1] != VERSION:
            continue
        for number in range(min(words[2], len(words) // ROW_WORDS - 1)):
            start = (number + 1) * ROW_WORDS
            if words[start]:
                found[words[start]] = entry_text(number, JournalRow(words[start : start + ROW_WORDS]).read(), time.monotonic_ns())
    return found


def entry_text(number: int, entry: Entry, now_ns: int) -> JournalEntry:
    since_s = (now_ns - entry.since_ns) / 1e9 if entry.since_ns else None
    return JournalEntry(number, entry.stage.name, entry.batch, str(entry.index), since_s, entry.samples)


def _read_pages(pid: int) -> list[bytes]:
    """One for each loader; a worker keeps its own only."""
    pages = []
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            link = f"/proc/{pid}/fd/{name}"
            if os.readlink(link).startswith(f"/memfd:{NAME}"):
                with open(link, "rb") as file:
                    pages.append(file.read(LARGEST))
    except OSError:
        pass
    return pages
