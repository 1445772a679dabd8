"""What the beginning of an epoch costs where workers stay: `python benchmarks/epochs.py`.

Torch's loader, ours, and ours with warm_epochs=False, all with persistent workers and a shuffle, each measurement a process of its own,
in turn. The loop sleeps after each batch, as one does that waits for its accelerator, and between two epochs a small torch loader is
iterated, as for a validation (it draws a base seed from the process's generator). Of every epoch but the first two: the time from
iter(loader) to the first batch, and the whole epoch. (The first guess is wrong: what the validation draws is learnt from it.)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import machine
from measure import load_class
from runs import HERE, measuring_environment
from table import milliseconds, ratio, render
from workloads import WORKLOADS

ONE_LIMIT_S = 120.0
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": ("torch", {}),
    "ours": ("ours", {}),
    "ours, cold": ("ours", {"warm_epochs": False}),
}


@dataclass(frozen=True)
class Epochs:
    first_s: float
    """Median over epochs: from iter() to the first batch."""
    whole_s: float
    """The same for the epoch with the loop's own time."""


def measure(contender: str, workload: str, batches: int, epochs: int, workers: int, step_s: float) -> Epochs:
    import torch

    torch.manual_seed(1)
    kind, given = CONTENDERS[contender]
    chosen = WORKLOADS[workload]
    arguments = chosen.loader_arguments(batches * chosen.batch_size)
    loader = load_class(kind)(**arguments, num_workers=workers, persistent_workers=True, **given)
    first_s, whole_s = [], []
    for _ in range(epochs + 2):
        began_s = time.perf_counter()
        came_s = None
        for _ in loader:
            came_s = time.perf_counter() if came_s is None else came_s
            time.sleep(step_s)
        assert came_s is not None
        first_s.append(came_s - began_s)
        whole_s.append(time.perf_counter() - began_s)
        list(load_class("torch")(range(4)))
    return Epochs(median(first_s[2:]), median(whole_s[2:]))


def measure_apart(*request: Any) -> Epochs:
    command = [sys.executable, str(HERE / "epochs.py"), "--one", json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ONE_LIMIT_S, env=measuring_environment(), check=False)
    if done.returncode != 0:
        raise SystemExit(f"{request}: the measurement failed\n{done.stderr}")
    return Epochs(**json.loads(done.stdout.splitlines()[-1]))


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", default="images,jpeg,slow-reads", help=", ".join(WORKLOADS))
    parser.add_argument("--batches", type=int, default=12, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--step-ms", type=float, default=100.0, help="what the loop sleeps after each batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args(given)
    if chosen.one:
        print(json.dumps(asdict(measure(*json.loads(chosen.one)))))
        return 0
    rows = []
    for workload in chosen.workloads.split(","):
        lacking = WORKLOADS[workload].missing()
        if lacking:
            print(f"{workload}: left out, {lacking}", file=sys.stderr)
            continue
        found: dict[str, list[Epochs]] = {name: [] for name in CONTENDERS}
        for _ in range(chosen.rounds):
            for name in CONTENDERS:
                shape = (chosen.batches, chosen.epochs, chosen.workers, chosen.step_ms / 1000)
                found[name].append(measure_apart(name, workload, *shape))
        for name, times in found.items():
            first_s, whole_s = median(each.first_s for each in times), median(each.whole_s for each in times)
            pairs = list(zip(times, found["torch"], strict=True))
            rows.append(
                [
                    workload,
                    name,
                    milliseconds(first_s),
                    ratio(median(each.first_s / torchs.first_s for each, torchs in pairs)),
                    milliseconds(whole_s),
                    ratio(median(each.whole_s / torchs.whole_s for each, torchs in pairs)),
                ]
            )
    print("\n".join([*machine.description(), f"{chosen.rounds} rounds, epochs of {chosen.batches} batches, {chosen.workers} workers", ""]))
    print(render(["workload", "loader", "first batch ms", "to torch", "epoch ms", "to torch"], rows, chosen.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
