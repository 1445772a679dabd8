"""Small made-up examinations for the tables of pure rules: a loop with two workers, where one thing at a time is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from antifreeze.doctor.facts.model import (
    Call,
    Descriptor,
    Examination,
    Frame,
    Futex,
    Machine,
    Memory,
    Process,
    ProcessSample,
    Thread,
    ThreadSample,
)

TORCH = "/env/lib/python3.11/site-packages/torch/utils/data"
LIB = "/usr/lib/python3.11"
DATA, TRAIN = "/home/me/data.py", "/home/me/train.py"
LOOP, W0, W1 = 100, 101, 102
WINDOW_S = 3.0

POLL = Call("poll", descriptors=(3,), limit_s=5.0)
PIPES = (Descriptor(3, "pipe:[7]", "pipe", inode=7), Descriptor(4, "pipe:[7]", "pipe", inode=7, readable=False, writable=True))


def frame(function: str, file: str, line: int = 1, **values: object) -> Frame:
    return Frame(function, file, line, tuple((name, str(value)) for name, value in values.items()))


WAITING = (
    frame("wait", f"{LIB}/multiprocessing/connection.py"),
    frame("get", f"{LIB}/multiprocessing/queues.py"),
    frame("_MultiProcessingDataLoaderIter._try_get_data", f"{TORCH}/dataloader.py"),
    frame("_MultiProcessingDataLoaderIter._next_data", f"{TORCH}/dataloader.py", worker_id=0, idx=9),
    frame("<module>", TRAIN, 20),
)
COMPUTING = (frame("step", TRAIN, 31), frame("<module>", TRAIN, 21))
FEEDER = (frame("Condition.wait", f"{LIB}/threading.py"), frame("Queue._feed", f"{LIB}/multiprocessing/queues.py"))


def worker_loop(number: int, **values: object) -> tuple[Frame, ...]:
    return (frame("_worker_loop", f"{TORCH}/_utils/worker.py", 374, worker_id=number, num_workers=2, **values),)


def idle(number: int) -> tuple[Frame, ...]:
    return (frame("wait", f"{LIB}/multiprocessing/connection.py"), frame("get", f"{LIB}/multiprocessing/queues.py"), *worker_loop(number))


def loading(number: int, *inner: Frame, batch: int = 1000, sample: int = 40) -> tuple[Frame, ...]:
    user = inner or (frame("Data.__getitem__", DATA, 88, index=sample),)
    return (*user, frame("fetch", f"{TORCH}/_utils/fetch.py", 54, idx=sample), *worker_loop(number, idx=batch))


def sample(frames: tuple[Frame, ...] = (), **changes: Any) -> ThreadSample:
    """A thread that slept since long before the first look."""
    base = ThreadSample("S", cpu_s=1.0, switches=10, asleep_s=60.0, wchan="futex_do_wait", frames=frames)
    return replace(base, **changes)


def thread(tid: int, first: ThreadSample, last: ThreadSample | None = None, python_name: str = "MainThread") -> Thread:
    return Thread(tid, "python", python_name, first, last or first)


def still(tid: int, frames: tuple[Frame, ...], python_name: str = "MainThread", **changes: Any) -> Thread:
    return thread(tid, sample(frames, **changes), python_name=python_name)


def running(tid: int, frames: tuple[Frame, ...], later: tuple[Frame, ...] | None = None, **changes: Any) -> Thread:
    """A thread that used its core all the time."""
    first = sample(frames, state="R", asleep_s=0.0, wchan="", **changes)
    return thread(tid, first, replace(first, cpu_s=first.cpu_s + WINDOW_S, switches=50, frames=later or frames))


def process(pid: int, *threads: Thread, **changes: Any) -> Process:
    state = threads[0].last.state if threads and threads[0].last else "S"
    base = Process(
        pid=pid,
        parent=LOOP if pid != LOOP else 1,
        name="python" if pid == LOOP else "pt_data_worker",
        command=("python", "train.py"),
        is_python=True,
        age_s=600.0,
        cores=(0, 1, 2, 3),
        descriptors=PIPES,
        descriptor_count=20,
        descriptor_limit=1024,
        first=ProcessSample(state, 1.0, at_s=0.0, memory=Memory(rss=10**8, pss=8 * 10**7, private=5 * 10**7)),
        last=ProcessSample(state, 1.0, at_s=WINDOW_S, memory=Memory(rss=10**8, pss=8 * 10**7, private=5 * 10**7)),
        threads=threads,
    )
    return replace(base, **changes)


def feeder(tid: int, *, ran: bool = False) -> Thread:
    first = sample(FEEDER)
    return thread(tid, first, replace(first, switches=11, asleep_s=0.5) if ran else first, "QueueFeederThread")


def loop_process(frames: tuple[Frame, ...] = WAITING, *, moving: bool = False, **changes: Any) -> Process:
    main = still(LOOP, frames, wchan="poll_schedule_timeout", call=POLL if frames is WAITING else None)
    return process(LOOP, main, feeder(200, ran=moving), feeder(201, ran=moving), **changes)


def idle_worker(pid: int, number: int, **changes: Any) -> Process:
    return process(pid, still(pid, idle(number), wchan="poll_schedule_timeout", call=POLL), feeder(pid + 200), **changes)


def stuck_worker(pid: int, number: int, *inner: Frame, call: Call | None = None, **changes: Any) -> Process:
    """At work on the same sample in both looks, asleep in the given call."""
    return process(pid, still(pid, loading(number, *inner), call=call, **changes), feeder(pid + 200))


def lock(private: bool = True, **place: Any) -> Call:
    return Call("futex", futex=Futex(0x7000, private, **place))


def exam(*processes: Process, **changes: Any) -> Examination:
    """Where there is a worker 0, there is an idle worker 1 too, unless another one is given."""
    pids = [each.pid for each in processes]
    if W0 in pids and W1 not in pids:
        processes = (*processes, idle_worker(W1, 1))
    base = Examination(LOOP, WINDOW_S, processes, machine=Machine(cores=4, memory_total=10**10, memory_available=5 * 10**9))
    return replace(base, **changes)
