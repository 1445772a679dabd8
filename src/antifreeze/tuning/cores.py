"""How many cores this process may use: affinity, cpuset, cgroup quota, and the ranks it shares the machine with.

    machine ──▶ affinity ──▶ cgroup: cpuset, quota (the tightest on the way to its root) ──▶ ÷ ranks on this node

1. Each limit is read where the kernel keeps it; one that cannot be read does not count.
2. Inside a container the path of the cgroup is often the host's, while the mount shows the container's own as its root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
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
    if _number(environment.get("SLURM_CPUS_PER_TASK")) == affinity and "SLURM_STEP_TASKS_PER_NODE" in environment:
        return max(1, cores)
    return max(1, cores // ranks_here(environment))


def ranks_here(environment: Mapping[str, str]) -> int:
    """Processes of this job on this node, as whoever started them tells; at least 1."""
    for name in _RANKS_HERE:
        told = _number(environment.get(name))
        if told:
            return told
    tasks = _slurm_tasks(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))  # of the step: a batch script alone is no rank
    node = _number(environment.get("SLURM_NODEID")) or 0
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


def cgroup_limits(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> Limits:
    """The tightest on the way from this process's cgroup to the root, of version 2 and of version 1 alike (both may be mounted)."""
    paths = _paths(own)
    quotas = [_quota_v2(folder) for folder in _upwards(root, paths.get("", "/"))]
    quotas += [_quota_v1(folder) for mount in _mounts(root, "cpu") for folder in _upwards(mount, paths.get("cpu", "/"))]
    sets = [_count(folder / "cpuset.cpus.effective") for folder in _upwards(root, paths.get("", "/"))]
    for mount in _mounts(root, "cpuset"):
        for folder in _upwards(mount, paths.get("cpuset", "/")):
            sets += [_count(folder / "cpuset.effective_cpus"), _count(folder / "cpuset.cpus")]
    return Limits(
        min((quota for quota in quotas if quota is not None), default=None), min((count for count in sets if count), default=None)
    )


def _paths(own: Path) -> dict[str, str]:
    """By controller; that of version 2 has no name."""
    found: dict[str, str] = {}
    for line in (_text(own) or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            found |= dict.fromkeys(parts[1].split(","), parts[2])
    return found


def _mounts(root: Path, controller: str) -> Iterator[Path]:
    """Of version 1: `cpu`, or several controllers in one, `cpu,cpuacct`."""
    try:
        folders = sorted(folder for folder in root.iterdir() if controller in folder.name.split(","))
    except OSError:
        return
    yield from folders


def _upwards(mount: Path, path: str) -> list[Path]:
    folder = mount / path.strip().lstrip("/")
    if not folder.is_dir() or ".." in path:
        return [mount]
    return [folder, *(parent for parent in folder.parents if parent == mount or mount in parent.parents)]


def _quota_v2(folder: Path) -> float | None:
    words = (_text(folder / "cpu.max") or "").split()
    quota, period = (_number(word) for word in words) if len(words) == 2 else (None, None)
    return quota / period if quota and period else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(_text(folder / "cpu.cfs_quota_us")), _number(_text(folder / "cpu.cfs_period_us"))
    return quota / period if quota and period else None


def _count(file: Path) -> int | None:
    """Of a list such as "0-3,8"; None where there is none."""
    cores: set[int] = set()
    for part in (_text(file) or "").strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return None
        cores |= set(range(int(first), int(last or first) + 1))
    return len(cores)


def _text(file: Path) -> str | None:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _number(text: str | None) -> int | None:
    """A count; None for "max", "-1" and whatever else is none."""
    return int(text) if text is not None and text.strip().isdigit() else None
