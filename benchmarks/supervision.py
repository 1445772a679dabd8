"""What supervision costs: `python benchmarks/supervision.py` (about 3 minutes, on a machine that does nothing else).

The same loader with and without what it watches with, in turns, each time in a fresh process. What is taken away for "without":

    in the worker   the journal: every line of worker/fetch.py that writes the row, the index or the count of a sample, and the stages
    in the parent   deadlines, stall reports, looks at the workers' memory

The rest cannot be taken away without another design: that workers have a pidfd in the same epoll as their socket, and that the parent
knows who holds which task, is how batches come at all.

Beside the rate stands the CPU time of parent and workers together per sample: on a machine that is not quiet only that one can be read.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import machine
from runs import HERE, measuring_environment
from table import render

ONE_LIMIT_S = 120.0
_JOURNAL_LINE = re.compile(r"^(\s*)(self\._journal\.)?words\[(_ROW|_INDEX|_SAMPLES|_IS_TEXT|Word\.\w+)\] \+?= .*$", re.MULTILINE)


def take_supervision_away() -> dict[str, Any]:
    """In this process, before a loader is made; returns the options that go with it."""
    spec = importlib.util.find_spec("antifreeze.worker.fetch")
    assert spec is not None and spec.origin is not None and spec.loader is not None
    with open(spec.origin) as file:
        source, cut = _JOURNAL_LINE.subn(r"\1pass", file.read())
    if cut < 3:
        raise SystemExit(f"worker/fetch.py has changed: only {cut} lines that write to the journal were found")
    module = importlib.util.module_from_spec(spec)
    sys.modules["antifreeze.worker.fetch"] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)

    from antifreeze.supervisor.pool import Pool
    from antifreeze.worker.journal import JournalRow

    JournalRow.stage = lambda self, stage: None  # type: ignore[method-assign]
    JournalRow.at_key = lambda self, row, key: None  # type: ignore[method-assign]
    Pool._check_deadlines = lambda self: None  # type: ignore[method-assign]
    Pool.look_at_memory = lambda self: False  # type: ignore[method-assign]
    return {"stall_report_s": None, "sample_timeout_s": None}


def rows(count: int) -> Any:
    """The smallest samples there are: what is done once per sample weighs most."""
    from torch.utils.data import Dataset

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> int:
            return index

    return Rows()


def floats(count: int) -> Any:
    """Small rows as they are met: 16 floats and a label."""
    import torch
    from torch.utils.data import Dataset

    table = torch.rand(4096, 16)

    class Floats(Dataset[Any]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            return table[index & 4095], index & 1

    return Floats()


def images(count: int) -> Any:
    import torch
    from torch.utils.data import Dataset

    image = torch.rand(3, 224, 224)

    class Images(Dataset[Any]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            return image, index

    return Images()


def objects(samples: list[Any]) -> dict[str, Any]:
    return {"samples": samples, "names": [f"sample {sample}" for sample in samples]}


WORKLOADS: dict[str, tuple[Callable[[int], Any], int, int, Any]] = {
    "an int": (rows, 50_000_000, 256, None),
    "16 floats + label": (floats, 20_000_000, 256, None),
    "602 KB images": (images, 500_000, 64, None),
    "parcels": (rows, 20_000_000, 256, objects),
}


def cpu_s() -> float:
    """Of this process and the children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def measure(workload: str, supervised: bool, seconds: float, workers: int) -> tuple[float, float]:
    """Samples per second, the first second not counted; and CPU microseconds per sample."""
    options = {} if supervised else take_supervision_away()
    from antifreeze import DataLoader

    make, count, batch_size, collate_fn = WORKLOADS[workload]
    loader = DataLoader(make(count), batch_size, num_workers=workers, collate_fn=collate_fn, **options)
    began_s, cpu_before_s = time.perf_counter(), cpu_s()
    batches = delivered = 0
    counted_from_s = None
    for _ in loader:
        now_s = time.perf_counter()
        delivered += 1
        if counted_from_s is None:
            counted_from_s = now_s if now_s - began_s > 1.0 else None
            continue
        batches += 1
        if now_s - counted_from_s > seconds:
            break
    assert counted_from_s is not None, "the epoch was over before anything could be counted"
    rate = batches * batch_size / (time.perf_counter() - counted_from_s)
    loader.close()
    return rate, (cpu_s() - cpu_before_s) * 1e6 / (delivered * batch_size)


def measure_apart(workload: str, supervised: bool, seconds: float, workers: int) -> tuple[float, float]:
    command = [sys.executable, str(HERE / "supervision.py"), "--one", json.dumps([workload, supervised, seconds, workers])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ONE_LIMIT_S, env=measuring_environment(), check=False)
    if done.returncode != 0:
        raise SystemExit(f"{workload}, {'with' if supervised else 'without'}: the measurement failed\n{done.stderr}")
    rate, cpu_us = json.loads(done.stdout.splitlines()[-1])
    return rate, cpu_us


def compare(workload: str, rounds: int, seconds: float, workers: int) -> list[str]:
    """In turns, each round beginning with the other one; what counts is the median over rounds of with ÷ without."""
    turns = []
    for number in range(rounds):
        turn = {supervised: measure_apart(workload, supervised, seconds, workers) for supervised in (number % 2 == 0, number % 2 == 1)}
        turns.append(turn)
        print(f"{workload}, round {number + 1}: {turn[True][0]:,.0f} with, {turn[False][0]:,.0f} without", file=sys.stderr, flush=True)
    rates, cpu = [turn[True][0] / turn[False][0] - 1 for turn in turns], [turn[True][1] / turn[False][1] - 1 for turn in turns]
    return [
        workload,
        f"{median(turn[True][0] for turn in turns):,.0f}",
        f"{median(turn[False][0] for turn in turns):,.0f}",
        f"{median(rates):+.1%} ({min(rates):+.1%} to {max(rates):+.1%})",
        f"{median(cpu):+.1%} ({min(cpu):+.1%} to {max(cpu):+.1%})",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--markdown", action="store_true", help="the table as Markdown")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*json.loads(args.one))))
        return 0
    where = machine.description()
    lines = [compare(workload, args.rounds, args.seconds, args.workers) for workload in args.workloads]
    print(*where, sep="\n")
    print(render(["samples/s", "with supervision", "without", "rate (rounds)", "CPU per sample (rounds)"], lines, args.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
