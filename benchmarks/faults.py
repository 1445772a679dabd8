"""What the workers' allocator settings bring: `python benchmarks/faults.py` prints the table of docs/benchmarks.md (about 5 minutes, on a
machine that does nothing else).

Workers keep freed memory (worker/settling.py), so that a sample's arrays are not fresh pages each time. For each workload some processes,
one after the other, each with four loaders of two workers that stay:

    as it is     as users have it
    again        the very same: what is not 1 there is the machine's
    given back   the settings taken away, in this process only: freed memory goes back to the kernel, as glibc does it by itself
    huge pages   as it is, and the heap grown by HUGE_BYTES beforehand with madvise(MADV_HUGEPAGE); this is not built in

    turns        as it is, again │ as it is, given back │ as it is, huge pages │ …    a moment each; nobody runs twice in a row

1. A ratio is one turn by the mean of the turns of "as it is" before and after it; the figure is the median over all of them, with the
   interval that holds the true median 95 times in 100.
2. Faults are those of `loader.report()`, in workers, per sample. CPU time is that of workers and of the loop.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

import machine
from medians import interval_of_median
from runs import in_own_process
from table import quantity, ratio, render
from workloads import WORKLOADS as OTHERS
from workloads import Workload

LIMIT_S = 300.0
AS_IT_IS, AGAIN, GIVEN_BACK, HUGE = "as it is", "again", "given back", "huge pages"
SETTINGS = (AS_IT_IS, AGAIN, GIVEN_BACK, HUGE)
HUGE_BYTES = 256 << 20
_M_TOP_PAD, _MADV_HUGEPAGE, _HUGE_PAGE_BYTES = -2, 14, 1 << 21
_WARM_S = 1.0


class Normalised(Dataset[np.ndarray]):
    """3×224×224 float32, made lighter, given contrast and normalised by numpy, an expression each: what one leaves the next one may use."""

    SOURCES = 64

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.source = np.random.default_rng(9).random((self.SOURCES, 3, 224, 224), dtype=np.float32)
        self.mean, self.std = (np.array(of, dtype=np.float32)[:, None, None] for of in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    def __getitem__(self, index: int) -> np.ndarray:
        pixels = self.source[index % self.SOURCES]
        light, contrast = np.random.uniform(-0.1, 0.1), np.random.uniform(0.8, 1.2)
        pixels = (pixels - pixels.mean()) * np.float32(contrast) + np.float32(light)
        return (pixels - self.mean) / self.std

    def __len__(self) -> int:
        return self.samples


WORKLOADS = {**OTHERS, "numpy": Workload("numpy", "3×224×224 float32, normalised by numpy, batch 64", Normalised, 4096, 640, 64)}


def grow_heap_in_huge_pages(keep_freed_memory: Callable[[], None]) -> None:
    """In a worker: what malloc takes next lies in memory that the kernel may give 2 MB at a time. Nothing is touched yet."""
    keep_freed_memory()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    libc.sbrk.argtypes = (ctypes.c_ssize_t,)
    libc.malloc.argtypes, libc.free.argtypes = (ctypes.c_size_t,), (ctypes.c_void_p,)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    begins = -(-libc.sbrk(0) // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    libc.mallopt(_M_TOP_PAD, HUGE_BYTES)
    libc.free(libc.malloc(16 << 20))  # more than the heap has left: it grows by this and the pad
    libc.mallopt(_M_TOP_PAD, 1 << 17)
    grown = libc.sbrk(0) - begins
    if grown < HUGE_BYTES // 2 or libc.madvise(begins, grown, _MADV_HUGEPAGE):
        raise SystemExit(f"the heap grew by {grown:,} bytes, and madvise said {ctypes.get_errno()}")


class Run:
    """One loader, epoch after epoch, for as long as it is asked to go on."""

    def __init__(self, given: dict[str, Any], setting: str, workers: int) -> None:
        from antifreeze import DataLoader
        from antifreeze.worker import settling

        kept = settling._keep_freed_memory
        changed = {GIVEN_BACK: lambda: None, HUGE: lambda: grow_heap_in_huge_pages(kept)}
        self.loader = DataLoader(num_workers=workers, persistent_workers=True, multiprocessing_context="fork", **given)
        self.batch_size = given["batch_size"]
        self.rates: list[float] = []
        self.cpu_s = 0.0
        self.samples = self.worker_samples = self.faults = 0
        self._batches = self._endless()
        settling._keep_freed_memory = changed.get(setting, kept)
        try:
            next(self._batches)  # workers are forked here
        finally:
            settling._keep_freed_memory = kept

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def turn(self, seconds: float) -> float:
        """Samples a second, of whole batches."""
        before, cpu_before = self.loader.report(), time.process_time()
        began, batches = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < seconds:
            next(self._batches)
            batches += 1
        after, cpu_after = self.loader.report(), time.process_time()
        self.rates.append(batches * self.batch_size / elapsed)
        self.cpu_s += after.cpu_s - before.cpu_s + cpu_after - cpu_before
        self.samples += after.samples - before.samples
        self.worker_samples += after.worker_samples - before.worker_samples
        self.faults += after.worker_faults - before.worker_faults
        return self.rates[-1]

    def found(self, ratios: list[float]) -> dict[str, Any]:
        return {
            "rates": self.rates,
            "cpu_s_per_1000": self.cpu_s / self.samples * 1000,
            "faults": self.faults / self.worker_samples,
            "ratios": ratios,
        }


def measure(workload: str, workers: int, seconds: float, rounds: int, quick: bool) -> dict[str, Any]:
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    of = WORKLOADS[workload]
    given = of.loader_arguments(of.quick_samples if quick else of.samples)
    runs = {setting: Run(given, setting, workers) for setting in SETTINGS}
    for run in runs.values():
        run.turn(min(_WARM_S, seconds))
        run.rates.clear()
        run.cpu_s = run.samples = run.worker_samples = run.faults = 0
    ratios: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    before = runs[AS_IT_IS].turn(seconds)
    for _ in range(rounds):
        for setting in SETTINGS[1:]:
            rate, after = runs[setting].turn(seconds), runs[AS_IT_IS].turn(seconds)
            ratios[setting].append(2 * rate / (before + after))
            before = after
    found = {setting: run.found(ratios[setting]) for setting, run in runs.items()}
    for run in runs.values():
        run.loader.close()
    return found


def rows(workload: str, found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """`found`: of every process."""
    lines = []
    for setting in SETTINGS:
        seen = [each[setting] for each in found]
        ratios = [value for each in seen for value in each["ratios"]]
        low, high = interval_of_median(ratios) if ratios else (1.0, 1.0)
        lines.append(
            [
                workload,
                setting,
                quantity(statistics.median(rate for each in seen for rate in each["rates"])),
                f"{statistics.median(each['cpu_s_per_1000'] for each in seen):.3f}",
                f"{statistics.median(each['faults'] for each in seen):,.2f}",
                ratio(statistics.median(ratios)) if ratios else "",
                f"{low:.2f}–{high:.2f}" if ratios else "",
            ]
        )
    return lines


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", default="jpeg,numpy,small-images,images", help="comma-separated (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--processes", type=int, default=3, help="for each workload, one after the other (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="in each of them (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="small data sets: shows that it works, its figures mean little")
    parser.add_argument("--markdown", action="store_true", help="the table as markdown")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args(given)
    unknown = [name for name in chosen.workloads.split(",") if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    if min(chosen.workers, chosen.processes, chosen.rounds) < 1 or chosen.seconds <= 0:
        parser.error("--workers, --processes and --rounds must be 1 or more, --seconds more than 0")
    return chosen


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    if chosen.child:
        print(json.dumps(measure(*json.loads(chosen.child))))
        return 0
    where, lines, notes = machine.description(), [], []
    for workload in chosen.workloads.split(","):
        request = [workload, chosen.workers, chosen.seconds, chosen.rounds, chosen.quick]
        missing = WORKLOADS[workload].missing()
        found = [missing or in_own_process(__file__, request, LIMIT_S) for _ in range(1 if missing else chosen.processes)]
        problems = [each for each in found if isinstance(each, str)]
        if problems:
            notes.append(f"{workload}: {'skipped' if missing else 'failed'}: {problems[0]}")
            continue
        lines += rows(workload, [each for each in found if isinstance(each, dict)])
        print(f"{workload}: done", file=sys.stderr, flush=True)
    head = ["workload", "workers' memory", "samples/s", "CPU s/1000", "faults/sample", "of as it is", "95 %"]
    many = f"{chosen.workers} workers; {chosen.processes} processes of {chosen.rounds} rounds, turns of {chosen.seconds:g} s"
    conditions = f"{many}{', --quick' if chosen.quick else ''}"
    print("\n".join([*where, conditions, "", render(head, lines, chosen.markdown), *notes]))
    return 1 if any(": failed: " in note for note in notes) else 0


if __name__ == "__main__":
    sys.exit(main())
