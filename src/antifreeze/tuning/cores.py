"""How many cores this process may use: affinity, cgroup quota, and the ranks it shares the machine with."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """The least of what affinity and the cgroup's quota allow; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def rank_cores() -> int:
    """This rank's share of them; at least 1."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
    return max(1, usable_cores() // max(1, ranks))


def auto_workers() -> int:
    """The worker count for num_workers="auto": this rank's share of the cores, less one for the training loop; at least 1."""
    return max(1, rank_cores() - 1)


def _cgroup_quota() -> float | None:
    """Cores the cgroup grants per period (v2 `cpu.max`, v1 `cpu.cfs_*`), the tightest on the way to the root."""
    quotas = []
    for folder in _cgroup_folders():
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            quotas.append(int(quota) / int(period))
    v1 = Path("/sys/fs/cgroup/cpu")
    try:
        quota_us, period_us = int((v1 / "cpu.cfs_quota_us").read_text()), int((v1 / "cpu.cfs_period_us").read_text())
        if quota_us > 0:
            quotas.append(quota_us / period_us)
    except (OSError, ValueError):
        pass
    return min(quotas, default=None)


def _cgroup_folders() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    try:
        line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return [root]
    folder = root / line[3:].strip().lstrip("/")
    return [folder, *[parent for parent in folder.parents if parent == root or root in parent.parents]]
