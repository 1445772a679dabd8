"""What antifreeze's own workers wrote about themselves: a copy of the page, read through /proc, is all that is touched."""

from __future__ import annotations

import os
import time

from antifreeze.doctor.facts.model import JournalEntry
from antifreeze.worker.journal import MAGIC, NAME, ROW_WORDS, VERSION, Entry, JournalRow

LARGEST = 1 << 26


def read_journal(pid: int) -> JournalEntry | None:
    """The row of this very process; None for one that is not an antifreeze worker."""
    page = _read_page(pid)
    if page is None or len(page) < ROW_WORDS * 8 or len(page) % 8:
        return None
    words = memoryview(page).cast("q")
    if words[0] != MAGIC or words[1] != VERSION:
        return None
    for number in range(min(words[2], len(words) // ROW_WORDS - 1)):
        start = (number + 1) * ROW_WORDS
        if words[start] == pid:
            return entry_text(number, JournalRow(words[start : start + ROW_WORDS]).read(), time.monotonic_ns())
    return None


def entry_text(number: int, entry: Entry, now_ns: int) -> JournalEntry:
    since_s = (now_ns - entry.since_ns) / 1e9 if entry.since_ns else None
    return JournalEntry(number, entry.stage.name, entry.batch, str(entry.index), since_s, entry.samples)


def _read_page(pid: int) -> bytes | None:
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            link = f"/proc/{pid}/fd/{name}"
            if os.readlink(link).startswith(f"/memfd:{NAME}"):
                with open(link, "rb") as file:
                    return file.read(LARGEST)
    except OSError:
        return None
    return None
