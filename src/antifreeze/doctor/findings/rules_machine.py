"""The machine starves the workers: too few cores, a quota, memory that is swapped, a frozen cgroup."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.doctor.facts.model import Cgroup, Process
from antifreeze.doctor.findings.case import Case, LoaderCase, Worker
from antifreeze.doctor.findings.model import Confidence, Finding, Severity, finding
from antifreeze.doctor.findings.rules_deaths import cgroup_of
from antifreeze.doctor.findings.stalls import loop_line, place_text
from antifreeze.doctor.findings.waits import WaitKind
from antifreeze.doctor.findings.words import bytes_text, listed, percent, plural, seconds_text

DELAYED_SHARE, THROTTLED_SHARE, NEARLY_FULL = 0.3, 0.25, 0.97
SWAPPED_PAGES_PER_S, FAULTS_PER_S = 100, 50
PAGE = 4096
HANDLES = (".h5", ".hdf5", ".hdf", ".he5", ".mdb", ".lmdb", ".zip", ".sqlite", ".db")


def delayed_workers(loader: LoaderCase) -> list[Process]:
    return [worker.process for worker in loader.workers if worker.process.delayed_share > DELAYED_SHARE and not worker.threaded]


def few_cores(case: Case) -> Iterator[Finding]:
    """Workers that want to run at the same time, and may use fewer cores than the machine has."""
    for loader in case.loaders:
        delayed = delayed_workers(loader)
        allowed = sorted({core for process in delayed for core in process.cores})
        if len(delayed) < 2 or not allowed or len(allowed) >= min(case.exam.machine.cores, len(delayed)):
            continue
        cores = f"core {allowed[0]}" if len(allowed) == 1 else f"cores {listed(allowed)}"
        worst = max(process.delayed_share for process in delayed)
        yield finding(
            "one-core-affinity" if len(allowed) == 1 else "few-cores-affinity",
            f"the {plural(len(loader.workers), 'worker')} of {loader.name} may use only {cores} of {case.exam.machine.cores}, "
            f"and wait for a free one up to {percent(worst)} of the time",
            evidence=[_share_line(process) for process in delayed[:8]],
            advice=[
                "who set it? `taskset -p` of the parents, Slurm (--cpus-per-task, --cpu-bind), OMP_PROC_BIND, an imported library",
                "undo it in worker_init_fn: os.sched_setaffinity(0, range(os.cpu_count()))",
                "antifreeze.DataLoader gives its workers all cores that the cgroup allows",
            ],
            pid=loader.process.pid,
        )


def _share_line(process: Process) -> str:
    return f"pid {process.pid}: ran {percent(process.cpu_share)} of the time, waited for a core {percent(process.delayed_share)}"


def too_many_workers(case: Case) -> Iterator[Finding]:
    """More runnable workers than cores, on all cores: no disease, but fewer would do."""
    for loader in case.loaders:
        delayed = delayed_workers(loader)
        cores = min(len(loader.process.cores) or case.exam.machine.cores, case.exam.machine.cores)
        allowed = {core for process in delayed for core in process.cores}
        if len(delayed) < 2 or len(loader.workers) <= cores or len(allowed) < case.exam.machine.cores:
            continue
        worst = percent(max(process.delayed_share for process in delayed))
        yield finding(
            "too-many-workers",
            f"{plural(len(loader.workers), 'worker')} compete for {plural(cores, 'core')}: each waits for one up to {worst} of the time",
            evidence=[_share_line(process) for process in delayed[:8]],
            advice=[f"num_workers={cores} will be no slower and takes less memory; `antifreeze profile` measures it"],
            severity=Severity.SLOW,
            confidence=Confidence.LIKELY,
            pid=loader.process.pid,
        )


def machine_overloaded(case: Case) -> Iterator[Finding]:
    """Workers wait for cores, though there are enough for all of them: other programs have them."""
    cores = case.exam.machine.cores
    for loader in case.loaders:
        delayed = delayed_workers(loader)
        ours = sum(process.cpu_share for process in case.exam.processes)
        if not delayed or len(loader.workers) > cores or case.exam.machine.load < 1.5 * cores or ours > 0.8 * cores:
            continue
        yield finding(
            "machine-overloaded",
            f"other programs take the cores: this one got {ours:.1f} of {cores}, and its workers waited for a free one up to "
            f"{percent(max(process.delayed_share for process in delayed))} of the time",
            evidence=[
                f"load average {case.exam.machine.load:.1f} on {plural(cores, 'core')}",
                *(_share_line(process) for process in delayed[:8]),
            ],
            advice=["`top` shows who they are; move one of the programs, or use fewer workers in all of them"],
            severity=Severity.SLOW,
            confidence=Confidence.LIKELY,
            pid=loader.process.pid,
        )


def cpu_throttled(case: Case) -> Iterator[Finding]:
    for loader in case.loaders:
        cgroup = cgroup_of(loader.process, case)
        if cgroup is None or not cgroup.periods or cgroup.throttled_periods / cgroup.periods < THROTTLED_SHARE:
            continue
        quota = f"{cgroup.cpu_quota_cores:.2g} cores" if cgroup.cpu_quota_cores else "less"
        share = percent(cgroup.throttled_periods / cgroup.periods)
        yield finding(
            "cpu-throttled",
            f"the container may use {quota}, and {loader.name} with {plural(len(loader.workers), 'worker')} wants more: "
            f"the kernel stopped it in {share} of all periods",
            evidence=[
                f"cgroup {cgroup.path}: {cgroup.throttled_periods} of {cgroup.periods} periods throttled in {seconds_text(case.window_s)}, "
                f"{seconds_text(cgroup.throttled_s)} in all",
                f"the machine has {plural(case.exam.machine.cores, 'core')}",
            ],
            advice=[
                "raise the quota: docker --cpus, Kubernetes resources.limits.cpu",
                f"or use about {max(1, round(cgroup.cpu_quota_cores or 1))} workers: torch counts the machine's cores and not the quota",
            ],
            pid=loader.process.pid,
        )


def swapping(case: Case) -> Iterator[Finding]:
    machine = case.exam.machine
    rate = (machine.swapped_in + machine.swapped_out) / case.window_s if case.window_s else 0.0
    swapped = {process.pid: process.last.memory.swap for process in case.exam.processes if process.last and process.last.memory}
    held = sum(swapped.values())
    if rate < SWAPPED_PAGES_PER_S or not held:
        return
    worst = max(swapped, key=lambda pid: swapped[pid])
    faults = {process.pid: _faults_per_s(process, case) for process in case.exam.processes}
    waiting = next((worker for worker in case.workers if worker.wait.kind is WaitKind.DISK and worker.place), None)
    limited = [cgroup for cgroup in case.exam.cgroups if _is_nearly_full(cgroup)]
    whose = "its container" if limited else "the machine"
    yield finding(
        "swapping",
        f"the program does not fit into the memory of {whose}: {bytes_text(held)} of it is on the disk, and what is needed comes back at "
        f"{bytes_text(machine.swapped_in * PAGE / case.window_s)}/s{_waits_for_pages(waiting)}",
        evidence=[
            f"in {seconds_text(case.window_s)}: {bytes_text(machine.swapped_in * PAGE)} in, {bytes_text(machine.swapped_out * PAGE)} out",
            *(f"the container uses {bytes_text(each.memory_used)} of its {bytes_text(each.memory_limit)}" for each in limited),
            f"{bytes_text(machine.memory_available)} of {bytes_text(machine.memory_total)} memory of the machine available",
            f"most of it is process {worst} ({bytes_text(swapped[worst])}); {_readers(faults)}",
        ],
        advice=[
            "fewer workers, smaller prefetch_factor and batch; memory-map big arrays instead of loading them in __init__",
            "give the container more memory (`docker run -m`, resources.limits.memory, Slurm --mem)" if limited else "more memory",
        ],
        confidence=Confidence.CERTAIN if max(faults.values(), default=0.0) > FAULTS_PER_S else Confidence.LIKELY,
        where=waiting.place if waiting else None,
        pid=waiting.process.pid if waiting else worst,
        worker=waiting.number if waiting else None,
    )


def _waits_for_pages(worker: Worker | None) -> str:
    return f"; {worker.name} waits for it{place_text(worker)}" if worker else ""


def _readers(faults: dict[int, float]) -> str:
    busiest = sorted((pid for pid in faults if faults[pid] >= 1), key=lambda pid: -faults[pid])[:4]
    return f"pages read back per second: {listed(f'{faults[pid]:.0f} by pid {pid}' for pid in busiest)}"


def _faults_per_s(process: Process, case: Case) -> float:
    grown = process.last.major_faults - process.first.major_faults if process.first and process.last else 0
    return grown / case.window_s if case.window_s else 0.0


def frozen_cgroup(case: Case) -> Iterator[Finding]:
    """By the file that pauses them: it may hold the whole program, or some workers of it."""
    paused: dict[str, list[Process]] = {}
    for process in case.exam.processes:
        if process.frozen_by:
            paused.setdefault(process.frozen_by, []).append(process)
    for switch, processes in paused.items():
        everybody = len(processes) == len(case.exam.processes)
        folder, _, file = switch.rpartition("/")
        who = (
            "the container is paused: its" if everybody else f"{listed((case.name_of(each.pid) for each in processes), most=4)} cannot run:"
        )
        yield finding(
            "frozen-cgroup",
            f"{who} cgroup {folder} is frozen",
            evidence=[
                f"the kernel's freezer holds {len(processes)} of the program's {len(case.exam.processes)} processes: "
                f"{listed((f'pid {each.pid}' for each in processes), most=8)}",
                *(loop_line(loader) for loader in case.loaders if loader.process not in processes),
            ],
            advice=[
                "let it run again, where it was paused: `docker unpause`, `podman unpause`, the batch system that suspended the job",
                f"or here: `echo {'0' if file == 'cgroup.freeze' else 'THAWED'} > {switch}`",
            ],
            pid=processes[0].pid,
        )


def _is_nearly_full(cgroup: Cgroup) -> bool:
    return bool(cgroup.memory_limit and cgroup.memory_used and cgroup.memory_used / cgroup.memory_limit > NEARLY_FULL)


def memory_nearly_full(case: Case) -> Iterator[Finding]:
    for cgroup in filter(_is_nearly_full, case.exam.cgroups):
        yield finding(
            "memory-nearly-full",
            f"the container uses {bytes_text(cgroup.memory_used)} of its {bytes_text(cgroup.memory_limit)} of memory: "
            "the next batch may be one too many",
            evidence=_largest(case),
            advice=["part of it may be file cache, which the kernel gives back; watch it (`--watch`), and use fewer workers if it grows"],
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            pid=case.exam.patient,
        )


def _largest(case: Case) -> list[str]:
    known = [(each.last.memory.pss or each.last.memory.rss, each) for each in case.exam.processes if each.last and each.last.memory]
    return [f"pid {process.pid} ({process.name}): {bytes_text(size)}" for size, process in sorted(known, key=lambda each: -each[0])[:4]]


def inherited_handles(case: Case) -> Iterator[Finding]:
    """The same HDF5 or LMDB file in the loop and its workers, at the same descriptor: it was opened before the fork."""
    for loader in case.loaders:
        parents = {(each.number, each.target) for each in loader.process.descriptors if each.target.lower().endswith(HANDLES)}
        workers = [worker.process for worker in loader.workers if worker.process.pid in case.started_by_fork and not worker.is_loop]
        shared = {each.target for process in workers for each in process.descriptors if (each.number, each.target) in parents}
        if shared:
            yield finding(
                "handle-opened-before-fork",
                f"{listed(sorted(shared), most=2)} was opened before the workers were forked: they all share its position and its locks",
                evidence=[f"it is open at the same descriptor in process {loader.process.pid} and in its workers"],
                advice=["open it in the worker, at the first __getitem__ or in worker_init_fn: shared handles give wrong data, or hang"],
                severity=Severity.NOTE,
                confidence=Confidence.LIKELY,
                pid=loader.process.pid,
            )
