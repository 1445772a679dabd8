"""torch's DataLoader against ours: `python benchmarks/loader.py` prints the tables of docs/benchmarks.md.

Each measurement is a fresh process (measure.py says what it times). A round is one measurement of every setting; rounds are
interleaved, so a slow minute of the machine meets all of them, and a ratio is the median over the rounds of the ratio within
one round. Memory is taken in rounds of its own, because looking at it costs time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import machine
import report
from measure import CLASSES, Request
from runs import Outcome, run
from workloads import WORKLOADS


@dataclass(frozen=True)
class Plan:
    """Which settings are measured, and how often."""

    workloads: Sequence[str]
    classes: Sequence[str]
    workers: int
    rounds: int
    quick: bool
    persistent: bool

    def settings(self, workload: str) -> list[report.Setting]:
        chosen = [report.Setting(label, name, workers) for workers in (0, self.workers) for label, name in self.labels()]
        if WORKLOADS[workload].copy_limit:
            chosen.append(report.COPY_LIMIT)
        return chosen

    def labels(self) -> list[tuple[str, str]]:
        """A class that is named twice, to see the noise of the machine, is told apart by a number."""
        return [(name if name not in self.classes[:at] else f"{name}#{at + 1}", name) for at, name in enumerate(self.classes)]

    def request(self, workload: str, setting: report.Setting) -> Request:
        return Request(workload, setting.loader, setting.workers, self.quick, 0.1 if self.quick else 1.0, self.persistent)


def measure_all(plan: Plan) -> report.Outcomes:
    outcomes: report.Outcomes = {}
    started_s = time.monotonic()
    memory_rounds = 1
    for number in range(plan.rounds + memory_rounds):
        memory = number >= plan.rounds
        for workload in plan.workloads:
            settings = plan.settings(workload)
            first = number % len(settings)  # nobody is always the one who comes after the slow one
            for setting in settings[first:] + settings[:first]:
                outcome = run(plan.request(workload, setting), memory=memory)
                outcomes.setdefault((workload, setting), []).append(outcome)
                stage = "memory" if memory else f"round {number + 1}/{plan.rounds}"
                progress(f"[{time.monotonic() - started_s:5.0f} s] {stage}  {workload}  {setting.title}", outcome)
    return outcomes


def progress(what: str, outcome: Outcome) -> None:
    found = f"{outcome.result.samples_per_s:,.0f} samples/s" if outcome.result else f"failed: {outcome.error}"
    print(f"{what}: {found}", file=sys.stderr, flush=True)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each setting (default 5)")
    parser.add_argument("--quick", action="store_true", help="small data sets: shows that it works, its figures mean little")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="comma-separated; all of: %(default)s")
    parser.add_argument("--classes", default="torch,ours", help=f"the first is the measure: {', '.join(CLASSES)} or module:Class")
    parser.add_argument("--workers", type=int, default=2, help="worker processes, beside a run without any (default 2)")
    parser.add_argument("--persistent", action="store_true", help="persistent_workers=True for every loader")
    parser.add_argument("--markdown", action="store_true", help="tables as markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single measurement there")
    chosen = parser.parse_args(given)
    chosen.workloads = chosen.workloads.split(",")
    chosen.classes = chosen.classes.split(",")
    unknown = [name for name in chosen.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    if chosen.rounds < 1 or chosen.workers < 1:
        parser.error("--rounds and --workers must be 1 or more")
    return chosen


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    skipped = [f"{name} skipped: {reason}" for name in chosen.workloads if (reason := WORKLOADS[name].missing())]
    present = [name for name in chosen.workloads if not WORKLOADS[name].missing()]
    plan = Plan(present, chosen.classes, chosen.workers, chosen.rounds, chosen.quick, chosen.persistent)
    described = machine.description()
    outcomes = measure_all(plan)
    settled = report.Report(outcomes, [label for label, _ in plan.labels()], plan.workers)
    conditions = f"{plan.rounds} rounds, {plan.workers} workers, persistent_workers={plan.persistent}{', --quick' if plan.quick else ''}"
    print("\n".join([*described, conditions, *skipped, "", settled.text(chosen.markdown)]))
    if chosen.json:
        rows = [
            {"workload": workload, "loader": setting.label, "workers": setting.workers, **asdict(outcome)}
            for (workload, setting), list_of in outcomes.items()
            for outcome in list_of
        ]
        chosen.json.write_text(json.dumps({"machine": described, "conditions": conditions, "measurements": rows}, indent=1))
    return 1 if any(outcome.result is None for list_of in outcomes.values() for outcome in list_of) else 0


if __name__ == "__main__":
    sys.exit(main())
