"""PURE: from measurements of peers to tables: medians, ratios within a round, who is ahead, and what ours must reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from peer_child import PeerResult
from peers.contract import MORE_READS, STORED_ORDER, Task
from table import milliseconds, quantity, ratio, render

OURS = "antifreeze"
AT_THE_LIMIT = 0.98
"""A sleep of 10 ms takes 10.05 to 10.2."""


@dataclass(frozen=True)
class Round:
    """One measurement: `result` is None if it failed, and `error` says how."""

    result: PeerResult | None
    error: str = ""
    number: int = 0
    at_s: float = 0.0


@dataclass
class Line:
    """One row of a table: who, in which setting, and what was found round after round."""

    title: str
    setting: str
    rounds: list[Round] = field(default_factory=list)
    reason: str = ""
    """Why there is no figure: cannot do it, or is not installed."""
    wrong: str = ""
    """What was wrong with its batches, where that was looked at."""

    def values(self, value: Callable[[PeerResult], float]) -> list[float]:
        return [value(each.result) for each in self.rounds if each.result]

    @property
    def rate(self) -> float | None:
        found = self.values(lambda result: result.samples_per_s)
        return median(found) if found else None

    @property
    def is_same_work(self) -> bool:
        return not self.title.endswith((STORED_ORDER, MORE_READS))

    @property
    def is_ours(self) -> bool:
        return self.title.startswith(OURS)


def ratio_to(line: Line, base: Line, value: Callable[[PeerResult], float] = lambda result: result.samples_per_s) -> float | None:
    """The median over the rounds of the ratio within one round, to what ran closest in time; where one failed, it does not count."""
    within = []
    for mine in line.rounds:
        beside = [each for each in base.rounds if each.number == mine.number and each.result]
        theirs = min(beside, key=lambda each: abs(each.at_s - mine.at_s), default=None)
        if mine.result and theirs and theirs.result:
            within.append(value(mine.result) / value(theirs.result))
    return median(within) if within else None


HEAD = ("samples/s", "setting", "rate", "× torch 2w", "over epochs", "CPU s/1000", "faults", "first ms", "peak MB")


def table(lines: Sequence[Line], base: Line, markdown: bool) -> str:
    """Fastest first; those without a figure last, with the reason where the setting would stand."""
    ordered = sorted(lines, key=lambda line: -(line.rate or 0))
    return render(HEAD, [row(line, base) for line in ordered], markdown)


def row(line: Line, base: Line) -> list[str]:
    rate = line.rate
    if line.wrong:
        return [line.title, f"wrong batches: {line.wrong}", *("" for _ in HEAD[2:])]
    if rate is None:
        failed = next((each.error for each in line.rounds if each.error), "")
        return [line.title, line.reason or f"failed: {failed}", *("" for _ in HEAD[2:])]
    spread = line.values(lambda result: result.samples_per_s)
    times, over = ratio_to(line, base), ratio_to(line, base, lambda result: result.over_epochs_per_s)
    return [
        line.title,
        line.setting,
        quantity(rate) + (f" ±{(max(spread) - min(spread)) / 2 / rate:.0%}" if len(spread) > 1 else ""),
        ratio(times) if times else "",
        ratio(over) if over else "",
        *_costs(line),
        milliseconds(median(line.values(lambda result: result.first_batch_s))),
        f"{max(line.values(lambda result: result.memory_bytes)) / 1e6:.0f}",
    ]


def _costs(line: Line) -> tuple[str, str]:
    """CPU and faults; nothing where processes ended meanwhile that nobody waited for: what they used is lost."""
    cpu, faults = (line.values(value) for value in (lambda result: result.cpu_s_per_1000, lambda result: result.faults_per_sample))
    return ("", "") if min(*cpu, *faults) < 0 else (quantity(median(cpu)), quantity(median(faults)))


VERDICT_HEAD = ("task", "best of ours", "× torch 2w", "ours, auto", "must reach", "best peer", "× torch 2w", "ours / best peer", "kept")


def verdict(task: Task, lines: Sequence[Line], base: Line) -> list[str]:
    """Ours beside the best of the others and beside what was promised."""
    same = comparable(task, lines)
    ours, others = best(line for line in same if line.is_ours), best(line for line in same if not line.is_ours)
    mine, theirs = ours and ratio_to(ours, base), others and ratio_to(others, base)
    against = ratio_to(ours, others) if ours and others else None
    auto = next((found for line in lines if line.title == f"{OURS}, auto" and (found := ratio_to(line, base))), None)
    wanted = f"≥ {ratio(task.must_reach)}" if task.must_reach else "ahead"
    return [
        task.name,
        _named(ours) if ours else "none",
        ratio(mine) if mine else "",
        ratio(auto) if auto else "",
        wanted,
        f"{others.title}: {others.setting}" if others else "none",
        ratio(theirs) if theirs else "",
        ratio(against) if against else "",
        _kept(task, ours, against, mine),
    ]


def _kept(task: Task, ours: Line | None, against: float | None, mine: float | None) -> str:
    """Who does what so many reads at a time can be at the most has nobody ahead of him but by chance."""
    if against is None or (task.must_reach is not None and (mine or 0) < task.must_reach):
        return "NO"
    if against >= 1:
        return "yes"
    return "level, at the limit" if task.limit and ours and (ours.rate or 0) >= AT_THE_LIMIT * task.limit else "NO"


def comparable(task: Task, lines: Iterable[Line]) -> list[Line]:
    """Those that did the same work, with as many reads at a time."""
    free = task.concurrency > 0 and f"{OURS}, auto"  # it has as many as it likes
    return [line for line in lines if line.is_same_work and line.title != free]


def _named(line: Line) -> str:
    """`async: 2 × 128`, but `32 threads` where the setting says it."""
    kind = line.title.removeprefix(f"{OURS}, ")
    return line.setting if kind in line.setting else f"{kind}: {line.setting}"


def best(lines: Iterable[Line]) -> Line | None:
    measured = [line for line in lines if line.rate and not line.wrong]
    return max(measured, key=lambda line: line.rate or 0) if measured else None
