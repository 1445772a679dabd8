"""What supervision costs: `python benchmarks/supervision.py` (about 4 minutes, on a machine that does nothing else).

The same loader with and without what it watches with. What is taken away for "without":

    in the worker   the journal: every line of worker/fetch.py that writes the row, the place or the count of samples, and the stages
    in the parent   deadlines, stall reports, looks at the workers' memory

The rest cannot be taken away without another design: that workers have a pidfd in the same epoll as their socket, and that the parent
knows who holds which task, is how batches come at all.

Two per cent are less than this machine's mood changes within a second, so both stand ready at once, each in a process of its own, and
load in short turns (the one that is not loading sleeps):

    pair 1    with │▇ ▇ ▇ ▇ …      a turn: some batches to get going, then TURN_S that count
           without │ ▇ ▇ ▇ ▇…      a ratio: one turn of "with" by the turns of "without" before and after it
    pair 2    …                    a pair: its own processes, because where memory lands moves the rate of a process for its whole life

The figure is the median over all ratios, with the interval that holds the true median 95 times in 100.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import machine
from medians import interval_of_median
from runs import HERE, measuring_environment
from table import render

TURN_S = 0.25
WARM_BATCHES = 8
ANSWER_LIMIT_S = 60.0
_JOURNAL_LINE = re.compile(r"^(\s*)(self\._journal\.)?words\[(_ROW|_INDEX|_SAMPLES|_IS_TEXT|Word\.\w+)\] \+?= .*$", re.MULTILINE)
_JOURNAL_IN_LOOP = re.compile(r"for words\[row_word\], index in enumerate\(place, task\.first_row\)")


def take_supervision_away() -> dict[str, Any]:
    """In this process, before a loader is made; returns the options that go with it."""
    spec = importlib.util.find_spec("antifreeze.worker.fetch")
    assert spec is not None and spec.origin is not None and spec.loader is not None
    with open(spec.origin) as file:
        source, cut = _JOURNAL_LINE.subn(r"\1pass", file.read())
    source, in_loop = _JOURNAL_IN_LOOP.subn("for index in place", source)
    if cut < 3 or not in_loop:
        raise SystemExit(
            f"worker/fetch.py has changed: {cut} lines that write to the journal were found, {in_loop} in the loop over samples"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules["antifreeze.worker.fetch"] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)

    from antifreeze.supervisor.deadlines import Deadlines
    from antifreeze.supervisor.pool import Pool
    from antifreeze.worker.journal import JournalRow

    for owner, name, answer in (
        (JournalRow, "stage", None),
        (JournalRow, "at_key", None),
        (JournalRow, "at_place", None),
        (JournalRow, "at_no_place", None),
        (Deadlines, "check", None),
        (Pool, "look_at_memory", False),
    ):
        if not callable(getattr(owner, name, None)):
            raise SystemExit(f"{owner.__name__} has no {name} any more: say here what is to be taken away instead")
        setattr(owner, name, lambda *_, answer=answer: answer)
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


def serve(workload: str, supervised: bool, workers: int) -> None:
    """One line in, one turn, one line out: samples per second. No line any more: the end."""
    options = {} if supervised else take_supervision_away()
    from antifreeze import DataLoader

    make, count, batch_size, collate_fn = WORKLOADS[workload]
    loader = DataLoader(make(count), batch_size, num_workers=workers, collate_fn=collate_fn, **options)
    batches = iter(loader)
    next(batches)
    print("ready", flush=True)
    for _ in sys.stdin:
        for _ in range(WARM_BATCHES):
            next(batches)
        began_s = now_s = time.perf_counter()
        counted = 0
        while now_s - began_s < TURN_S:
            next(batches)
            counted += 1
            now_s = time.perf_counter()
        print(counted * batch_size / (now_s - began_s), flush=True)
    loader.close()


class Contender:
    """A process that loads when it is asked to."""

    def __init__(self, workload: str, supervised: bool, workers: int) -> None:
        command = [sys.executable, str(HERE / "supervision.py"), "--serve", json.dumps([workload, supervised, workers])]
        self._name = f"{workload}, {'with' if supervised else 'without'}"
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=measuring_environment()
        )
        self._answer()

    def turn(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        there, _, _ = select.select([self._process.stdout], [], [], ANSWER_LIMIT_S)
        line = self._process.stdout.readline() if there else ""
        if not line:
            self._process.kill()
            raise SystemExit(f"{self._name}: the measurement {'failed' if there else f'gave no answer in {ANSWER_LIMIT_S:.0f} s'}")
        return line

    def end(self) -> None:
        self._process.communicate(timeout=ANSWER_LIMIT_S)


def compare(workload: str, pairs: int, turns: int, workers: int) -> list[str]:
    ratios: list[float] = []
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(pairs):
        order = (True, False) if number % 2 else (False, True)  # who is started second has other memory
        contenders = {supervised: Contender(workload, supervised, workers) for supervised in order}
        before = contenders[False].turn()
        for _ in range(turns):
            rate, after = contenders[True].turn(), contenders[False].turn()
            ratios.append(2 * rate / (before + after) - 1)
            rates[True].append(rate)
            rates[False].append(after)
            before = after
        for contender in contenders.values():
            contender.end()
        print(f"{workload}, pair {number + 1}: {median(ratios[-turns:]):+.1%}", file=sys.stderr, flush=True)
    low, high = interval_of_median(ratios)
    return [
        workload,
        f"{median(rates[True]):,.0f}",
        f"{median(rates[False]):,.0f}",
        f"{median(ratios):+.1%}",
        f"{low:+.1%} to {high:+.1%}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6, help="processes of either kind")
    parser.add_argument("--turns", type=int, default=12, help="of each of them")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--markdown", action="store_true", help="the table as Markdown")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(*json.loads(args.serve))
        return 0
    where = machine.description()
    lines = [compare(workload, args.pairs, args.turns, args.workers) for workload in args.workloads]
    print(*where, sep="\n")
    print(render(["samples/s", "with supervision", "without", "difference", "95 % interval"], lines, args.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
