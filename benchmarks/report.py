"""From measurements to tables: medians, spread, ratios within a round, and the promises of the loader beside what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from runs import Outcome
from table import milliseconds, quantity, ratio, render
from workloads import WORKLOADS


@dataclass(frozen=True)
class Setting:
    label: str
    loader: str
    workers: int

    @property
    def title(self) -> str:
        return self.label if self.loader == "copy" else f"{self.label} {self.workers}w"


COPY_LIMIT = Setting("copy limit", "copy", 0)
Outcomes = dict[tuple[str, Setting], list[Outcome]]


@dataclass(frozen=True)
class Target:
    """What the issue asks for: `ours` with workers at least `at_least` times the other's rate."""

    workload: str
    other: str
    at_least: float


TARGETS = (
    Target("images", "workers", 5.0),
    Target("images", "copy", 0.5),
    Target("rows", "workers", 3.5),
    Target("rows", "none", 1.5),
    Target("tokens", "workers", 4.0),
)


class Report:
    """The first label is what the others are measured against."""

    def __init__(self, outcomes: Outcomes, labels: Sequence[str], workers: int) -> None:
        self.outcomes = outcomes
        self.labels = labels
        self.workers = workers
        self.workloads = list(dict.fromkeys(workload for workload, _ in outcomes))
        self.settings = {(workload, setting.label, setting.workers): setting for workload, setting in outcomes}

    def text(self, markdown: bool) -> str:
        parts = [
            self.rates(markdown),
            "samples/s: median of the rounds ± half their range. Ratios: median over the rounds of the ratio within a round.",
            self.costs(markdown),
            "CPU seconds, page faults per sample: of the whole process tree, construction to close. PSS: its peak; held: with shared\n"
            "memory that nobody maps but somebody holds (batches in a queue); added: how much of that is not the data set.",
        ]
        if len(self.labels) > 1:
            note = (
                f"Above 1 is better for a rate, below 1 for the rest (at {self.workers} workers); ! marks what is worse by more than 5 %."
            )
            parts += [self.never_worse(markdown), note, self.promises(markdown)]
        parts += ["\n".join(f"{name}: {WORKLOADS[name].title}" for name in self.workloads), *self.complaints()]
        return "\n\n".join(part for part in parts if part)

    def rates(self, markdown: bool) -> str:
        columns = [(label, workers) for workers in (0, self.workers) for label in self.labels]
        base, *others = self.labels
        pairs = [((label, 0), (base, 0)) for label in others]
        pairs += [((label, self.workers), (base, self.workers)) for label in others]
        pairs += [((label, self.workers), (base, 0)) for label in others]
        head = ["samples/s", *(f"{label} {workers}w" for label, workers in columns)]
        head += [f"{self._short(one, other)}" for one, other in pairs]
        rows = []
        for name in self.workloads:
            row = [name, *(self._rate(name, column) for column in columns)]
            rows.append(row + [self._ratio_text(name, one, other) for one, other in pairs])
        return render(head, rows, markdown)

    def costs(self, markdown: bool) -> str:
        head = ["cost", "loader", "GB/s", "CPU s/1000", "faults", "start ms", "first ms", "epoch 2 ms", "PSS MB", "held MB", "added MB"]
        rows = [self._cost_row(name, setting, list_of) for (name, setting), list_of in self.outcomes.items()]
        return render(head, rows, markdown)

    def promises(self, markdown: bool) -> str:
        """Issue 2's factors, for the last label against the first, with workers."""
        ours, base = (self.labels[-1], self.workers), (self.labels[0], self.workers)
        against = {"workers": base, "none": (self.labels[0], 0), "copy": (COPY_LIMIT.label, COPY_LIMIT.workers)}
        rows = []
        for target in TARGETS:
            found = self.ratio(target.workload, ours, against[target.other])
            if found is not None:
                title = f"{target.workload}: {self._title(ours)} / {self._title(against[target.other])}"
                rows.append([title, f"≥ {ratio(target.at_least)}", ratio(found), "yes" if found >= target.at_least else "NO"])
        return render(["promise", "wanted", "found", "kept"], rows, markdown) if rows else ""

    def never_worse(self, markdown: bool) -> str:
        """The last label against the first at the same setting; a breach of more than 5 %, which may be noise, is marked."""
        ours, base = self.labels[-1], self.labels[0]
        head = [f"{ours} / {base}", "rate 0w", f"rate {self.workers}w", *(title for title, _ in LESS_IS_BETTER)]
        return render(head, [[name, *self._never_worse(name, ours, base)] for name in self.workloads], markdown)

    def ratio(self, workload: str, one: tuple[str, int], other: tuple[str, int]) -> float | None:
        rates = [self._values(workload, column, _samples_per_s) for column in (one, other)]
        within = [first / second for first, second in zip(*rates, strict=False)]
        return median(within) if within else None

    def complaints(self) -> list[str]:
        found = []
        for (name, setting), list_of in self.outcomes.items():
            errors = [outcome.error for outcome in list_of if outcome.result is None]
            if errors:
                found.append(f"FAILED {name}, {setting.title}, {len(errors)} of {len(list_of)} times: {errors[0]}")
            left_behind = max(outcome.left_behind for outcome in list_of)
            if left_behind:
                found.append(f"LEFT BEHIND {name}, {setting.title}: {left_behind} processes a second after the end")
        for name in self.workloads:
            digests = {outcome.result.digest for outcome in self._all(name) if outcome.result}
            if WORKLOADS[name].same_bytes and len(digests - {0}) > 1:
                found.append(f"DIFFERENT BYTES {name}: the loaders do not agree on the first batch")
        return found

    def _never_worse(self, name: str, ours: str, base: str) -> list[str]:
        cells = []
        for workers in (0, self.workers):
            found = self.ratio(name, (ours, workers), (base, workers))
            cells.append("failed" if found is None else ratio(found) + ("!" if found < 0.95 else " "))
        for _, value in LESS_IS_BETTER:
            mine, theirs = (self._values(name, (label, self.workers), value) for label in (ours, base))
            found = median(mine) / median(theirs) if mine and theirs and median(theirs) else None
            cells.append("failed" if found is None else ratio(found) + ("!" if found > 1.05 else " "))
        return cells

    def _cost_row(self, name: str, setting: Setting, list_of: Sequence[Outcome]) -> list[str]:
        column = (setting.label, setting.workers)
        if not self._values(name, column, _samples_per_s):
            return [name, setting.title, *("failed" for _ in range(9))]
        cells = [name, setting.title]
        cells.append(f"{median(self._values(name, column, _of_result('bytes_per_s'))) / 1e9:.2f}")
        cells += [quantity(median(self._values(name, column, value))) for value in (_cpu, _faults)]
        if setting is COPY_LIMIT:
            cells += ["", "", ""]
        else:
            cells += [milliseconds(median(self._values(name, column, value))) for value in (_start_s, _first_batch_s, _second_epoch_s)]
        for value in MEMORY:
            found = self._values(name, column, value)
            cells.append(f"{median(found) / 1e6:.0f}" if found else "")
        return cells

    def _rate(self, name: str, column: tuple[str, int]) -> str:
        values = self._values(name, column, _samples_per_s)
        if not values:
            return "failed"
        middle = median(values)
        return f"{quantity(middle)} ±{(max(values) - min(values)) / 2 / middle:.0%}"

    def _ratio_text(self, name: str, one: tuple[str, int], other: tuple[str, int]) -> str:
        found = self.ratio(name, one, other)
        return "failed" if found is None else ratio(found)

    def _values(self, name: str, column: tuple[str, int], value: Callable[[Outcome], float | None]) -> list[float]:
        """Of every round that counts for it: memory comes from its own rounds, all else from the others."""
        setting = self.settings.get((name, *column))
        outcomes = self.outcomes.get((name, setting), []) if setting else []
        wants_memory = value in MEMORY
        found = [value(outcome) for outcome in outcomes if outcome.result and (outcome.peak_pss_bytes is not None) == wants_memory]
        return [each for each in found if each is not None]

    def _all(self, name: str) -> list[Outcome]:
        return [outcome for (workload, _), list_of in self.outcomes.items() if workload == name for outcome in list_of]

    def _short(self, one: tuple[str, int], other: tuple[str, int]) -> str:
        return f"{one[1]}w/{other[1]}w" if len(self.labels) == 2 else f"{self._title(one)} / {self._title(other)}"

    def _title(self, column: tuple[str, int]) -> str:
        return column[0] if column[0] == COPY_LIMIT.label else f"{column[0]} {column[1]}w"


def _of_result(name: str) -> Callable[[Outcome], float | None]:
    return lambda outcome: getattr(outcome.result, name) if outcome.result else None


def _of_outcome(name: str) -> Callable[[Outcome], float | None]:
    return lambda outcome: getattr(outcome, name)


_samples_per_s, _start_s, _first_batch_s = _of_result("samples_per_s"), _of_result("start_s"), _of_result("first_batch_s")
_second_epoch_s, _cpu, _faults = _of_result("second_epoch_s"), _of_result("cpu_s_per_1000"), _of_result("faults_per_sample")
MEMORY = (_pss, _held, _added) = (_of_outcome("peak_pss_bytes"), _of_outcome("peak_held_bytes"), _of_outcome("added_bytes"))

LESS_IS_BETTER = (
    ("start", _start_s),
    ("first batch", _first_batch_s),
    ("epoch 2", _second_epoch_s),
    ("CPU", _cpu),
    ("faults", _faults),
    ("PSS", _pss),
    ("held", _held),
)
