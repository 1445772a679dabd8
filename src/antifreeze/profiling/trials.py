"""One real loader, run until its rate is known well enough or its time is up."""

from __future__ import annotations

import itertools
import math
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from antifreeze.checks.errors import NotCheckable
from antifreeze.checks.live.samples import leaves_of
from antifreeze.doctor.facts.names import WORKER_NAMES
from antifreeze.doctor.facts.proc import read_stat, read_text
from antifreeze.doctor.facts.tree import below, parents
from antifreeze.profiling.model import Kind, Trial
from antifreeze.profiling.workload import Workload

LEAST_S = 0.6
LOOK_S = 0.02
SURE = 0.03
_BLOCKS = 8
_GROWTH_SAMPLES = 200

Tell = Callable[[str], None]


def run_trial(
    workload: Workload,
    kind: Kind,
    workers: int,
    limit_s: float,
    tell: Tell,
    *,
    batch_size: int | None = None,
    prefetch: int | None = None,
    step: Callable[[Any], Any] | None = None,
) -> Trial:
    """`step` is called with each batch, as a training loop would; without it batches are only counted."""
    size = workload.batch_size if batch_size is None else batch_size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's about too many workers: that is what we are here to see
        loader = workload.loader(kind, workers, size, prefetch)
        try:
            return _run(loader, kind, workers, size, prefetch, limit_s, tell, step)
        finally:
            _close(loader)


class _Loop:
    """Batches without end, as epochs follow each other; and the clock of each."""

    def __init__(self, loader: Any, rows: int) -> None:
        self._loader = loader
        self._rows = rows
        self._iterator = iter(loader)
        self.samples = 0
        self.waited_s = 0.0

    def next(self) -> Any:
        began = time.perf_counter()
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._iterator = iter(self._loader)
            batch = next(self._iterator, None)
            if batch is None:
                raise NotCheckable(
                    "it gives no batch when it is iterated again: a stream that can be read once cannot be measured"
                ) from None
        self.waited_s += time.perf_counter() - began
        self.samples += rows_of(batch, self._rows)
        return batch


def rows_of(batch: Any, expected: int) -> int:
    """How many samples it holds: the last one of an epoch may hold fewer."""
    sizes = (int(leaf.shape[0]) for leaf in leaves_of(batch) if isinstance(leaf, torch.Tensor) and leaf.dim())
    return min(next(sizes, expected), expected)


def _run(
    loader: Any,
    kind: Kind,
    workers: int,
    size: int | None,
    prefetch: int | None,
    limit_s: float,
    tell: Tell,
    step: Callable[[Any], Any] | None,
) -> Trial:
    name = trial_name(kind, workers, size, prefetch, step is not None)
    tell(name)
    began = time.perf_counter()
    loop = _Loop(loader, size or 1)
    batch = loop.next()
    first_s = time.perf_counter() - began
    pids = _worker_pids() if workers and kind is not Kind.THREAD else []
    _warm_up(loop, workers, prefetch, began + limit_s)
    early, early_samples = _mean_memory(pids), loop.samples
    marks, loaded = [(time.perf_counter(), loop.samples)], _loaded(loader, kind)
    loop.waited_s, stepped_s, batches = 0.0, 0.0, 0
    looked_at = marks[0][0]
    while True:
        batch = loop.next()
        batches += 1
        if step is not None:
            before = time.perf_counter()
            step(batch)
            stepped_s += time.perf_counter() - before
        del batch
        now = time.perf_counter()
        marks.append((now, loop.samples))
        if now - looked_at < LOOK_S:  # looking takes time too, and small batches come by the ten thousand
            continue
        looked_at, elapsed = now, now - marks[0][0]
        rate, spread = rate_of(marks)
        if loaded is not None and step is None:  # what was ready before the clock started must not count
            rate = min(rate, ((_loaded(loader, kind) or 0) - loaded) / elapsed or rate)
        tell(f"{name}: {rate:,.0f} samples/s")
        if elapsed > 3 * limit_s or (batches > 2 and elapsed > limit_s) or (elapsed > LEAST_S and spread < SURE and batches >= 2 * _BLOCKS):
            break
    late = _mean_memory(pids)
    costs = _costs(loader, kind)
    return Trial(
        kind=kind,
        workers=workers,
        batch_size=size,
        prefetch=prefetch,
        rate=rate,
        spread=min(spread, 1.0),
        batches=batches,
        seconds=elapsed,
        first_batch_s=first_s,
        worker_pss=late,
        growth=_growth(early, late, loop.samples - early_samples, workers),
        waited_share=loop.waited_s / (loop.waited_s + stepped_s) if step is not None else None,
        **costs,
    )


def _warm_up(loop: _Loop, workers: int, prefetch: int | None, deadline: float) -> None:
    """What was loaded before the clock starts must not count: as many batches as were in flight."""
    for _ in range(workers * (prefetch or 2)):
        if time.perf_counter() > deadline:
            return
        loop.next()


def rate_of(marks: list[tuple[float, int]]) -> tuple[float, float]:
    """Pure: (samples per second, standard error as a share of it) from (time, samples so far), by blocks of equal length."""
    (first_s, first), (last_s, last) = marks[0], marks[-1]
    if last_s <= first_s:
        return 0.0, math.inf
    rate = (last - first) / (last_s - first_s)
    if len(marks) <= 2 * _BLOCKS:
        return rate, math.inf
    edges = [marks[round(number * (len(marks) - 1) / _BLOCKS)] for number in range(_BLOCKS + 1)]
    rates = [(b[1] - a[1]) / max(b[0] - a[0], 1e-9) for a, b in itertools.pairwise(edges)]
    mean = sum(rates) / len(rates)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in rates) / (len(rates) - 1))
    return rate, deviation / math.sqrt(len(rates)) / rate if rate else math.inf


def _worker_pids() -> list[int]:
    inside = below(os.getpid(), parents())[1:]
    return [pid for pid in inside if (stat := read_stat(pid)) is not None and stat.name.startswith(WORKER_NAMES)]


def _mean_memory(pids: list[int]) -> int | None:
    known = [memory for pid in pids if (memory := own_memory(read_text(f"/proc/{pid}/smaps_rollup"))) is not None]
    return sum(known) // len(known) if known else None


def own_memory(rollup: str | None) -> int | None:
    """Pure: PSS without shared memory, which is the batches in flight and counted as such. It grows with what is copied on write."""
    if not rollup:
        return None
    sizes = {key: int(value.split()[0]) * 1024 for key, _, value in (line.partition(":") for line in rollup.splitlines()[1:])}
    return sizes["Pss_Anon"] + sizes.get("Pss_File", 0) if "Pss_Anon" in sizes else sizes.get("Pss")


def _loaded(loader: Any, kind: Kind) -> int | None:
    """What workers have loaded so far, delivered or not; torch's own does not tell."""
    return None if kind is Kind.TORCH else int(loader._ledger.costs.samples)


def _growth(early: int | None, late: int | None, samples: int, workers: int) -> int | None:
    each = samples / workers if workers else 0
    return int((late - early) * 1000 / each) if early is not None and late is not None and each >= _GROWTH_SAMPLES else None


def _costs(loader: Any, kind: Kind) -> dict[str, Any]:
    if kind is Kind.TORCH:
        return {}
    report = loader.report()
    loaded = report.samples or 1
    parts = {"fetch_s": report.fetch_s / loaded, "collate_s": report.collate_s / loaded, "transport_s": report.transport_s / loaded}
    return {**parts, "in_flight": report.in_flight_bytes}


def _close(loader: Any) -> None:
    if hasattr(loader, "close"):
        loader.close()
    else:
        loader._iterator = None  # torch's own: its workers end with its iterator


def trial_name(kind: Kind, workers: int, size: int | None, prefetch: int | None, has_step: bool) -> str:
    ahead, step = f", {prefetch} ahead" if prefetch else "", ", with the step" if has_step else ""
    return f"{loader_name(kind, workers)}{ahead}{step}, batches of {size}"


def loader_name(kind: Kind, workers: int) -> str:
    if kind is Kind.INLINE:
        return "no workers"
    word = "thread" if kind is Kind.THREAD else "worker"
    whose = " (torch's own loader)" if kind is Kind.TORCH else ""
    return f"{workers} {word}{'' if workers == 1 else 's'}{whose}"
