"""One sample after another, in a forked child with a limit: how long, how much of it computing, how large, what carrying it costs."""

from __future__ import annotations

import mmap
import pickle
import random
import struct
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import numpy as np
import torch

from antifreeze.checks.errors import NotCheckable
from antifreeze.checks.live.child import ask_child
from antifreeze.checks.live.samples import leaves_of, size_of
from antifreeze.profiling.gil import two_threads
from antifreeze.profiling.model import Samples
from antifreeze.profiling.workload import SAMPLE_LIMIT_S, Workload
from antifreeze.slots.layout import Irregular, RowLayout, learn, transpose, write_column
from antifreeze.slots.parcel import pack, unpack
from antifreeze.torch_private import loads

MOST_SAMPLES = 1000
GIL_S = 1.2
REPEATS_S = 0.25
OTHERS_S = 4.0
"""For all that is measured beside the samples."""
_SLOWEST = 5


def measure_samples(workload: Workload, seconds: float) -> Samples:
    """Raises NotCheckable with a sentence where a sample raises, hangs, kills or does not make a batch."""
    marker = mmap.mmap(-1, 8)  # where the child is: read when it does not come back
    try:
        asked = ask_child(lambda: _measure(workload, seconds, marker), SAMPLE_LIMIT_S + OTHERS_S + 3 * seconds)
        if asked.answer is None:
            (index,) = struct.unpack("q", marker[:8])
            raise NotCheckable(f"sample {index} cannot be measured: {asked.trouble}")
    finally:
        marker.close()
    if isinstance(asked.answer, str):
        raise NotCheckable(asked.answer)
    assert isinstance(asked.answer, Samples)
    return replace(asked.answer, two_threads=_two_threads(workload, asked.answer, seconds))


def _two_threads(workload: Workload, samples: Samples, seconds: float) -> float | None:
    """In a child of its own: a data set that two threads may not use at once raises, or worse."""
    wanted_s = max(0.3, min(GIL_S, seconds))
    if samples.mean_s > wanted_s / 10:
        wanted_s = 10 * samples.mean_s
        if wanted_s > 4 * seconds:
            return None  # it would take more than a tenth of the whole time

    def compare() -> float | None:
        torch.set_num_threads(1)  # as in a worker
        return two_threads(lambda: _again(workload), wanted_s)

    found: float | None = ask_child(compare, SAMPLE_LIMIT_S + 3 * wanted_s).answer
    return found


@dataclass
class _Tally:
    times: list[tuple[float, int]] = field(default_factory=list)
    cpu_s: float = 0.0
    kept: list[Any] = field(default_factory=list)
    failed: int = 0
    first_s: float = 0.0


def _measure(workload: Workload, seconds: float, marker: mmap.mmap) -> Samples | str:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    tally = _Tally()
    wanted = max(workload.batch_size or 1, 8)
    trouble = _time_samples(workload, seconds, marker, tally, wanted)
    if trouble:
        return trouble
    if not tally.times:
        return f"{workload.name} gave no sample: there is nothing to measure"
    total = sum(took for took, _ in tally.times)
    batch = tally.kept[:wanted]
    try:
        collate_s = _per_sample(lambda: workload.subject.collate(batch), len(batch)) if workload.batch_size is not None else 0.0
        collated = workload.subject.collate(batch) if workload.batch_size is not None else batch[0]
    except Exception as error:
        return f"{workload.name}: {len(batch)} samples do not make a batch: {type(error).__name__}: {error}"
    path, slot_s = _slot_cost(workload, batch, collated)
    return Samples(
        times=tuple(took for took, _ in tally.times),
        slowest=tuple((str(index), took) for took, index in sorted(tally.times, reverse=True)[:_SLOWEST]),
        first_s=tally.first_s,
        cpu_share=tally.cpu_s / total if total else 1.0,
        two_threads=None,
        sample_bytes=int(sum(size_of(leaf) for sample in batch for leaf in leaves_of(sample)) / len(batch)),
        collate_s=collate_s,
        pickle_s=_pickle_cost(collated, len(batch)),
        slot_s=slot_s,
        path=path,
        failed=tally.failed,
    )


def _time_samples(workload: Workload, seconds: float, marker: mmap.mmap, tally: _Tally, wanted: int) -> str:
    """The sentence that ends it, or nothing."""
    deadline = time.perf_counter() + seconds
    for index, load in _loads(workload):
        marker[:8] = struct.pack("q", index)
        began, cpu = time.perf_counter(), time.process_time()
        try:
            sample = load()
        except StopIteration:
            break
        except Exception as error:
            if not workload.skip_bad:
                return _raised(workload, index, error)
            tally.failed += 1
            if tally.failed > MOST_SAMPLES:
                return f"{workload.name}: the first {tally.failed} samples all fail, the last with {type(error).__name__}: {error}"
            continue
        took = time.perf_counter() - began
        if sample is None and not workload.subject.has_own_collate:
            return f"sample {index} of {workload.name} is None: no batch can be made of it"
        if not tally.first_s:
            tally.first_s = took
        else:
            tally.times.append((took, index))
            tally.cpu_s += time.process_time() - cpu
        if len(tally.kept) < wanted:
            tally.kept.append(sample)
        now = time.perf_counter()
        if len(tally.times) >= MOST_SAMPLES or (now > deadline and tally.times and len(tally.kept) >= min(wanted, 2)):
            break
    if tally.first_s and not tally.times:
        tally.times.append((tally.first_s, 0))  # it has one sample only
    return ""


def _raised(workload: Workload, index: int, error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    own = [each for each in traceback.extract_tb(error.__traceback__) if "site-packages" not in each.filename and each.filename != __file__]
    frame = own[-1] if own else frame
    return (
        f"sample {index} of {workload.name} raises {type(error).__name__}: {error} at {frame.filename}:{frame.lineno}; "
        "repair it, or leave bad samples out with --skip-bad"
    )


def _loads(workload: Workload) -> Iterator[tuple[int, Callable[[], Any]]]:
    dataset = workload.subject.dataset
    if workload.subject.is_iterable:
        stream = iter(dataset)
        yield from ((number, lambda: next(stream)) for number in range(MOST_SAMPLES + 1))
        return
    indices = list(range(workload.length or 0)) if (workload.length or 0) < 10**6 else random.sample(range(workload.length or 0), 10**4)
    random.Random(0).shuffle(indices)
    for index in indices:
        yield index, lambda index=index: dataset[index]  # type: ignore[misc]


def _again(workload: Workload) -> Callable[[], None]:
    """One sample after another, for as long as it is called."""
    if workload.subject.is_iterable:
        streams = _endless(workload.subject.dataset)
        return lambda: next(streams, None)
    indices = cycle(random.sample(range(workload.length or 1), min(workload.length or 1, MOST_SAMPLES)))

    def load() -> None:
        try:
            workload.subject.dataset[next(indices)]
        except Exception:
            if not workload.skip_bad:
                raise

    return load


def _endless(dataset: Any) -> Iterator[None]:
    while True:
        empty = True
        for _ in dataset:
            empty = False
            yield None
        if empty:
            return


# --- what carrying it costs ---


def _per_sample(work: Callable[[], Any], rows: int) -> float:
    """The best of some repetitions: what it takes when nobody disturbs."""
    deadline, best = time.perf_counter() + REPEATS_S, float("inf")
    while True:
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
        if time.perf_counter() > deadline:
            return best / rows


def _pickle_cost(batch: Any, rows: int) -> float | None:
    try:
        return _per_sample(lambda: loads(pickle.dumps(batch, protocol=5)), rows)
    except Exception:
        return None


def _slot_cost(workload: Workload, samples: list[Any], batch: Any) -> tuple[str, float | None]:
    """(our path, seconds per sample) into memory that is used again, as a slot is."""
    layout = learn(samples[0]) if workload.batch_size is not None and not workload.subject.has_own_collate else None
    if layout is not None:
        try:
            return "rows", _per_sample(_writing_rows(layout, samples), len(samples))
        except Irregular:
            pass  # they differ: each batch is packed instead
    try:
        return "parcel", _per_sample(_carrying(batch), len(samples))
    except Exception:
        return "parcel", None


def _writing_rows(layout: RowLayout, samples: list[Any]) -> Callable[[], None]:
    columns = layout.columns(np.zeros(max(1, layout.offsets(len(samples))[-1]), np.uint8), len(samples))

    def write() -> None:
        for leaf, into, column in zip(layout.leaves, columns, transpose(layout, samples), strict=True):
            write_column(leaf, into, column)

    return write


def _carrying(batch: Any) -> Callable[[], None]:
    memory = np.zeros(pack(batch).size_bytes, np.uint8)

    def carry() -> None:
        pack(batch).write(memory)
        unpack(memory)

    return carry
