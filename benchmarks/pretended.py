"""num_workers="auto" on cores that are not there: `python benchmarks/pretended.py` prints the table of docs/benchmarks.md.

The real loader, its real worker processes, epochs and changes, on any machine; only what a sample *takes* is pretended: its process
sleeps for as long as the sample would take on sixteen cores, where every fixed number of workers was measured once (RATES).

    worker k ── a sample: marks itself busy in shared memory, counts who else is ── sleeps for n workers' time of that sample, and goes on

1. All is slowed down so that the best setting brings PACE batches a second: two cores carry what is left of the loader's own work. What
   the loader knows about the length of handing over and of a task is slowed down with it; windows last as long as always.
2. Workers stand in each other's way (`crowd`: a sample takes longer the more of them are busy at this moment), or the loop in theirs
   (`handing`: handing over a batch takes longer the more workers there are). Of the measured rates nobody knows which it was.
3. The loader is told that there are 16 cores, and that who sleeps for a sample computes: patches of this file, none of the product's.
4. The machine's weather is pretended too: all speeds go up and down together, some tenths of a second and some seconds at a time. The
   loader sees it; of the figures here it is taken out, for it is known.
5. As in auto.py: every loader in turn, then duels of auto with the best of them; a turn counts after what was loaded before it is used up.

What this cannot show: real caches, memory buses and schedulers; what the loader's own code costs beside sixteen busy cores; whatever makes
a batch of less than a millisecond what it is. The rates of workers are those of one machine on one day.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import mmap
import random
import statistics
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

import machine
from auto import AUTO, duel, row
from runs import in_own_process
from table import render

LIMIT_S = 600.0
PACE = 200.0
"""Batches a second of the best setting, as far as that is not faster than the machine was."""
ROWS = 16
"""Samples of a pretended batch."""
NAP_NS = 2_000_000
"""What a process owes is slept off when it is this much: sleeping costs the core that wakes it up."""
USED_UP_S = 0.2
PLACES = 64
Rates = dict[int, float]

RATES: dict[str, tuple[Rates, int, bool]] = {
    "rows": ({0: 146, 2: 333, 4: 557, 8: 981, 14: 900, 16: 850}, 256, True),
    "four-leaves": ({0: 73, 2: 163, 4: 232, 8: 279, 14: 211, 16: 190}, 128, True),
    "small-images": ({0: 98, 2: 213, 4: 295, 8: 333, 14: 244, 16: 220}, 128, True),
    "rows-tensordataset": ({0: 2640, 2: 2160, 4: 1620, 8: 1190, 14: 922, 16: 900}, 256, False),
    "strings": ({0: 45.6, 2: 91, 4: 142, 8: 223, 14: 185, 16: 170}, 64, True),
    "rows-listed": ({0: 190, 2: 476, 4: 774, 8: 1370, 14: 1820, 16: 1860}, 256, False),
    "images": ({0: 14, 2: 11.3, 4: 21.6, 8: 38, 14: 54.7, 16: 59}, 64, True),
    "jpeg": ({0: 0.362, 2: 1.08, 4: 1.77, 8: 3.42, 14: 5.12, 16: 5.45}, 64, True),
    "rows-batch": ({0: 1730, 2: 1730, 4: 1920, 8: 2030, 14: 2110, 16: 2110}, 256, False),
    "tokens": ({0: 77, 2: 154, 4: 254, 8: 452, 14: 604, 16: 600}, 64, False),
}
"""Samples/ms by the number of workers, of docs/benchmarks.md; the batch; and whether it may be loaded by several workers."""


@dataclass(frozen=True)
class Loop:
    """What the user's loop does: `works` for so much of the time that the best setting needs for a batch, and validates between epochs;
    where it `skips` bad samples nothing is loaded in its own process, and its workers are started all at once; and `cold` epochs begin
    with nothing loaded, as those of data sets in shared memory do."""

    epoch: int  # batches
    works: float = 0.0
    validation: int = 0  # batches
    skips: bool = False
    cold: bool = False


LOOPS = {
    "still": Loop(400),
    "short epochs": Loop(60),
    "tiny epochs": Loop(12),
    "works": Loop(400, works=0.6),
    "works for long": Loop(400, works=1.5),
    "cold epochs": Loop(400, works=1.5, cold=True),
    "validates": Loop(200, validation=60),
    "skips": Loop(400, skips=True),
}


class Weather:
    """How fast everything is, by the time since it was made: off by `noise` for half a second, and by three quarters of it for longer."""

    def __init__(self, noise: float, seed: int) -> None:
        draw = random.Random(seed)
        self._short = [draw.gauss(0, noise) for _ in range(4000)]
        self._long = [draw.gauss(0, 0.75 * noise) for _ in range(1000)]
        self._began_s = time.perf_counter()

    def speed(self, at_s: float) -> float:
        elapsed_s = at_s - self._began_s
        knot, part = divmod(elapsed_s / 3.0, 1.0)
        slow = self._long[int(knot) % 999] * (1 - part) + self._long[int(knot) % 999 + 1] * part
        return math.exp(slow + self._short[int(elapsed_s / 0.5) % 4000])

    def mean_speed(self, began_s: float, ended_s: float) -> float:
        return statistics.fmean(self.speed(began_s + (ended_s - began_s) * (step + 0.5) / 64) for step in range(64))


class Model:
    """What samples and handing over take, slowed down. Times are in seconds."""

    def __init__(self, workload: str, handing: bool, weather: Weather) -> None:
        measured, batch, self.splits = RATES[workload]
        best = max(measured.values()) * 1000 / batch  # batches a second
        self.slower = max(1.0, best / PACE)
        self.rates = {workers: rate * 1000 / batch / self.slower * ROWS for workers, rate in measured.items()}  # pretended samples a second
        self.best = max(self.rates.values())
        self.handing, self.weather = handing, weather

    def rate(self, workers: int) -> float:
        """Of numbers between those that were measured, in proportion."""
        rates = self.rates
        if workers >= max(rates):
            return rates[max(rates)]
        above = min(count for count in rates if count >= max(1, workers))
        below = max((count for count in rates if 0 < count <= workers), default=0)
        if not workers or above == below:
            return rates[workers]
        if not below:
            return rates[above] * workers / above
        return rates[below] + (rates[above] - rates[below]) * (workers - below) / (above - below)

    def sample_s(self, busy: int) -> float:
        """With so many workers busy, 0: in the loop."""
        if not busy:
            return 1 / self.rates[0]
        return min(each / self.rate(each) for each in range(1, 17)) if self.handing else busy / self.rate(busy)

    def handing_s(self, workers: int) -> float:
        """A batch."""
        return ROWS / self.rate(workers) if self.handing else 0.0


class Debt:
    """Of this process: what it owes in sleep. `slept_ns` is what it would have computed."""

    def __init__(self) -> None:
        self.owed_ns = 0
        self.slept_ns = 0

    def owe(self, seconds: float) -> int:
        """What is slept off, if it is time for that, in nanoseconds; who sleeps too long owes less afterwards."""
        self.owed_ns += int(seconds * 1e9)
        return self.owed_ns if self.owed_ns >= NAP_NS else 0

    def sleep_off(self, nap_ns: int) -> None:
        began_ns = time.perf_counter_ns()
        time.sleep(nap_ns / 1e9)
        self.owed_ns -= time.perf_counter_ns() - began_ns
        self.slept_ns += nap_ns


DEBT = Debt()


class Board(Dataset[torch.Tensor]):
    """Samples that take their time. Whoever is at one says until when in his place of `busy`, which all processes share."""

    def __init__(self, model: Model, busy: mmap.mmap, loader: int, samples: int) -> None:
        self.model, self.samples = model, samples
        self._busy, self._loader = busy, loader
        self.sample = torch.arange(8, dtype=torch.float32)

    def __getitem__(self, index: int) -> torch.Tensor:
        info, now_s = get_worker_info(), time.perf_counter()
        busy = 0 if info is None else max(1, sum(until_s > now_s for (until_s,) in struct.iter_unpack("d", self._busy[:])))
        nap_ns = DEBT.owe(self.model.sample_s(busy) / self.model.weather.speed(now_s))
        if nap_ns:
            if info is not None:
                struct.pack_into("d", self._busy, 8 * (PLACES * self._loader + info.id % PLACES), now_s + nap_ns / 1e9 + 0.001)
            DEBT.sleep_off(nap_ns)
        return self.sample

    def __len__(self) -> int:
        return self.samples


def stacked(samples: list[torch.Tensor]) -> torch.Tensor:
    """A collate function that is not torch's: one worker makes the whole batch."""
    return torch.stack(samples)


def pretend(model: Model, cores: int, cold: bool, log: Callable[[str], None]) -> None:
    """In this process and all that it forks. `cold`: nothing of an epoch is loaded before it begins."""
    from antifreeze.delivery import handing_over, next_epoch
    from antifreeze.supervisor import policy
    from antifreeze.tuning import cores as cores_of
    from antifreeze.tuning import decide, window
    from antifreeze.worker import effort

    cores_of._allowed = lambda: cores
    cores_of.cgroup_limits = lambda *_: cores_of.Limits(None, None)
    process_time_ns = time.process_time_ns
    time.process_time_ns = lambda: process_time_ns() + DEBT.slept_ns
    effort.Effort.queued_ns = lambda self: 0
    for name in ("HAND_OVER_S", "WORTH_HELPING_S", "QUICK_BATCH_S"):
        setattr(window, name, getattr(window, name) * model.slower)
    policy.TASK_NS = int(policy.TASK_NS * model.slower)
    if not cold:
        next_epoch.shares_memory = lambda *_: ""  # what the processes share here is no data
    _slow_handing_over(handing_over.HandOver, model)
    _log_windows(decide.Tuner, log)


def _slow_handing_over(hand_over: Any, model: Model) -> None:
    give, give_made = hand_over.give, hand_over.give_made

    def slow_give(self: Any, data: Any, samples: int, size_bytes: int, pool: Any) -> Any:
        nap_ns = DEBT.owe(model.handing_s(pool.size) / model.weather.speed(time.perf_counter())) if model.handing else 0
        if nap_ns:
            DEBT.sleep_off(nap_ns)
        return give(self, data, samples, size_bytes, pool)

    def quick_give_made(self: Any, *given: Any) -> Any:
        hand_over.give = give
        try:
            return give_made(self, *given)
        finally:
            hand_over.give = slow_give

    hand_over.give, hand_over.give_made = slow_give, quick_give_made


def _log_windows(tuner: Any, log: Callable[[str], None]) -> None:
    decide, began_s = tuner.decide, time.perf_counter()

    def logged(self: Any, seen: Any) -> Any:
        decision = decide(self, seen)
        at_s, busy = time.perf_counter() - began_s, seen.work_s / max(seen.elapsed_s, 1e-9)
        numbers = (
            f"{seen.rate:7.0f}/s of {seen.batches:4} batches, waited {seen.waits:4.0%}, {busy:4.1f} busy, computing {seen.computing:4.0%}"
        )
        log(f"{at_s:6.1f} s {id(self) % 9973:4}: {seen.setting!s:20} {numbers}, {seen.cores} cores -> {decision.setting}, home {self.home}")
        return decision

    tuner.decide = logged


class Run:
    """One loader, epoch after epoch, and perhaps another one between them."""

    batch_size = ROWS

    def __init__(self, model: Model, loop: Loop, busy: mmap.mmap, number: int, setting: str) -> None:
        self._model, self._loop = model, loop
        workers: Any = AUTO if setting == AUTO else int(setting)
        boards = [Board(model, busy, 2 * number + part, batches * ROWS) for part, batches in enumerate((loop.epoch, loop.validation))]
        self.loaders = [self._loader(board, workers) for board in boards if len(board)]
        self.loader = self.loaders[0]
        self._batches = self._endless()

    def _loader(self, board: Board, workers: Any) -> Any:
        from antifreeze import DataLoader

        more: dict[str, Any] = {} if self._model.splits else {"collate_fn": stacked}
        if self._loop.skips:
            more["on_bad_sample"] = "skip"
        return DataLoader(board, ROWS, shuffle=True, num_workers=workers, persistent_workers=workers not in (0, AUTO), **more)

    def _endless(self) -> Iterator[Any]:
        while True:
            for loader in self.loaders:
                for batch in loader:
                    if self._loop.works:
                        time.sleep(self._loop.works * ROWS / self._model.best)
                    yield batch

    def rate(self, seconds: float) -> float:
        """Samples a second, of whole batches, in fair weather; but where the loop's own work is what takes the time, as they were."""
        self._take(USED_UP_S)
        began_s = time.perf_counter()
        batches = self._take(seconds)
        ended_s = time.perf_counter()
        speed = 1.0 if self._loop.works > 1 else self._model.weather.mean_speed(began_s, ended_s)
        return batches * ROWS / (ended_s - began_s) / speed

    def _take(self, seconds: float) -> int:
        began_s, batches = time.perf_counter(), 0
        while time.perf_counter() - began_s < seconds:
            next(self._batches)
            batches += 1
        return batches

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


def measure(workload: str, handing: bool, loop: str, options: dict[str, Any], fixed: Sequence[str]) -> dict[str, Any]:
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    windows: list[str] = []
    model = Model(workload, handing, Weather(options["noise"], options["seed"]))
    pretend(model, options["cores"], LOOPS[loop].cold, windows.append)
    busy = mmap.mmap(-1, 8 * PLACES * 2 * (len(fixed) + 2))
    names = [AUTO, *fixed]
    with contextlib.ExitStack() as stack:
        runs = {name: Run(model, LOOPS[loop], busy, number, name) for number, name in enumerate(names)}
        for run in runs.values():
            stack.callback(run.close)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        for name in names:  # "auto" leaves cores to loaders that are at work, so they are not before it is
            runs[name].rate(options["warm"] if name == AUTO else 1.0)
            if name == AUTO:
                parent = (time.process_time() - cpu_s) / (time.perf_counter() - wall_s)
        rates: dict[str, list[float]] = {name: [] for name in names}
        for number in range(options["rounds"]):
            first = number % len(names)  # nobody is always the one who comes after the slow one
            for name in names[first:] + names[:first]:
                rates[name].append(runs[name].rate(options["seconds"]))
        medians = {name: statistics.median(list_of) for name, list_of in rates.items()}
        best = max(fixed, key=medians.__getitem__)
        again = Run(model, LOOPS[loop], busy, len(names), best)
        stack.callback(again.close)
        again.rate(1.0)
        of_best, itself = duel(runs[AUTO], runs[best], again, options["seconds"], options["duels"])  # type: ignore[arg-type]
        decided = list(runs[AUTO].loader.report().decided)
    seen = {"best": best, "of_best": of_best, "itself": itself, "decided": decided}
    return {"medians": medians, "autos": {AUTO: seen}, "windows": windows, "slower": model.slower, "parent": parent}


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", default=",".join(RATES), help="comma-separated; all of: %(default)s")
    parser.add_argument("--loops", default="still", help=f"comma-separated, of {', '.join(LOOPS)} (default %(default)s)")
    parser.add_argument("--models", default="crowd,handing", help="what holds many workers up (default %(default)s)")
    parser.add_argument("--cores", type=int, default=16, help="that are pretended (default %(default)s)")
    parser.add_argument("--fixed", default="0,2,4,8,14", help="numbers of workers to compare with (default %(default)s)")
    parser.add_argument("--noise", type=float, default=0.08, help="of half a second, as a part of all speeds (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the weather (default %(default)s)")
    parser.add_argument("--warm", type=float, default=10.0, help='seconds for "auto" to find its setting (default %(default)s)')
    parser.add_argument("--seconds", type=float, default=1.0, help="of one loader in one round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="in which every setting is measured (default %(default)s)")
    parser.add_argument("--duels", type=int, default=9, help="of auto with the best of them, afterwards (default %(default)s)")
    parser.add_argument("--markdown", action="store_true", help="the table as markdown")
    parser.add_argument("--why", action="store_true", help='also print every decision of "auto"')
    parser.add_argument("--windows", action="store_true", help="also print every window of it")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args(given)
    for name, known in (("workloads", RATES), ("loops", LOOPS), ("models", ("crowd", "handing"))):
        unknown = [each for each in getattr(chosen, name).split(",") if each not in known]
        if unknown:
            parser.error(f"--{name}: no {unknown[0]!r}; there are {', '.join(known)}")
    return chosen


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    if chosen.child:
        print(json.dumps(measure(*json.loads(chosen.child))))
        return 0
    options = {name: getattr(chosen, name) for name in ("cores", "noise", "seed", "warm", "seconds", "rounds", "duels")}
    fixed, rows, notes = chosen.fixed.split(","), [], []
    cases = [(w, m, each) for each in chosen.loops.split(",") for w in chosen.workloads.split(",") for m in chosen.models.split(",")]
    for workload, model, loop in cases:
        title = f"{workload}, {model}, {loop}"
        found = in_own_process(__file__, [workload, model == "handing", loop, options, fixed], LIMIT_S)
        if isinstance(found, str):
            notes.append(f"{title}: failed: {found}")
            continue
        rows.append([*row(title, found, fixed), f"{found['slower']:.0f}×", f"{found['parent']:.0%}"])
        notes += [f"{title}: {line}" for line in found["autos"][AUTO]["decided"]] if chosen.why else []
        notes += [f"{title}: {line}" for line in found["windows"]] if chosen.windows else []
        print(f"{title}: auto {rows[-1][len(fixed) + 2]} of the best, {rows[-1][-3]}", file=sys.stderr, flush=True)
    counts = ["inline" if setting == "0" else f"{setting} workers" for setting in fixed]
    head = ["pretended", *counts, AUTO, "of the best", "95 %", "itself", "best", "chosen", "slowed", "parent's CPU"]
    many = f"{chosen.rounds} rounds and {chosen.duels} duels of {chosen.seconds:g} s each, after {chosen.warm:g} s"
    conditions = f"{chosen.cores} cores are pretended, weather ±{chosen.noise:.0%}; {many}"
    print("\n".join([*machine.description(), conditions, "", render(head, rows, chosen.markdown), *notes]))
    return 1 if any(": failed: " in note for note in notes) else 0


if __name__ == "__main__":
    sys.exit(main())
