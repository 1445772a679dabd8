"""What the pool is given to do, and what it counts while doing it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from antifreeze.plan.stream_plan import StreamProgress
from antifreeze.slots.layout import RowLayout
from antifreeze.supervisor.memory import MemoryWatch
from antifreeze.worker.journal import Journal, Used


@dataclass
class Content:
    """What a batch is made of: a list (or array) of indices, one index, or nothing for a stream."""

    indices: Any
    position: int
    divisible: bool  # a list of which a task may take a part
    number: int = 0  # of the batch in its epoch, for people: the pool knows it by another one
    offsets: list[int] | None = None  # of its samples' positions, where some between them were left out
    key: int = 0  # what the random numbers of its epoch are made from: batches of two epochs may be under way

    def position_of(self, row: int) -> int:
        return self.position + (row if self.offsets is None else self.offsets[row])


class Tally:
    """Page faults and context switches of all worker processes of a loader, live or ended, as of the last look of each (journal.py); kept
    in its ledger, so that it outlives them. Worker threads have none of their own: theirs are the process's."""

    def __init__(self) -> None:
        self._closed = Used()
        self._journals: list[Journal] = []

    def __repr__(self) -> str:
        return f"<Tally {self.used()}>"

    def follow(self, journal: Journal) -> None:
        for closed in [each for each in self._journals if each.closed]:
            self._journals.remove(closed)
            self._closed = self._closed.and_also(closed.used())
        self._journals.append(journal)

    def used(self) -> Used:
        used = self._closed
        for journal in self._journals:
            used = used.and_also(journal.used())
        return used


@dataclass
class Copies:
    """How often what was delivered had been copied after it was collated, by batches. Each is one of the first three."""

    rows: int = 0  # not at all: workers wrote its rows straight into the slot
    parcels: int = 0  # once, into the slot
    made: int = 0  # not at all: it was made in this process, by the loop or by a thread, and handed over as it was
    again: int = 0  # of those: once more, out of the slot (the user keeps many batches, or bad rows were left out)
    pinned: int = 0  # of those: once more, into pinned memory (slots could not be page-locked)


@dataclass
class OwnThreads:
    """Threads of the loop's process while it loads batches itself, in those that were looked at (own_effort.py)."""

    most: int = 1  # that computed, or would have, at the same time
    looked_ns: int = 0
    queued_ns: int = 0  # of it, how long the one that stood longest had no core; the loop's own does not count

    def add(self, threads: int, looked_ns: int, queued_ns: int) -> None:
        self.most = max(self.most, threads)
        self.looked_ns += looked_ns
        self.queued_ns += min(looked_ns, queued_ns)

    @property
    def without_core(self) -> float:
        return self.queued_ns / self.looked_ns if self.looked_ns else 0.0


@dataclass
class Costs:
    """What the workers cost, in all. `cpu_ns` and `queued_ns` (for a core) are of all three stages together."""

    fetch_ns: int = 0
    collate_ns: int = 0
    write_ns: int = 0
    cpu_ns: int = 0
    queued_ns: int = 0
    samples: int = 0
    restarts: int = 0
    stalls: int = 0
    blocked_s: float = 0.0  # the parent's: in next(), with nothing to do but wait for workers
    own_ns: int = 0  # the parent's: in next(), at all three stages itself
    starting_s: float = 0.0  # the parent's: more workers were begun, in the middle of an epoch as well
    started: int = 0  # of them
    hedges: int = 0
    streams_continued: int = 0
    streams_ended: int = 0  # before their end
    taking_turns: str = ""  # the generators because of which threads take turns
    memory: MemoryWatch = field(default_factory=MemoryWatch)
    tally: Tally = field(default_factory=Tally)
    copies: Copies = field(default_factory=Copies)
    own_threads: OwnThreads = field(default_factory=OwnThreads)

    def add(self, rows: int, fetch_ns: int, collate_ns: int, write_ns: int, cpu_ns: int, queued_ns: int = 0) -> None:
        self.fetch_ns += fetch_ns
        self.collate_ns += collate_ns
        self.write_ns += write_ns
        self.cpu_ns += cpu_ns
        self.queued_ns += queued_ns
        self.samples += rows

    def add_own(self, rows: int, fetch_ns: int, collate_ns: int, write_ns: int, cpu_ns: int, queued_ns: int) -> None:
        """What the loop's own process did."""
        self.add(rows, fetch_ns, collate_ns, write_ns, cpu_ns, queued_ns)
        self.own_ns += fetch_ns + collate_ns + write_ns

    @property
    def in_stages_s(self) -> float:
        """Of next(): until workers were done, or the loop itself."""
        return self.blocked_s + self.own_ns / 1e9

    @property
    def sample_ns(self) -> int | None:
        return (self.fetch_ns + self.collate_ns + self.write_ns) // self.samples if self.samples else None


@dataclass
class StreamStart:
    """Where a stream begins (again): what its worker must be told before its first task."""

    stream: int
    streams: int
    past: StreamProgress
    batch_rows: int = 1
    replay: bool = True  # draw again what was delivered, where there is no state to go on from
    worker: int = 0
    finished_batches: dict[int, tuple[int, bytes | None, bool]] = field(default_factory=dict)

    def advanced(self, batch: int, drawn: int, state: bytes | None, ended: bool) -> None:
        """Its worker has done a batch, which is delivered when its turn comes."""
        self.past = self.past.after(drawn, state, ended, self.batch_rows)
        self.finished_batches[batch] = (drawn, state, ended)


@dataclass
class Jobs:
    """What is being loaded, by the number of the batch or of the stream; all modules of the pool see the same tables."""

    contents: dict[int, Content] = field(default_factory=dict)
    streams: dict[int, StreamStart] = field(default_factory=dict)
    layouts: dict[int, RowLayout] = field(default_factory=dict)
    collated: dict[int, Any] = field(default_factory=dict)
