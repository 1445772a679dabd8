"""How many cores this process may use: affinity, cpuset, cgroup quota, and the ranks it shares the machine with.

    machine ──▶ affinity ──▶ cgroup: cpuset, quota (the tightest on the way to its root) ──▶ ÷ ranks on this node

Each limit is read where the kernel keeps it; one that cannot be read does not count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from antifreeze import cgroups

_RANKS_HERE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")
"""How torchrun, Open MPI, Intel MPI and MVAPICH tell a process how many of its kind are on this node."""


def usable_cores() -> int:
    """The least of what affinity, cpuset and the cgroup's quota allow; at least 1."""
    return _limited(_allowed(), cgroup_limits())


def rank_cores() -> int:
    """This rank's share of them; at least 1."""
    return share_of_rank(usable_cores(), os.environ, _allowed())


def auto_workers() -> int:
    """Where the count cannot change as it runs: this rank's share of the cores, less one for the training loop; at least 1."""
    return max(1, rank_cores() - 1)


def _allowed() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _limited(allowed: int, limits: Limits) -> int:
    cores = allowed if limits.cpuset is None else min(allowed, limits.cpuset)
    return max(1, cores if limits.quota is None else min(cores, int(limits.quota)))


# --- ranks ---


def share_of_rank(cores: int, environment: Mapping[str, str], affinity: int) -> int:
    """`affinity`: cores this very process may run on. Where Slurm bound each of its tasks to cores of its own, they are not shared."""
    if cgroups.number(environment.get("SLURM_CPUS_PER_TASK", "")) == affinity and "SLURM_STEP_TASKS_PER_NODE" in environment:
        return max(1, cores)
    return max(1, cores // ranks_here(environment))


def ranks_here(environment: Mapping[str, str]) -> int:
    """Processes of this job on this node, as whoever started them tells; at least 1."""
    for name in _RANKS_HERE:
        told = cgroups.number(environment.get(name, ""))
        if told:
            return told
    tasks = _slurm_tasks(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))  # of the step: a batch script alone is no rank
    node = cgroups.number(environment.get("SLURM_NODEID", "")) or 0
    return max(1, tasks[node] if node < len(tasks) else 1)


def _slurm_tasks(text: str) -> list[int]:
    """ "4(x2),3" is 4, 4 and 3 tasks on three nodes."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", text)
    return [int(tasks) for tasks, times in parts for _ in range(int(times or 1))]


# --- cgroups ---


@dataclass(frozen=True)
class Limits:
    """None: no limit. `quota` in cores per period, `cpuset` a count of cores."""

    quota: float | None
    cpuset: int | None


def cgroup_limits(root: str = cgroups.ROOT, own: str = cgroups.OWN) -> Limits:
    """The tightest on the way from this process's cgroup to the root, of version 2 and of version 1 alike (both may be mounted)."""
    new = cgroups.folders_v2(root, own)
    quotas = [_quota_v2(folder) for folder in new]
    quotas += [_quota_v1(folder) for folder in cgroups.folders_v1("cpu", root, own)]
    sets = [_count(f"{folder}/cpuset.cpus.effective") for folder in new]
    for folder in cgroups.folders_v1("cpuset", root, own):
        sets += [_count(f"{folder}/cpuset.effective_cpus"), _count(f"{folder}/cpuset.cpus")]
    return Limits(
        min((quota for quota in quotas if quota is not None), default=None), min((count for count in sets if count), default=None)
    )


def _quota_v2(folder: str) -> float | None:
    words = cgroups.text(f"{folder}/cpu.max").split()
    quota, period = (cgroups.number(word) for word in words) if len(words) == 2 else (None, None)
    return quota / period if quota and period else None


def _quota_v1(folder: str) -> float | None:
    quota, period = (cgroups.number(cgroups.text(f"{folder}/cpu.cfs_{name}_us")) for name in ("quota", "period"))
    return quota / period if quota and period else None


def _count(file: str) -> int | None:
    """Of a list such as "0-3,8"; None where there is none."""
    cores: set[int] = set()
    for part in cgroups.text(file).strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return None
        cores |= set(range(int(first), int(last or first) + 1))
    return len(cores)
