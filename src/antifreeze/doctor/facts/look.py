"""One look at a whole tree: states and counters first, then Python's stacks, several processes at a time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from antifreeze.doctor.facts.journal import read_journals
from antifreeze.doctor.facts.machine import CgroupPlace, CpuCounters, MachineCounters, find_cgroup, read_cpu_counters, read_machine_counters
from antifreeze.doctor.facts.model import Frame, ProcessSample
from antifreeze.doctor.facts.proc import Stat, Status, looks_like_python, read_fair_memory, read_stat, read_status
from antifreeze.doctor.facts.stacks import Stacks, read_stacks
from antifreeze.doctor.facts.threads import SeenThread, look_at_threads, with_journal, with_stacks

AT_ONCE = 4
LARGEST_WALKED = 16 << 30
"""Above this, the walk through the page tables takes seconds; PSS is then left out."""


@dataclass(frozen=True)
class SeenProcess:
    stat: Stat
    status: Status
    sample: ProcessSample
    is_python: bool
    threads: dict[int, SeenThread]
    problem: str = ""
    """Why Python's stacks are missing."""


@dataclass(frozen=True)
class Look:
    at_s: float
    processes: dict[int, SeenProcess]
    machine: MachineCounters
    cgroups: dict[CgroupPlace, CpuCounters] = field(default_factory=dict)
    cgroup_of: dict[int, CgroupPlace] = field(default_factory=dict)


def look(pids: list[int], py_spy: str | None, *, fair_memory: bool, native: bool = False) -> Look:
    at_s = time.monotonic()
    seen = {pid: each for pid in pids if (each := _look_at_process(pid, fair_memory)) is not None}
    places = {pid: place for pid in seen if (place := find_cgroup(pid)) is not None}
    found = Look(at_s, seen, read_machine_counters(), {place: read_cpu_counters(place) for place in set(places.values())}, places)
    return found if py_spy is None else replace(found, processes=_with_python(seen, py_spy, native))


def _look_at_process(pid: int, fair_memory: bool) -> SeenProcess | None:
    stat, status = read_stat(pid), read_status(pid)
    if stat is None or status is None:
        return None
    memory = status.memory
    fair = read_fair_memory(pid) if fair_memory and memory.rss < LARGEST_WALKED else None
    if fair is not None:
        memory = replace(memory, pss=fair.pss, private=fair.private, swap=memory.swap if fair.swap is None else fair.swap)
    journals = read_journals(pid)
    sample = ProcessSample(stat.state, stat.cpu_s, time.monotonic(), stat.major_faults, memory, journals.get(pid))
    threads = {tid: with_journal(each, journals.get(tid) if tid != pid else None) for tid, each in look_at_threads(pid).items()}
    return SeenProcess(stat, status, sample, looks_like_python(pid), threads)


def _with_python(seen: dict[int, SeenProcess], py_spy: str, native: bool) -> dict[int, SeenProcess]:
    readable = [pid for pid, process in seen.items() if process.is_python and process.stat.state != "Z"]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="py-spy") as pool:
        stacks = dict(zip(readable, pool.map(lambda pid: read_stacks(py_spy, pid), readable), strict=True))
        natives = dict(zip(readable, pool.map(lambda pid: read_stacks(py_spy, pid, native=True), readable), strict=True)) if native else {}
    return {pid: _with_stacks(pid, process, stacks.get(pid), natives.get(pid)) for pid, process in seen.items()}


def _with_stacks(pid: int, process: SeenProcess, stacks: Stacks | None, native: Stacks | None) -> SeenProcess:
    threads = with_stacks(pid, process.threads, stacks.threads) if stacks else process.threads
    frames = {thread.tid: thread.frames for thread in native.threads} if native else {}
    threads = {tid: replace(each, sample=replace(each.sample, native=frames.get(tid, ()))) for tid, each in threads.items()}
    return replace(process, threads=threads, problem=stacks.problem if stacks else "")


def main_frames(py_spy: str | None, pid: int) -> tuple[Frame, ...]:
    """Where the main thread of some other process stands; used for those who hold what the patient waits for."""
    if py_spy is None or not looks_like_python(pid):
        return ()
    return next((thread.frames for thread in read_stacks(py_spy, pid).threads if thread.name == "MainThread" or thread.tid == pid), ())
