"""Runs peers: who takes part in a task, one measurement at a time, rounds of them, and what the journal then has of each row.

    contenders ──round after round, each in turn──▶ a fresh process each (peer_child.py) ──▶ journal ──▶ lines of the table

1. A measurement is alone: one process at a time, and, with a wrapper, when the wrapper lets it.
2. What the journal has of a round is not measured again; the measure of all others is, where it is too long ago.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from peer_child import PeerRequest, PeerResult
from peer_environments import Environments
from peer_journal import Journal, Look, Record
from peer_report import Line, Round
from peers.contract import Entry, Peer, Refusal, Setting, Task, data_folder, load_peer
from peers.torch_loader import BASE
from runs import HERE, Ended, measuring_environment, run_process

MEASUREMENT_LIMIT_S = 60.0
UNHURRIED_LIMIT_S = 900.0
DISTURBED_CORES = 0.25
"""A measurement beside which others used more than this may be made again at the end of its round, and counts if none is better."""
FAR_BEHIND = 0.4
BASE_AGES_S = 900.0
"""A measure that was taken longer ago than this says little about now."""
BASE_AGAIN_S = 120.0
"""One that was disturbed is taken again, but not all the time."""


Rates = Mapping[str, Mapping[str, float]]
"""Of one task, when settings were tried: row -> setting -> samples/s."""


@dataclass(frozen=True)
class Contender:
    """One row to be measured."""

    module: str
    peer: Peer
    entry: Entry

    def setting(self, rates: Rates) -> Setting:
        """The one that was best when they were tried; the first one, where none was."""
        found = rates.get(self.entry.title, {})
        return max(self.entry.settings, key=lambda setting: found.get(setting.name, 0.0))


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
        found = result_in(ended.lines)
        return Record(*row, result=found) if found else Record(*row, error=f"printed no result, but {ended.lines[-1]!r}")

    def _child(self, task: Task, contender: Contender, setting: Setting, what: str) -> Ended:
        folder = data_folder(self.home, contender.peer, task)
        times = (max(self.pace.seconds, setting.looks_s, task.looks_s), max(self.pace.warm_s, setting.warm_s, task.warm_s))
        request = PeerRequest(contender.module, task.name, setting.options, str(folder), *times, setting.whole_epochs, what)
        command = [str(self.environments.python(contender.peer)), str(HERE / "peer_child.py"), json.dumps(asdict(request))]
        limit_s = MEASUREMENT_LIMIT_S if what == Look.RATE.value else UNHURRIED_LIMIT_S
        wrap = () if what == "prepare" else self.pace.wrap
        return run_process(command, {**measuring_environment(), **setting.environment}, False, limit_s, wrap)

    def progress(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started_s:5.0f} s] {text}", file=sys.stderr, flush=True)


def result_in(lines: Sequence[str]) -> PeerResult | None:
    """The last one; what a peer's libraries print besides (Ray's, while it ends) is passed over."""
    given = next((line for line in reversed(lines) if line.startswith('{"')), None)
    return PeerResult(**json.loads(given)) if given else None


def in_words(record: Record) -> str:
    if record.error:
        return f"failed: {record.error}"
    if record.result is None:
        return record.said
    beside = f" (others used {record.result.others_cores:.2f} cores)" if is_disturbed(record) else ""
    return f"{record.result.samples_per_s:,.0f} samples/s{beside}"


def is_disturbed(record: Record) -> bool:
    return record.look is Look.RATE and record.result is not None and record.result.others_cores > DISTURBED_CORES


@dataclass(frozen=True)
class Rounds:
    """Of one task: who is measured, and what is known already."""

    bench: Bench
    journal: Journal
    task: Task
    contenders: Sequence[Contender]
    rates: Rates

    def run(self, look: Look, rounds: int, most_tries: int = 1) -> None:
        for number in range(rounds):
            first = number % max(1, len(self.contenders))  # nobody is always the one who comes after the slow one
            enough = self._far_behind() if number else set()
            in_turn = [each for each in (*self.contenders[first:], *self.contenders[:first]) if each.entry.title not in enough]
            for tries in range(most_tries):  # those that were disturbed again, when all had their turn
                for contender in in_turn:
                    found = self._found(contender, look, number)
                    if len(found) == tries and all(map(is_disturbed, found)):
                        self._measure(contender, look, number)

    def _far_behind(self) -> set[str]:
        """Peers that in the first round did less than FAR_BEHIND of the fastest row: one round says enough of them."""
        lines = lines_of([each for each in self.journal.of(self.task.name) if each.round == 0], [])
        best = max((line.rate or 0.0 for line in lines if line.is_same_work), default=0.0)
        return {line.title for line in lines if (line.rate or 0.0) < FAR_BEHIND * best and not line.is_ours and line.title != BASE}

    def _measure(self, contender: Contender, look: Look, number: int) -> None:
        if look is Look.RATE:
            self._measure_base(number)
        if look is not Look.RATE or contender.entry.title != BASE:
            self._add(contender, look, number)

    def _measure_base(self, number: int) -> None:
        """Where this round has none of these minutes."""
        base = next((each for each in self.contenders if each.entry.title == BASE), None)
        found = self._found(base, Look.RATE, number) if base else []
        good_s = max((each.at_s for each in found if not is_disturbed(each)), default=0.0)
        any_s = max((each.at_s for each in found), default=0.0)
        if base and time.time() - good_s > BASE_AGES_S and time.time() - any_s > BASE_AGAIN_S:
            self._add(base, Look.RATE, number)

    def _add(self, contender: Contender, look: Look, number: int) -> None:
        self.journal.add(self.task.name, self.bench.measure(self.task, contender, contender.setting(self.rates), look, number))

    def _found(self, contender: Contender, look: Look, number: int) -> list[Record]:
        row = (look, contender.entry.title, contender.setting(self.rates).name, number)
        return [each for each in self.journal.of(self.task.name) if (each.look, each.title, each.setting, each.round) == row]


def lines_of(records: Sequence[Record], absent: Sequence[Line]) -> list[Line]:
    """A line for every row that was measured, in the setting it was measured in last; and for those who were not, the reason."""
    found: dict[str, Line] = {}
    setting = {record.title: record.setting for record in records if record.look is Look.RATE}
    calm = {(record.title, record.round) for record in records if record.look is Look.RATE and not is_disturbed(record)}
    for record in records:
        if setting.get(record.title) != record.setting or (is_disturbed(record) and (record.title, record.round) in calm):
            continue
        line = found.setdefault(record.title, Line(record.title, record.setting))
        if record.look is Look.RATE:
            line.rounds.append(Round(record.result, record.error, record.round, record.at_s))
        elif record.look is Look.RIGHT:
            line.wrong = record.error
    return [*found.values(), *(line for line in absent if line.title not in found)]
