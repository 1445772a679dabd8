"""The machine that the loader will run on: facts first, then what they mean for it (pure)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from antifreeze.doctor.facts.descriptors import count_descriptors, filesystem_of, read_mounts
from antifreeze.doctor.facts.machine import find_cgroup, read_cgroup, read_cpu_counters, read_machine, read_machine_counters
from antifreeze.doctor.facts.names import is_remote
from antifreeze.doctor.facts.proc import read_shm_space
from antifreeze.doctor.findings.model import Confidence, Finding, Severity, finding
from antifreeze.doctor.findings.words import bytes_text, plural
from antifreeze.linux import resource

SMALL_SHM = 65 * 2**20
"""docker's default is 64 MiB."""
FEW_DESCRIPTORS = 1024


@dataclass(frozen=True)
class Surroundings:
    cores: int
    """Of the machine."""
    allowed_cores: int
    """By affinity."""
    quota_cores: float | None
    shm_total: int | None
    shm_free: int | None
    open_descriptors: int
    descriptor_limit: int
    descriptor_ceiling: int
    """The hard limit, up to which a process may raise its own."""
    memory_available: int
    temporary: str
    temporary_filesystem: str


@dataclass(frozen=True)
class Needs:
    """What a loader will ask of the machine; sizes are None where no sample was looked at."""

    workers: int
    is_ours: bool = False
    bytes_in_flight: int | None = None
    tensors_in_flight: int | None = None


def read_surroundings() -> Surroundings:
    pid, temporary = os.getpid(), os.path.realpath(tempfile.gettempdir())
    shm, counters = read_shm_space(pid), read_machine_counters()
    place = find_cgroup(pid)
    cpu = read_cpu_counters(place) if place else None
    cgroup = read_cgroup(place, cpu, cpu) if place and cpu else None
    machine = read_machine(counters, counters)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    available = machine.memory_available
    if cgroup and cgroup.memory_limit is not None and cgroup.memory_used is not None:
        available = min(available, max(0, cgroup.memory_limit - cgroup.memory_used))
    return Surroundings(
        cores=machine.cores,
        allowed_cores=len(os.sched_getaffinity(0)),
        quota_cores=cgroup.cpu_quota_cores if cgroup else None,
        shm_total=shm.total if shm else None,
        shm_free=shm.free if shm else None,
        open_descriptors=count_descriptors(pid) or 0,
        descriptor_limit=soft,
        descriptor_ceiling=hard,
        memory_available=available,
        temporary=temporary,
        temporary_filesystem=filesystem_of(temporary, read_mounts(pid)),
    )


def machine_findings(here: Surroundings, needs: Needs) -> Iterator[Finding]:
    if needs.workers:
        yield from _cores(here, needs)
        if not needs.is_ours:
            yield from _shared_memory(here, needs)
            yield from _descriptors(here, needs)
    if is_remote(here.temporary_filesystem) and not needs.is_ours and needs.workers:
        yield finding(
            "temporary-folder-remote",
            f"temporary files lie on a network file system: {here.temporary} ({here.temporary_filesystem})",
            evidence=["multiprocessing puts its sockets there: `.nfs…` errors at shutdown, and a wait whenever the server is away"],
            advice=["export TMPDIR=/tmp, or any folder on a local disk"],
            severity=Severity.NOTE,
        )


def _cores(here: Surroundings, needs: Needs) -> Iterator[Finding]:
    usable = min(here.allowed_cores, here.quota_cores or here.allowed_cores)
    if here.allowed_cores == 1 and here.cores > 1 and needs.workers > 1:
        yield finding(
            "one-core-affinity",
            f"this process and its {needs.workers} workers may use one core of {here.cores}",
            evidence=[f"affinity: {plural(here.allowed_cores, 'core')}; the machine has {here.cores}"],
            advice=["who set it? `taskset -p` of the parents, Slurm (--cpus-per-task, --cpu-bind), OMP_PROC_BIND, an imported library"],
        )
    elif needs.workers > usable:
        quota = f", quota of the container {here.quota_cores:.2g}" if here.quota_cores else ""
        yield finding(
            "more-workers-than-cores",
            f"{needs.workers} workers share {usable:.3g} cores",
            evidence=[f"the machine has {plural(here.cores, 'core')}, affinity allows {here.allowed_cores}{quota}"],
            advice=[
                f"num_workers={max(1, int(usable))} is no slower where samples compute; more helps only where they wait for storage",
                "`antifreeze profile` measures it",
            ],
            severity=Severity.NOTE,
            confidence=Confidence.LIKELY,
        )


def _shared_memory(here: Surroundings, needs: Needs) -> Iterator[Finding]:
    if here.shm_free is None or here.shm_total is None:
        return
    wanted = needs.bytes_in_flight
    if (wanted is not None and wanted > here.shm_free) or (wanted is None and here.shm_total < SMALL_SHM):
        need = f"{bytes_text(wanted)} of batches in flight need it" if wanted is not None else "torch sends every batch through it"
        yield finding(
            "shared-memory-small",
            f"/dev/shm has {bytes_text(here.shm_free)} free of {bytes_text(here.shm_total)}, and {need}",
            evidence=[
                "when it is full, a worker dies by SIGBUS, or its batch is lost and the loop waits for ever",
                f"workers × prefetch × batch = {bytes_text(wanted)}" if wanted is not None else None,
            ],
            advice=[
                f"docker run --shm-size={max(1, round((wanted or 2**30) * 2 / 2**30))}g (Kubernetes: an emptyDir with medium: Memory)",
                "antifreeze.DataLoader does not use /dev/shm",
            ],
            confidence=Confidence.CERTAIN if wanted is not None else Confidence.LIKELY,
        )


def _descriptors(here: Surroundings, needs: Needs) -> Iterator[Finding]:
    wanted = here.open_descriptors + (needs.tensors_in_flight or 0)
    if wanted > 0.8 * here.descriptor_limit or here.descriptor_limit < FEW_DESCRIPTORS:
        flight = f", and {needs.tensors_in_flight} tensors in flight need one each" if needs.tensors_in_flight else ""
        yield finding(
            "descriptor-limit-low",
            f"this process may have {here.descriptor_limit} files open, {here.open_descriptors} are{flight}",
            evidence=["torch sends a descriptor with every tensor: `received 0 items of ancdata`, `Too many open files`"],
            advice=[
                f"ulimit -n {min(65536, here.descriptor_ceiling) if here.descriptor_ceiling > 0 else 65536}",
                "antifreeze.DataLoader needs a few for each worker, however many tensors there are",
            ],
            severity=Severity.DISEASE if wanted > 0.8 * here.descriptor_limit else Severity.NOTE,
            confidence=Confidence.LIKELY,
        )
