"""One look at all threads of a process."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from antifreeze.doctor.facts.calls import decode_call
from antifreeze.doctor.facts.descriptors import Mounts, epoll_targets, filesystem_of, read_mounts
from antifreeze.doctor.facts.model import Call, JournalEntry, ThreadSample
from antifreeze.doctor.facts.native import libraries_on_stack
from antifreeze.doctor.facts.proc import (
    Mapping,
    find_mapping,
    read_mappings,
    read_memory,
    read_stat,
    read_status,
    read_text,
    read_uptime_s,
    thread_ids,
)
from antifreeze.doctor.facts.stacks import PythonThread

EXEC_START = re.compile(r"^se\.exec_start\s*:\s*([\d.]+)", re.MULTILINE)


@dataclass(frozen=True)
class SeenThread:
    name: str
    python_name: str
    sample: ThreadSample


def look_at_threads(pid: int) -> dict[int, SeenThread]:
    mappings, mounts, scheduler_ms = read_mappings(pid), read_mounts(pid), _scheduler_clock_ms()
    seen = {tid: _look_at_thread(pid, tid, mappings, mounts, scheduler_ms) for tid in thread_ids(pid)}
    return {tid: thread for tid, thread in seen.items() if thread is not None}


def _look_at_thread(pid: int, tid: int, mappings: list[Mapping], mounts: Mounts, scheduler_ms: float | None) -> SeenThread | None:
    folder = f"/proc/{pid}/task/{tid}"
    stat, status = read_stat(pid, tid), read_status(pid, tid)
    if stat is None or status is None:
        return None
    times = (read_text(f"{folder}/schedstat") or "").split()
    call = _read_call(pid, folder, mappings, mounts)
    sample = ThreadSample(
        state=stat.state,
        cpu_s=int(times[0]) / 1e9 if len(times) > 1 else stat.cpu_s,
        delayed_s=int(times[1]) / 1e9 if len(times) > 1 else 0.0,
        switches=status.voluntary_switches + status.forced_switches,
        asleep_s=_asleep_s(folder, stat.state, scheduler_ms),
        wchan=(read_text(f"{folder}/wchan") or "0").partition(".")[0].removeprefix("0"),
        call=call,
        libraries=_libraries(pid, call, mappings),
        age_s=max(0.0, read_uptime_s() - stat.started_s),
    )
    return SeenThread(stat.name, "", sample)


def _read_call(pid: int, folder: str, mappings: list[Mapping], mounts: Mounts) -> Call | None:
    call = decode_call(read_text(f"{folder}/syscall") or "", lambda address, size: read_memory(pid, address, size), mappings)
    if call is not None and call.name.startswith("epoll") and call.descriptors:
        return replace(call, descriptors=epoll_targets(pid, call.descriptors[0]))
    if call is not None and call.path is not None:
        return replace(call, filesystem=filesystem_of(call.path, mounts))
    return call


def _libraries(pid: int, call: Call | None, mappings: list[Mapping]) -> tuple[str, ...]:
    """Only for a thread that waits for a lock: there the name of the library is what one wants to know."""
    if call is None or call.name != "futex":
        return ()
    return libraries_on_stack(call.stack_pointer, mappings, lambda address, size: read_memory(pid, address, size))


def _scheduler_clock_ms() -> float | None:
    """Now, on the scheduler's clock: our own thread runs at this moment."""
    return exec_start_ms(read_text("/proc/thread-self/sched") or "")


def exec_start_ms(text: str) -> float | None:
    match = EXEC_START.search(text)
    return float(match.group(1)) if match else None


def _asleep_s(folder: str, state: str, now_ms: float | None) -> float | None:
    if state == "R":
        return 0.0
    last_ms = exec_start_ms(read_text(f"{folder}/sched") or "")
    return None if last_ms is None or now_ms is None else max(0.0, (now_ms - last_ms) / 1000)


def with_journal(seen: SeenThread, entry: JournalEntry | None) -> SeenThread:
    return seen if entry is None else replace(seen, sample=replace(seen.sample, journal=entry))


def with_stacks(pid: int, seen: dict[int, SeenThread], stacks: tuple[PythonThread, ...]) -> dict[int, SeenThread]:
    joined = dict(seen)
    unknown = any(stack.tid not in seen for stack in stacks)
    for stack, tid in zip(stacks, whose(pid, seen, stacks, read_mappings(pid) if unknown else []), strict=True):
        if tid is not None:
            old = joined[tid]
            joined[tid] = replace(old, python_name=stack.name, sample=replace(old.sample, frames=stack.frames, owns_gil=stack.owns_gil))
    return joined


def whose(pid: int, seen: dict[int, SeenThread], stacks: tuple[PythonThread, ...], mappings: list[Mapping]) -> list[int | None]:
    """Pure. The thread of each stack. Before Python 3.11 the interpreter does not know the kernel's number; its own is an address at the
    top of the mapping that is the thread's stack. A thread that runs does not show its stack: one is told by being the only one left."""
    tids = [stack.tid if stack.tid in seen else _thread_of(pid, stack, seen, mappings) for stack in stacks]
    running = [tid for tid, each in seen.items() if tid not in tids and each.sample.call is None]
    if tids.count(None) == 1 and len(running) == 1:
        tids[tids.index(None)] = running[0]
    return tids


def _thread_of(pid: int, stack: PythonThread, seen: dict[int, SeenThread], mappings: list[Mapping]) -> int | None:
    if stack.name == "MainThread" or len(seen) == 1:
        return pid if pid in seen else None
    place = find_mapping(mappings, stack.pthread)
    if place is None:
        return None
    calls = {tid: each.sample.call for tid, each in seen.items()}
    return next((tid for tid, call in calls.items() if call is not None and place.start <= call.stack_pointer < stack.pthread), None)
