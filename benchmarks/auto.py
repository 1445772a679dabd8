"""num_workers="auto" against every fixed setting: `python benchmarks/auto.py` prints the table of docs/benchmarks.md.

For each workload one process holds a loader of every setting, their workers warm. The loop does nothing, so all cores are there for
loading; or, with --busy-us and --sleep-us, it computes in Python and waits (for a device, say) after each batch, which counts too. After
some seconds for "auto" to find its setting:

    rounds    every loader in turn, a moment each; a figure is the median over them, and the fixed setting with the largest is the best
    duels     best, auto, best again │ best, auto, best again │ …    "best again" is a second loader with the very same setting

1. *Of the best* is the median over the duels of auto by the mean of the two beside it, with the interval that holds the true median 95
   times in 100. *Itself* is best again by best: what is not 1 there is the machine's.
2. The rounds that chose the best are not those it is compared in: of five settings that are alike one always looks best by chance.
3. All load from one data set: where its memory lies would move the rate of each by some percent. Nobody runs twice in a row: he would
   find his memory in the caches, and the others would not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import machine
from medians import interval_of_median
from runs import in_own_process
from table import quantity, ratio, render
from workloads import WORKLOADS

LIMIT_S = 300.0
AUTO, ANY_KIND = "auto", "auto, either kind"
THREADS = " threads"


class Run:
    """One loader, epoch after epoch, for as long as it is asked to go on."""

    def __init__(self, given: dict[str, Any], setting: str, busy_us: float = 0.0, sleep_us: float = 0.0) -> None:
        from antifreeze import DataLoader

        workers: Any = AUTO if setting in (AUTO, ANY_KIND) else int(setting.removesuffix(THREADS))
        kind = "thread" if setting.endswith(THREADS) else "auto" if setting == ANY_KIND else "process"
        self.loader = DataLoader(num_workers=workers, persistent_workers=workers not in (0, AUTO), workers=kind, **given)
        self.batch_size = given["batch_size"]
        self._batches = self._endless()
        self._busy_s, self._sleep_s = busy_us / 1e6, sleep_us / 1e6

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def rate(self, seconds: float) -> float:
        """Samples a second, of whole batches."""
        began, batches = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < seconds:
            next(self._batches)
            batches += 1
            if self._sleep_s:
                time.sleep(self._sleep_s)
            if self._busy_s:
                until = time.perf_counter() + self._busy_s
                while time.perf_counter() < until:
                    pass
        return batches * self.batch_size / elapsed


def measure(
    workload: str, fixed: Sequence[str], warm_s: float, seconds: float, rounds: int, duels: int, quick: bool, *step_us: float
) -> dict[str, Any]:
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    samples = WORKLOADS[workload].quick_samples if quick else WORKLOADS[workload].samples
    autos = [AUTO, ANY_KIND] if any(setting.endswith(THREADS) for setting in fixed) else [AUTO]
    given = WORKLOADS[workload].loader_arguments(samples)
    runs = {setting: Run(given, setting, *step_us) for setting in [*fixed, *autos]}
    for name in [*autos, *fixed]:  # "auto" leaves cores to loaders that are at work, so they are not before it is
        runs[name].rate(warm_s if name in autos else min(warm_s, 1.0))
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        names = list(runs)
        first = number % len(names)  # nobody is always the one who comes after the slow one
        for name in names[first:] + names[:first]:
            rates[name].append(runs[name].rate(seconds))
    medians = {name: statistics.median(list_of) for name, list_of in rates.items()}
    found: dict[str, Any] = {"medians": medians, "autos": {}}
    for auto in autos:  # with threads allowed, it is measured against them too; without, against processes and inline alone
        best = max((each for each in fixed if auto == ANY_KIND or not each.endswith(THREADS)), key=medians.__getitem__)
        again = Run(given, best, *step_us)
        again.rate(min(warm_s, 1.0))
        of_best, itself = duel(runs[auto], runs[best], again, seconds, duels)
        again.loader.close()
        found["autos"][auto] = {"best": best, "of_best": of_best, "itself": itself, "decided": list(runs[auto].loader.report().decided)}
    for run in runs.values():
        run.loader.close()
    return found


def duel(auto: Run, best: Run, again: Run, seconds: float, times: int) -> tuple[list[float], list[float]]:
    """auto by the best on both sides of it, and the best by itself."""
    of_best, itself = [], []
    for _ in range(times):
        before, rate, after = (run.rate(seconds) for run in (best, auto, again))
        of_best.append(2 * rate / (before + after))
        itself.append(after / before)
    return of_best, itself


def row(workload: str, found: dict[str, Any], fixed: Sequence[str]) -> list[str]:
    medians = found["medians"]
    cells = [workload, *(quantity(medians[setting]) for setting in fixed)]
    for auto, seen in found["autos"].items():
        low, high = interval_of_median(seen["of_best"])
        cells += [
            quantity(medians[auto]),
            ratio(statistics.median(seen["of_best"])),
            f"{low:.2f}–{high:.2f}",
            ratio(statistics.median(seen["itself"])),
            "inline" if seen["best"] == "0" else seen["best"],
            seen["decided"][-1].split(" since ")[0],
        ]
    return cells


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="comma-separated; all of: %(default)s")
    parser.add_argument("--fixed", default="0,1,2,4", help="numbers of workers to compare with (default %(default)s)")
    parser.add_argument("--threads", default="", help='numbers of threads to compare with, too; then also workers="auto" (default: none)')
    parser.add_argument("--warm", type=float, default=8.0, help='seconds for "auto" to find its setting (default %(default)s)')
    parser.add_argument("--seconds", type=float, default=0.5, help="of one loader in one round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="in which every setting is measured (default %(default)s)")
    parser.add_argument("--duels", type=int, default=15, help="of auto with the best of them, afterwards (default %(default)s)")
    parser.add_argument("--busy-us", type=float, default=0.0, help="what the loop computes after each batch, in Python (default: nothing)")
    parser.add_argument("--sleep-us", type=float, default=0.0, help="what it waits after each batch (default: nothing)")
    parser.add_argument("--quick", action="store_true", help="small data sets: shows that it works, its figures mean little")
    parser.add_argument("--markdown", action="store_true", help="the table as markdown")
    parser.add_argument("--why", action="store_true", help='also print every decision of "auto"')
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args(given)
    threads = [f"{int(count)}{THREADS}" for count in filter(None, chosen.threads.split(","))]
    chosen.fixed = [*(str(int(workers)) for workers in chosen.fixed.split(",")), *threads]
    unknown = [name for name in chosen.workloads.split(",") if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    if min(chosen.rounds, chosen.duels) < 1 or chosen.seconds <= 0 or not chosen.fixed:
        parser.error("--rounds and --duels must be 1 or more, --seconds more than 0, and --fixed name a number of workers")
    return chosen


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    if chosen.child:
        print(json.dumps(measure(*json.loads(chosen.child))))
        return 0
    rows, notes = [], []
    for workload in chosen.workloads.split(","):
        missing = WORKLOADS[workload].missing()
        request = [
            workload,
            chosen.fixed,
            chosen.warm,
            chosen.seconds,
            chosen.rounds,
            chosen.duels,
            chosen.quick,
            chosen.busy_us,
            chosen.sleep_us,
        ]
        found = missing or in_own_process(__file__, request, LIMIT_S)
        if isinstance(found, str):
            notes.append(f"{workload}: {'skipped' if missing else 'failed'}: {found}")
            continue
        rows.append(row(workload, found, chosen.fixed))
        notes += [f"{workload}: {line}" for seen in found["autos"].values() for line in seen["decided"]] if chosen.why else []
        print(f"{workload}: auto {rows[-1][-5]} of the best", file=sys.stderr, flush=True)
    autos = [AUTO, ANY_KIND] if chosen.threads else [AUTO]
    head = [
        "workload",
        *("inline" if setting == "0" else setting if setting.endswith(THREADS) else f"{setting} workers" for setting in chosen.fixed),
        *(title for auto in autos for title in (auto, "of the best", "95 %", "itself", "best", "chosen")),
    ]
    many = f"{chosen.rounds} rounds and {chosen.duels} duels"
    step = f", a loop of {chosen.busy_us:g} µs busy and {chosen.sleep_us:g} µs asleep" if chosen.busy_us or chosen.sleep_us else ""
    conditions = f"{many} of {chosen.seconds:g} s each, after {chosen.warm:g} s{step}{', --quick' if chosen.quick else ''}"
    print("\n".join([*machine.description(), conditions, "", render(head, rows, chosen.markdown), *notes]))
    return 1 if any(": failed: " in note for note in notes) else 0


if __name__ == "__main__":
    sys.exit(main())
