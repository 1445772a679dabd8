"""Two looks at a patient, some seconds apart, joined into one Examination. Nothing here stops, signals or changes it.

    check_patient ─> look ─ wait window_s ─> look ─> join ─> Examination

1. The patient ends before the second look: PatientEnded.
2. A process of the tree ends or starts between the looks: it has only one of the two samples.
3. Stacks cannot be read: the examination goes on without them, and `blindness` says why and what to allow.
4. The process is gone, or goes meanwhile, but its workers live on as orphans: they are examined instead.
"""

from __future__ import annotations

import datetime
import os
import time
from dataclasses import dataclass, field, replace

from antifreeze.doctor.errors import PatientEnded
from antifreeze.doctor.facts.descriptors import count_descriptors, filesystem_of, read_descriptors, read_mounts, read_stderr_tail
from antifreeze.doctor.facts.holders import find_holders, locks_that_matter, read_file_locks
from antifreeze.doctor.facts.look import Look, SeenProcess, look, main_frames
from antifreeze.doctor.facts.machine import frozen_by, read_cgroup, read_machine
from antifreeze.doctor.facts.model import Blindness, Cgroup, Examination, Frame, Process, Thread
from antifreeze.doctor.facts.names import NURSERY, WORKER_NAMES, is_library, is_remote
from antifreeze.doctor.facts.permission import explain_no_py_spy, explain_refusal
from antifreeze.doctor.facts.proc import (
    is_alive,
    is_dead,
    read_command,
    read_descriptor_limit,
    read_rank,
    read_shm_space,
    read_text,
    read_uptime_s,
)
from antifreeze.doctor.facts.sockets import read_sockets
from antifreeze.doctor.facts.stacks import find_py_spy
from antifreeze.doctor.facts.threads import SeenThread
from antifreeze.doctor.facts.tree import below, check_patient, find_orphans, find_root, orphans_of, parents

GLANCE_S, MOST_LOOPS = 0.25, 4
MOST_SOURCES = 50
LARGEST_SOURCE = 1 << 20


@dataclass(frozen=True)
class Visit:
    """A patient, and the first look at it; every later look is compared with that one."""

    asked: int
    root: int
    left_behind: tuple[int, ...]
    """Workers of a process that is gone."""
    py_spy: str | None
    first: Look
    glances: dict[int, list[tuple[Frame, ...]]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Visit of process {self.root}: {len(self.first.processes)} processes>"

    def examine(self, window_s: float, *, native: bool = False) -> Examination:
        """Waits until `window_s` after the first look, and looks again. `native` stops each process for some milliseconds."""
        self._glance_until(self.first.at_s + window_s)
        found = self._compare(look(_pids(self.root, self.left_behind), self.py_spy, fair_memory=True, native=native))
        if self.left_behind or not is_dead(self.root):
            return found
        if orphans_of(self.root):
            return begin_visit(self.root).examine(window_s, native=native)
        raise PatientEnded(f"process {self.root} ended while it was examined, after {time.monotonic() - self.first.at_s:.1f} s")

    def _glance_until(self, end_s: float) -> None:
        """How often a loop waits for data is told by looking at it often; its workers are looked at twice only."""
        loops = _likely_loops(self.first) if self.py_spy else []
        while (rest_s := end_s - time.monotonic()) > GLANCE_S:
            time.sleep(GLANCE_S)
            for pid in loops:
                frames = main_frames(self.py_spy, pid)
                if frames:
                    self.glances.setdefault(pid, []).append(_absolute(pid, frames))
        time.sleep(max(0.0, rest_s))

    def _compare(self, last: Look) -> Examination:
        first, py_spy = self.first, self.py_spy
        processes = tuple(replace(process, glances=tuple(self.glances.get(process.pid, ()))) for process in _join(first, last))
        inside = {process.pid for process in processes}
        locks = locks_that_matter(read_file_locks(), inside)
        orphans = look(find_orphans(inside), py_spy, fair_memory=True)
        return Examination(
            patient=self.root,
            window_s=last.at_s - first.at_s,
            processes=processes,
            asked=self.asked,
            taken_at=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
            machine=read_machine(first.machine, last.machine),
            cgroups=_cgroups(first, last),
            file_locks=locks,
            holders=find_holders(processes, locks, py_spy),
            orphans=_join(Look(0.0, {}, last.machine), orphans),
            sources=_read_sources(processes),
            blindness=_blindness(py_spy, first, last),
        )


def begin_visit(pid: int) -> Visit:
    """Raises a PatientError where the process cannot be examined."""
    left_behind = tuple(orphans_of(pid)) if pid > 0 and is_dead(pid) else ()
    if not left_behind:
        check_patient(pid)
    root = pid if left_behind else find_root(pid)
    py_spy = find_py_spy()
    return Visit(pid, root, left_behind, py_spy, look(_pids(root, left_behind), py_spy, fair_memory=False))


def examine(pid: int, window_s: float = 3.0) -> Examination:
    return begin_visit(pid).examine(window_s)


def _likely_loops(seen: Look) -> list[int]:
    """Python processes that have children and are no workers themselves; else the root."""
    parents_seen = {process.stat.parent for process in seen.processes.values()}
    candidates = [pid for pid, process in seen.processes.items() if process.is_python and process.stat.name not in (*WORKER_NAMES, NURSERY)]
    return ([pid for pid in candidates if pid in parents_seen] or candidates)[:MOST_LOOPS]


def _pids(root: int, left_behind: tuple[int, ...]) -> list[int]:
    """All of the tree but ourselves: the patient may be the shell that started us."""
    return list(left_behind) or [pid for pid in below(root, parents()) if pid != os.getpid()]


def _join(first: Look, last: Look) -> tuple[Process, ...]:
    uptime_s = read_uptime_s()
    return tuple(_join_process(pid, first, last, uptime_s) for pid in last.processes)


def _join_process(pid: int, first: Look, last: Look, uptime_s: float) -> Process:
    seen, before = last.processes[pid], first.processes.get(pid)
    mounts = read_mounts(pid)
    place = last.cgroup_of.get(pid)
    return Process(
        pid=pid,
        parent=seen.stat.parent,
        name=seen.stat.name,
        command=read_command(pid),
        is_python=seen.is_python,
        age_s=max(0.0, uptime_s - seen.stat.started_s),
        group=seen.stat.group,
        session=seen.stat.session,
        user=seen.status.user,
        tracer=seen.status.tracer,
        exit_status=seen.stat.exit_status if seen.stat.state == "Z" else None,
        cores=seen.status.cores,
        descriptors=read_descriptors(pid, mounts, read_sockets(pid)),
        descriptor_count=count_descriptors(pid) or 0,
        descriptor_limit=read_descriptor_limit(pid),
        rank=read_rank(pid),
        cgroup=place.name if place else "",
        frozen_by=frozen_by(place) if place else "",
        shm=read_shm_space(pid),
        stderr_tail=read_stderr_tail(pid, mounts),
        first=before.sample if before else None,
        last=seen.sample,
        threads=_join_threads(pid, before, seen),
    )


def _join_threads(pid: int, before: SeenProcess | None, seen: SeenProcess) -> tuple[Thread, ...]:
    earlier = before.threads if before else {}
    return tuple(_join_thread(pid, tid, earlier.get(tid), thread) for tid, thread in seen.threads.items())


def _join_thread(pid: int, tid: int, before: SeenThread | None, seen: SeenThread) -> Thread:
    first = replace(before.sample, frames=_absolute(pid, before.sample.frames)) if before else None
    last = replace(seen.sample, frames=_absolute(pid, seen.sample.frames))
    return Thread(tid, seen.name, seen.python_name or (before.python_name if before else ""), first, last)


def _absolute(pid: int, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """A script named on the command line keeps its relative name in its frames."""
    if all(frame.file.startswith(("/", "<")) for frame in frames):
        return frames
    try:
        folder = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return frames
    return tuple(frame if frame.file.startswith(("/", "<")) else replace(frame, file=os.path.join(folder, frame.file)) for frame in frames)


def _cgroups(first: Look, last: Look) -> tuple[Cgroup, ...]:
    return tuple(read_cgroup(place, first.cgroups.get(place, after), after) for place, after in last.cgroups.items())


def _read_sources(processes: tuple[Process, ...]) -> tuple[tuple[str, str], ...]:
    """The user's own files on the stacks, read through the process's root; never from a file system that may be the one that hangs."""
    wanted: dict[str, int] = {}
    for process in processes:
        for thread in process.threads:
            for sample in (thread.first, thread.last):
                wanted.update({frame.file: process.pid for frame in (sample.frames if sample else ()) if not is_library(frame.file)})
    found = {}
    for file, pid in list(wanted.items())[:MOST_SOURCES]:
        text = None if is_remote(filesystem_of(file, read_mounts(pid))) else read_text(f"/proc/{pid}/root{file}", LARGEST_SOURCE)
        if text:
            found[file] = text
    return tuple(found.items())


def _blindness(py_spy: str | None, first: Look, last: Look) -> tuple[Blindness, ...]:
    if py_spy is None:
        return (explain_no_py_spy(),)
    problems = [(pid, process.problem) for each in (first, last) for pid, process in each.processes.items() if process.problem]
    explained = (explain_refusal(pid, problem) for pid, problem in problems if is_alive(pid) and not _is_zombie(pid, last))
    return tuple(dict.fromkeys(explained))


def _is_zombie(pid: int, seen: Look) -> bool:
    return pid not in seen.processes or seen.processes[pid].stat.state == "Z"
