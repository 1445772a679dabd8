"""Runs peers: who takes part in a task, one measurement at a time, rounds of them, and what the journal then has of each row.

    contenders ──round after round, each in turn──▶ a fresh process each (peer_child.py) ──▶ journal ──▶ lines of the table

1. A measurement is alone: one process at a time, and, with a wrapper, when the wrapper lets it.
2. What the journal has of a round is not measured again; the measure of all others is, where it is too long ago.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from peer_child import PeerRequest, PeerResult
from peer_environments import Environments
from peer_journal import Journal, Look, Record
from peer_report import Line, Round
from peers.contract import Entry, Peer, Refusal, Setting, Task, data_folder, load_peer
from peers.torch_loader import BASE
from runs import HERE, Ended, measuring_environment, run_process

MEASUREMENT_LIMIT_S = 110.0
PREPARING_LIMIT_S = 900.0
BASE_AGES_S = 900.0
"""A measure that was taken longer ago than this says little about now."""


@dataclass(frozen=True)
class Contender:
    """One row to be measured: the entry of a peer, and where the setting was chosen, which."""

    module: str
    peer: Peer
    entry: Entry

    def setting(self, chosen: dict[str, str]) -> Setting:
        named = {setting.name: setting for setting in self.entry.settings}
        return named.get(chosen.get(self.entry.title, ""), self.entry.settings[0])


@dataclass(frozen=True)
class Pace:
    seconds: float
    warm_s: float
    wrap: tuple[str, ...] = ()
    pause: float = 0.0
    """How long to hold still after each measurement, in times of what it took: others may want the machine too."""
    stop_after_s: float | None = None


class TimeIsUp(Exception):
    """Nothing more is begun in this run."""


class Bench:
    def __init__(self, home: Path, pace: Pace) -> None:
        self.home = home
        self.environments = Environments(home)
        self.pace = pace
        self.started_s = time.monotonic()

    def contenders(self, task: Task, modules: Sequence[str]) -> tuple[list[Contender], list[Line]]:
        """Who takes part, and a line with the reason for each who does not."""
        found, absent = [], []
        for name in modules:
            module = load_peer(name)
            entries = module.entries(task)
            reason = entries.reason if isinstance(entries, Refusal) else self.environments.missing(module.PEER)
            if not reason:
                found += [Contender(name, module.PEER, entry) for entry in entries]
            elif entries:
                absent.append(Line(module.PEER.title, "", reason=reason))
        return found, absent

    def prepare(self, task: Task, contender: Contender) -> str:
        """What went wrong, or nothing."""
        if not hasattr(load_peer(contender.module), "prepare") or data_folder(self.home, contender.peer, task).exists():
            return ""
        self.progress(f"{task.name}  {contender.peer.title}: writes its own files")
        return self._child(task, contender, Setting(""), "prepare").error

    def measure(self, task: Task, contender: Contender, setting: Setting, look: Look, number: int) -> Record:
        if self.pace.stop_after_s is not None and time.monotonic() - self.started_s > self.pace.stop_after_s:
            raise TimeIsUp
        began_s, at_s = time.monotonic(), time.time()
        record = self._measure(task, contender, setting, look, number, at_s)
        self.progress(f"{look.value}, round {number + 1}  {task.name}  {record.title} ({record.setting}): {in_words(record)}")
        time.sleep(self.pace.pause * (time.monotonic() - began_s))
        return record

    def _measure(self, task: Task, contender: Contender, setting: Setting, look: Look, number: int, at_s: float) -> Record:
        row = (look, contender.entry.title, setting.name, number, at_s)
        problem = self.prepare(task, contender)
        ended = Ended([], problem, [], 0) if problem else self._child(task, contender, setting, look.value)
        if not ended.lines:
            return Record(*row, error=ended.error)
        if look is Look.RIGHT:
            return Record(*row, said=ended.lines[-1])
        peak = max((each.held_bytes for each in ended.seen), default=None)
        return Record(*row, result=PeerResult(**json.loads(ended.lines[-1])), peak_bytes=peak)

    def _child(self, task: Task, contender: Contender, setting: Setting, what: str) -> Ended:
        folder = data_folder(self.home, contender.peer, task)
        times = (max(self.pace.seconds, setting.looks_s), max(self.pace.warm_s, setting.warm_s))
        request = PeerRequest(contender.module, task.name, setting.options, str(folder), *times, setting.whole_epochs, what)
        command = [str(self.environments.python(contender.peer)), str(HERE / "peer_child.py"), json.dumps(asdict(request))]
        limit_s = PREPARING_LIMIT_S if what == "prepare" else MEASUREMENT_LIMIT_S
        wrap = () if what == "prepare" else self.pace.wrap
        return run_process(command, {**measuring_environment(), **setting.environment}, what == Look.MEMORY.value, limit_s, wrap)

    def progress(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started_s:5.0f} s] {text}", file=sys.stderr, flush=True)


def in_words(record: Record) -> str:
    if record.error:
        return f"failed: {record.error}"
    if record.look is Look.MEMORY:
        return f"{(record.peak_bytes or 0) / 1e6:,.0f} MB"
    return f"{record.result.samples_per_s:,.0f} samples/s" if record.result else record.said


def run_rounds(
    bench: Bench,
    journal: Journal,
    task: Task,
    contenders: Sequence[Contender],
    chosen: dict[str, str],
    looks: Sequence[tuple[Look, int]],
    once: frozenset[str] = frozenset(),
) -> None:
    """`looks` says what for, and how many rounds of it; rows of `once` are measured in the first round only."""
    for look, rounds in looks:
        for number in range(rounds):
            first = number % max(1, len(contenders))  # nobody is always the one who comes after the slow one
            for contender in [*contenders[first:], *contenders[:first]]:
                setting = contender.setting(chosen)
                if (number and contender.entry.title in once) or _is_done(journal.of(task.name), look, contender, setting, number):
                    continue
                if look is Look.RATE:
                    _measure_base_again(bench, journal, task, contenders, chosen, number)
                if contender.entry.title != BASE or not _is_done(journal.of(task.name), look, contender, setting, number):
                    journal.add(task.name, bench.measure(task, contender, setting, look, number))


def _is_done(records: Sequence[Record], look: Look, contender: Contender, setting: Setting, number: int) -> bool:
    return any((each.look, each.title, each.setting, each.round) == (look, contender.entry.title, setting.name, number) for each in records)


def _measure_base_again(
    bench: Bench, journal: Journal, task: Task, contenders: Sequence[Contender], chosen: dict[str, str], number: int
) -> None:
    """Where this round has none of these minutes."""
    base = next((each for each in contenders if each.entry.title == BASE), None)
    taken = [each.at_s for each in journal.of(task.name) if (each.look, each.title, each.round) == (Look.RATE, BASE, number)]
    if base and time.time() - max(taken, default=0.0) > BASE_AGES_S:
        journal.add(task.name, bench.measure(task, base, base.setting(chosen), Look.RATE, number))


def lines_of(records: Sequence[Record], absent: Sequence[Line]) -> list[Line]:
    """A line for every row that was measured, in the setting it was measured in last; and for those who were not, the reason."""
    found: dict[str, Line] = {}
    setting = {record.title: record.setting for record in records if record.look is Look.RATE}
    for record in records:
        if setting.get(record.title) != record.setting:
            continue
        line = found.setdefault(record.title, Line(record.title, record.setting))
        if record.look is Look.RATE:
            line.rounds.append(Round(record.result, record.error, record.round, record.at_s))
        elif record.look is Look.MEMORY and record.peak_bytes:
            line.peak_bytes = record.peak_bytes
        elif record.look is Look.RIGHT:
            line.wrong = record.error
    return [*found.values(), *(line for line in absent if line.title not in found)]
