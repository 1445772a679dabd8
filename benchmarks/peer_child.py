"""One measurement of one peer, in a process of the peer's own environment: `peer_child.py '{"peer": ...}'` prints one JSON object.

    peers.py                         this process                          the peer's threads, processes
       | start, own session             |
       |------------------------------->| package imported, data set built, not timed
       |      "ready"                   |
       |<-------------------------------|
       |                                | first batch (from construction)   |
       |                                | warm-up, then the window          |  until `seconds`
       |                                | some looks at memory              |
       |      result as JSON            |                                   |
       |<-------------------------------|

1. "first batch" runs from construction to the first batch, with whatever the peer has to start for it.
2. The rate is that of the window without the first tenth of every epoch and its start; `over_epochs_per_s` is the same with them (and the
   only one, from the first batch on, where the setting says `whole_epochs`).
3. CPU and page faults are those of the window, of the whole process tree, per sample; what others used of the machine is told beside.
4. Of every batch over 1 MB one byte per page is read, so that a promise of data does not count as data.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peers.contract import TASKS, Task, load_peer
from process_tree import machine_cpu_s, memory_of, own_usage

PAGE = 4096
TOUCH_OVER_BYTES = 1 << 20
BATCHES_LOOKED_AT = 12
MEMORY_LOOKS, MEMORY_EVERY_S = 4, 0.07


@dataclass(frozen=True)
class PeerRequest:
    peer: str
    task: str
    options: dict[str, Any]
    folder: str
    seconds: float = 2.0
    warm_s: float = 1.0
    whole_epochs: bool = False
    what: str = "rate"
    """rate: measures; right: looks at what is in the batches; prepare: writes the peer's files."""


@dataclass(frozen=True)
class PeerResult:
    samples: int
    samples_per_s: float
    over_epochs_per_s: float
    first_batch_s: float
    cpu_s_per_1000: float
    faults_per_sample: float
    batch: str
    """The first batch, described: `float32[64, 3, 224, 224], int64[64]`."""
    others_cores: float = 0.0
    """Cores that somebody else used during the window."""
    memory_bytes: int = 0
    """Of the whole process tree with the data set and shared memory that is held, the most of some looks after the window."""


@dataclass
class EpochSoFar:
    batches: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    is_steady: bool = False
    wave_samples: int = 0
    wave_s: float = 0.0


class Window:
    """What is counted from the end of the warm-up to the end of the measurement.

    The steady part of an epoch is that from its first tenth to its last batch: neither start nor end. Where many samples wait at the same
    time, batches come in waves (of 64 workers, 64 at once, then none for a third of a second): a wave is counted whole, with the wait
    before it, or not at all. Waves that were cut in two brought some peers above what so many reads at a time can be.
    """

    def __init__(self, tenth: int) -> None:
        self.tenth = tenth
        self.samples = 0
        self.steady_samples = 0
        self.steady_s = 0.0
        self.epoch = EpochSoFar()

    def add(self, samples: int, now_s: float) -> None:
        self.samples += samples
        epoch = self.epoch
        epoch.batches += 1
        if epoch.batches == 1:
            epoch.first_s = now_s
        elif now_s - epoch.last_s >= (epoch.last_s - epoch.first_s) / max(1, epoch.batches - 2):  # longer than its waits so far
            self._end_wave()
            epoch.is_steady = epoch.batches > self.tenth
        if epoch.is_steady:
            epoch.wave_samples += samples
            epoch.wave_s += now_s - epoch.last_s
        epoch.last_s = now_s

    def next_epoch(self) -> None:
        self._end_wave()
        self.epoch = EpochSoFar()

    def _end_wave(self) -> None:
        self.steady_samples += self.epoch.wave_samples
        self.steady_s += self.epoch.wave_s
        self.epoch.wave_samples, self.epoch.wave_s = 0, 0.0


def measure(request: PeerRequest) -> PeerResult:
    task = TASKS[request.task]
    epochs = load_peer(request.peer).open_epochs(task, request.options, Path(request.folder))
    gc.collect()
    print("ready", flush=True)
    started_s = time.perf_counter()
    running = epochs()
    batches = iter(next(running))
    batch = next(batches)
    first_batch_s = time.perf_counter() - started_s
    described = describe(batch)
    complain_if_wrong(task, batch)
    touching = sum(to_numpy(leaf).nbytes for leaf in leaves(batch)) > TOUCH_OVER_BYTES
    window = Window(max(1, task.samples // task.batch_size // 10))
    everything = endless(batches, running, window)
    if not request.whole_epochs:
        run_until(everything, time.perf_counter() + request.warm_s, touching, None)
    before, machine_before_s, opened_s = own_usage(), machine_cpu_s(), time.perf_counter()
    run_until(everything, opened_s + request.seconds, touching, window)
    taken_s, used, machine_s = time.perf_counter() - opened_s, own_usage() - before, machine_cpu_s() - machine_before_s
    memory_bytes = most_memory(everything, touching)
    enough = window.steady_s > request.seconds / 4 and not request.whole_epochs
    return PeerResult(
        samples=window.samples,
        samples_per_s=window.steady_samples / window.steady_s if enough else window.samples / taken_s,
        over_epochs_per_s=window.samples / taken_s,
        first_batch_s=first_batch_s,
        cpu_s_per_1000=used.cpu_s / window.samples * 1000,
        faults_per_sample=used.faults / window.samples,
        batch=described,
        others_cores=max(0.0, machine_s - used.cpu_s) / taken_s,
        memory_bytes=memory_bytes,
    )


def most_memory(batches: Iterator[Any], touching: bool) -> int:
    """While it goes on: looking takes time, so nothing is timed meanwhile."""
    found = []
    for _ in range(MEMORY_LOOKS):
        run_until(batches, time.perf_counter() + MEMORY_EVERY_S, touching, None)
        found.append(memory_of(os.getsid(0)).held_bytes)
    return max(found)


def look_at_batches(request: PeerRequest) -> str:
    """Says how many were right, or raises."""
    from peers.right import Checker

    task = TASKS[request.task]
    running = load_peer(request.peer).open_epochs(task, request.options, Path(request.folder))()
    checker = Checker(task)
    for batch in endless(iter(next(running)), running, Window(1)):
        complain_if_wrong(task, batch)
        checker.look([to_numpy(leaf) for leaf in leaves(batch)])
        if checker.batches >= BATCHES_LOOKED_AT:
            return checker.said()
    raise AssertionError("endless")


def endless(batches: Iterator[Any], running: Iterator[Any], window: Window) -> Iterator[Any]:
    while True:
        yield from batches
        window.next_epoch()
        batches = iter(next(running))


def run_until(batches: Iterator[Any], end_s: float, touching: bool, window: Window | None) -> None:
    """As a user's loop does, the batch of before is held until the next one is here."""
    for batch in batches:
        if touching:
            touch(batch)
        now_s = time.perf_counter()
        if window:
            window.add(samples_in(batch), now_s)
        if now_s > end_s:
            return


def leaves(batch: Any) -> list[Any]:
    """Tensors and arrays of a batch, in order."""
    if isinstance(batch, dict):
        return [leaf for key in sorted(batch) for leaf in leaves(batch[key])]
    if isinstance(batch, (list, tuple)):
        return [leaf for part in batch for leaf in leaves(part)]
    return [batch]


def samples_in(batch: Any) -> int:
    while isinstance(batch, (list, tuple, dict)):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return int(batch.shape[0])


def to_numpy(leaf: Any) -> Any:
    """Without a copy where the peer allows it."""
    import numpy as np

    return leaf.numpy() if hasattr(leaf, "numpy") else np.asarray(leaf)


def touch(batch: Any) -> None:
    for leaf in leaves(batch):
        array = to_numpy(leaf)
        if array.nbytes > PAGE:
            array.reshape(-1)[:: PAGE // array.itemsize].sum()


def describe(batch: Any) -> str:
    return ", ".join(f"{array.dtype}{list(array.shape)}" for array in map(to_numpy, leaves(batch)))


def complain_if_wrong(task: Task, batch: Any) -> None:
    """A peer that gives something else is not measured."""
    first = to_numpy(leaves(batch)[0])
    wanted = {"rows": (16,), "rows-batch": (16,), "images": (3, 224, 224), "jpeg": (3, 224, 224), "slow-reads": (3072,), "tokens": (None,)}
    expected = (task.batch_size, *wanted[task.workload])
    fits = len(first.shape) == len(expected) and all(want in (None, have) for have, want in zip(first.shape, expected, strict=True))
    if not fits:
        raise ValueError(f"the first batch of {task.name} is {describe(batch)}; its first part should have the shape {list(expected)}")


def prepare(request: PeerRequest) -> None:
    """Writes the peer's own files, once; a folder that is there is whole, because it is named last."""
    folder = Path(request.folder)
    if folder.exists():
        return
    unfinished = folder.with_name(f"{folder.name}.unfinished-{os.getpid()}")
    unfinished.mkdir(parents=True)
    load_peer(request.peer).prepare(TASKS[request.task], unfinished)
    unfinished.rename(folder)


def be_as_nice_as_a_session() -> None:
    """Where the kernel shares cores among sessions first (autogroup), how nice a process is counts only within one: ours is told."""
    with contextlib.suppress(OSError):
        if level := os.getpriority(os.PRIO_PROCESS, 0):
            Path("/proc/self/autogroup").write_text(str(level))


def main() -> None:
    be_as_nice_as_a_session()
    request = PeerRequest(**json.loads(sys.argv[1]))
    if request.what == "prepare":
        print("ready", flush=True)
        prepare(request)
        print("prepared", flush=True)
    elif request.what == "right":
        print("ready", flush=True)
        print(look_at_batches(request), flush=True)
    else:
        print(json.dumps(asdict(measure(request))), flush=True)
    sys.stdout.flush()
    os._exit(0)  # what a peer still runs is ended with the session; its own end is not measured


if __name__ == "__main__":
    main()
