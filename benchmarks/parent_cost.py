"""CPU the parent spends per batch on the row path with 4 leaves: `python benchmarks/parent_cost.py`.

Twice: batches in a row, as fast as they come; and with a sleep of 5 ms between them, so that the workers are ahead, use both cores in
the meantime, and the parent meets every batch with cold caches. Its work is taking the batch that is ready, giving out the next
one, letting the last one go. All CPU time of the process is counted, whatever thread spends it; the loop's own (reading the
clock) is measured without a loader and taken off. Two batch sizes tell what a batch costs from what a sample costs: the sampler's
indices are all that may grow.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from statistics import mean, median

import machine
from measure import CLASSES, load_class
from runs import HERE, measuring_environment
from table import render
from workloads import FourLeaves

LIMIT_US = 200.0
ONE_LIMIT_S = 120.0


@dataclass(frozen=True)
class Cost:
    in_a_row_us: float
    median_us: float
    mean_us: float


def measure(loader: str, batch_size: int, batches: int, workers: int) -> Cost:
    """CPU from before `next()` to the end of the turn, in which the batch before is let go."""
    data_set = FourLeaves(batch_size * (4 * batches + 20))
    iterator = iter(load_class(loader)(data_set, batch_size=batch_size, shuffle=True, num_workers=workers))
    for _ in range(10):
        batch = next(iterator)
    before_s = time.process_time()
    for _ in range(3 * batches):
        batch = next(iterator)
    in_a_row_s = (time.process_time() - before_s) / (3 * batches)
    spent_s = []
    for _ in range(batches):
        time.sleep(0.005)
        before_s = time.process_time()
        batch = next(iterator)  # noqa: F841 - the one before is let go here
        spent_s.append(time.process_time() - before_s)
    idle_s = []
    for _ in range(batches):
        before_s = time.process_time()
        idle_s.append(time.process_time() - before_s)
    return Cost(in_a_row_s * 1e6, (median(spent_s) - median(idle_s)) * 1e6, (mean(spent_s) - mean(idle_s)) * 1e6)


def measure_apart(loader: str, batch_size: int, batches: int, workers: int) -> Cost:
    """In a fresh process, so that no loader meets what another left behind."""
    command = [sys.executable, str(HERE / "parent_cost.py"), "--one", json.dumps([loader, batch_size, batches, workers])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ONE_LIMIT_S, env=measuring_environment(), check=False)
    if done.returncode != 0:
        raise SystemExit(f"{loader}, batch {batch_size}: the measurement failed\n{done.stderr}")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--classes", default="torch,ours", help=f"{', '.join(CLASSES)} or module:Class")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(asdict(measure(*json.loads(chosen.one)))))
        return 0
    found: dict[tuple[str, int], list[Cost]] = {}
    for _ in range(chosen.rounds):
        for batch_size in (64, 256):
            for name in chosen.classes.split(","):
                cost = measure_apart(name, batch_size, chosen.batches, chosen.workers)
                found.setdefault((name, batch_size), []).append(cost)
    rows = []
    for (name, batch_size), costs in found.items():
        in_a_row = median(cost.in_a_row_us for cost in costs)
        middle, average = median(cost.median_us for cost in costs), median(cost.mean_us for cost in costs)
        verdicts = ["yes" if cost < LIMIT_US else "NO" for cost in (in_a_row, average)] if name == "ours" else ["", ""]
        rows.append([name, str(batch_size), f"{in_a_row:.0f}", verdicts[0], f"{middle:.0f}", f"{average:.0f}", verdicts[1]])
    print("\n".join([*machine.description(), f"{chosen.rounds} rounds of {chosen.batches} batches, {chosen.workers} workers", ""]))
    under = f"under {LIMIT_US:.0f} µs"
    head = ["parent's CPU per batch, 4 leaves", "batch size", "in a row µs", under, "cold: median µs", "mean µs", under]
    print(render(head, rows, chosen.markdown))
    return 1 if any(row[3] == "NO" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
