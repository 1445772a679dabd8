"""The machine starves the workers: too few cores, a quota, memory that is swapped, a frozen cgroup."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.doctor.facts.model import Cgroup, Process
from antifreeze.doctor.findings.case import Case, LoaderCase
from antifreeze.doctor.findings.model import Confidence, Finding, Severity
from antifreeze.doctor.findings.words import bytes_text, listed, percent, plural, seconds_text

DELAYED_SHARE, THROTTLED_SHARE = 0.3, 0.25
SWAPPED_PAGES_PER_S, FAULTS_PER_S = 100, 50
NEARLY_FULL = 0.97
PAGE = 4096


def one_core_affinity(case: Case) -> Iterator[Finding]:
    """Workers that want to run at the same time, and may use fewer cores than the machine has."""
    for loader in case.loaders:
        delayed = [worker.process for worker in loader.workers if delayed_share(worker.process, case) > DELAYED_SHARE]
        allowed = {core for process in delayed for core in process.cores}
        if len(delayed) < 2 or not allowed or len(allowed) >= min(case.exam.machine.cores, len(delayed)):
            continue
        worst = max(delayed_share(process, case) for process in delayed)
        yield Finding(
            "one-core-affinity" if len(allowed) == 1 else "few-cores-affinity",
            f"{plural(len(loader.workers), 'worker')} of {loader.name} may use only core {listed(sorted(allowed))} of {case.exam.machine.cores}: "
            f"they wait for it up to {percent(worst)} of the time",
            Severity.DISEASE,
            Confidence.CERTAIN,
            tuple(
                f"pid {process.pid}: runnable but not running for {percent(delayed_share(process, case))}, used {percent(cpu_share(process, case))} CPU"
                for process in delayed[:8]
            ),
            (
                "who set it? `taskset -p PID` of the parents, Slurm's --cpus-per-task and --cpu-bind, OMP_PROC_BIND/GOMP_CPU_AFFINITY, an imported library",
                "undo it in worker_init_fn: os.sched_setaffinity(0, range(os.cpu_count()))",
                "antifreeze.DataLoader gives its workers all cores that the cgroup allows",
            ),
            pid=loader.process.pid,
        )


def cpu_throttled(case: Case) -> Iterator[Finding]:
    for loader in case.loaders:
        cgroup = cgroup_of(loader.process, case)
        if cgroup is None or not cgroup.periods or cgroup.throttled_periods / cgroup.periods < THROTTLED_SHARE:
            continue
        quota = f"{cgroup.cpu_quota_cores:.2g} cores" if cgroup.cpu_quota_cores else "its quota"
        yield Finding(
            "cpu-throttled",
            f"the container may use {quota} and {loader.name} with {plural(len(loader.workers), 'worker')} wants more: the kernel stopped it in "
            f"{percent(cgroup.throttled_periods / cgroup.periods)} of all periods",
            Severity.DISEASE,
            Confidence.CERTAIN,
            (
                f"cgroup {cgroup.path}: {cgroup.throttled_periods} of {cgroup.periods} periods throttled, {seconds_text(cgroup.throttled_s)} in "
                f"{seconds_text(case.window_s)}",
                f"the machine has {plural(case.exam.machine.cores, 'core')}, the quota is {quota}",
            ),
            (
                "raise the quota (docker --cpus, Kubernetes resources.limits.cpu), or",
                f"use about {max(1, round(cgroup.cpu_quota_cores or 1))} workers; torch counts the machine's cores and not the quota",
            ),
            pid=loader.process.pid,
        )


def swapping(case: Case) -> Iterator[Finding]:
    machine = case.exam.machine
    rate = (machine.swapped_in + machine.swapped_out) / case.window_s if case.window_s else 0.0
    swapped = [(process, process.last.memory.swap) for process in case.exam.processes if process.last and process.last.memory]
    faults = {process.pid: _faults_per_s(process, case) for process in case.exam.processes}
    held = sum(size for _process, size in swapped)
    if rate < SWAPPED_PAGES_PER_S or not held:
        return
    worst = max(swapped, key=lambda each: each[1])[0]
    yield Finding(
        "swapping",
        f"the machine is swapping ({bytes_text(rate * PAGE)}/s) and {bytes_text(held)} of this program is on the disk: everything waits for it",
        Severity.DISEASE,
        Confidence.CERTAIN if max(faults.values(), default=0.0) > FAULTS_PER_S else Confidence.LIKELY,
        (
            f"swapped in {bytes_text(machine.swapped_in * PAGE)}, out {bytes_text(machine.swapped_out * PAGE)} in {seconds_text(case.window_s)}",
            f"{bytes_text(machine.memory_available)} of {bytes_text(machine.memory_total)} memory available",
            f"most of it: pid {worst.pid}, {faults[worst.pid]:.0f} page reads per second",
        ),
        ("fewer workers, smaller prefetch_factor and batch; memory-map big arrays and do not load them in __init__", "more memory"),
        pid=worst.pid,
    )


def frozen_cgroup(case: Case) -> Iterator[Finding]:
    for cgroup in case.exam.cgroups:
        if cgroup.frozen:
            yield Finding(
                "frozen-cgroup",
                f"the container is paused: its cgroup {cgroup.path} is frozen",
                Severity.DISEASE,
                Confidence.CERTAIN,
                ("the kernel's freezer holds every process in it",),
                ("docker unpause, or write 0 into cgroup.freeze (THAWED into freezer.state)",),
                pid=case.exam.patient,
            )


def memory_nearly_full(case: Case) -> Iterator[Finding]:
    for cgroup in case.exam.cgroups:
        if cgroup.memory_limit and cgroup.memory_used and cgroup.memory_used / cgroup.memory_limit > NEARLY_FULL:
            yield Finding(
                "memory-nearly-full",
                f"the container uses {bytes_text(cgroup.memory_used)} of its {bytes_text(cgroup.memory_limit)} memory: the next batch may be one too many",
                Severity.NOTE,
                Confidence.POSSIBLE,
                tuple(_largest(case)),
                (
                    "part of it may be file cache that the kernel gives back; watch it (`--watch`), and lower workers or prefetch_factor if it grows",
                ),
                pid=case.exam.patient,
            )


def oversubscribed(case: Case) -> Iterator[Finding]:
    """More runnable threads than cores, on all cores: no disease, but slower than fewer workers would be."""
    for loader in case.loaders:
        delayed = [worker.process for worker in loader.workers if delayed_share(worker.process, case) > DELAYED_SHARE]
        cores = min(len(loader.process.cores) or case.exam.machine.cores, case.exam.machine.cores)
        if len(delayed) < 2 or len(loader.workers) <= cores or len({core for process in delayed for core in process.cores}) < cores:
            continue
        yield Finding(
            "too-many-workers",
            f"{plural(len(loader.workers), 'worker')} compete for {plural(cores, 'core')}: each waits for a core "
            f"{percent(max(delayed_share(process, case) for process in delayed))} of the time",
            Severity.SLOW,
            Confidence.LIKELY,
            tuple(f"pid {process.pid}: used {percent(cpu_share(process, case))} CPU" for process in delayed[:8]),
            (f"num_workers={max(1, cores)} will be no slower and takes less memory; `antifreeze profile` measures it",),
            pid=loader.process.pid,
        )


def inherited_handles(case: Case) -> Iterator[Finding]:
    """The same HDF5 or LMDB file open in the loop and in its workers, at the same descriptor: it was opened before the fork."""
    for loader in case.loaders:
        shared = _inherited(loader, case)
        if shared:
            yield Finding(
                "handle-opened-before-fork",
                f"{listed(sorted(shared), most=2)} was opened before the workers were forked, and all of them share its position and its locks",
                Severity.NOTE,
                Confidence.LIKELY,
                (f"open at the same descriptor in process {loader.process.pid} and in its workers",),
                ("open it in the worker, at the first __getitem__ or in worker_init_fn: shared handles give wrong data, or hang",),
                pid=loader.process.pid,
            )


HANDLES = (".h5", ".hdf5", ".hdf", ".he5", ".mdb", ".lmdb", ".zip", ".sqlite", ".db")


def _inherited(loader: LoaderCase, case: Case) -> set[str]:
    parents = {(each.number, each.target) for each in loader.process.descriptors if each.target.lower().endswith(HANDLES)}
    workers = [worker.process for worker in loader.workers if worker.process.pid in case.started_by_fork and not worker.inline]
    return {each.target for process in workers for each in process.descriptors if (each.number, each.target) in parents}


def delayed_share(process: Process, case: Case) -> float:
    return sum(thread.delayed_s for thread in process.threads) / case.window_s if case.window_s else 0.0


def cpu_share(process: Process, case: Case) -> float:
    return process.cpu_used_s / case.window_s if case.window_s else 0.0


def cgroup_of(process: Process, case: Case) -> Cgroup | None:
    return next((each for each in case.exam.cgroups if each.path == process.cgroup), None)


def _faults_per_s(process: Process, case: Case) -> float:
    return (
        (process.last.major_faults - process.first.major_faults) / case.window_s
        if process.first and process.last and case.window_s
        else 0.0
    )


def _largest(case: Case) -> list[str]:
    known = [
        (process, process.last.memory.pss or process.last.memory.rss)
        for process in case.exam.processes
        if process.last and process.last.memory
    ]
    return [f"pid {process.pid} ({process.name}): {bytes_text(size)}" for process, size in sorted(known, key=lambda each: -each[1])[:4]]
