"""The cores this process may use, from trees as kernels of both kinds show them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from antifreeze.tuning import cores
from antifreeze.tuning.cores import Limits, cgroup_limits, ranks_here, share_of_rank


def tree(root: Path, own: str, files: dict[str, str]) -> Limits:
    (root / "own").write_text(own)
    for name, text in files.items():
        file = root / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return cgroup_limits(str(root / "cgroup"), str(root / "own"))


V2 = "0::/kubepods/pod1/container\n"
V1 = "12:cpuset:/docker/a\n4:cpu,cpuacct:/docker/a\n1:name=systemd:/docker/a\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        pytest.param("", {}, Limits(None, None), id="no cgroups at all"),
        pytest.param(V2, {"kubepods/pod1/container/cpu.max": "max 100000\n"}, Limits(None, None), id="v2 without a limit"),
        pytest.param(V2, {"kubepods/pod1/container/cpu.max": "350000 100000\n"}, Limits(3.5, None), id="v2 quota"),
        pytest.param(
            V2,
            {"kubepods/pod1/container/cpu.max": "800000 100000\n", "kubepods/pod1/cpu.max": "200000 100000\n", "cpu.max": "max 100000"},
            Limits(2.0, None),
            id="v2, an ancestor is tighter",
        ),
        pytest.param(V2, {"cpu.max": "150000 100000\n"}, Limits(1.5, None), id="v2, the mount is the container's own"),
        pytest.param(V2, {"kubepods/pod1/container/cpuset.cpus.effective": "0-3,8,10-11\n"}, Limits(None, 7), id="v2 cpuset"),
        pytest.param(
            V1,
            {"cpu,cpuacct/docker/a/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000\n"},
            Limits(2.5, None),
            id="v1 quota below two controllers",
        ),
        pytest.param(
            V1,
            {
                "cpu/docker/a/cpu.cfs_quota_us": "-1\n",
                "cpu/docker/a/cpu.cfs_period_us": "100000\n",
                "cpu/docker/cpu.cfs_quota_us": "300000\n",
                "cpu/docker/cpu.cfs_period_us": "100000\n",
            },
            Limits(3.0, None),
            id="v1, the limit is the parent's",
        ),
        pytest.param(V1, {"cpuset/docker/a/cpuset.cpus": "2-3\n", "cpuset/cpuset.cpus": "0-7"}, Limits(None, 2), id="v1 cpuset"),
        pytest.param(
            V1,
            {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"},
            Limits(2.0, None),
            id="v1, the mount is the container's",
        ),
        pytest.param(
            V1 + V2,
            {"cpu/docker/a/cpu.cfs_quota_us": "400000", "cpu/docker/a/cpu.cfs_period_us": "100000", "unified/cpu.max": "100000 100000"},
            Limits(4.0, None),
            id="both kinds, the old one has the cpu",
        ),
        pytest.param(V2, {"kubepods/pod1/container/cpu.max": "nonsense"}, Limits(None, None), id="nonsense in cpu.max"),
        pytest.param(V2, {"kubepods/pod1/container/cpu.max": "100000 0"}, Limits(None, None), id="a period of nothing"),
        pytest.param(V2, {"cpuset.cpus.effective": "0-x"}, Limits(None, None), id="nonsense in the cpuset"),
        pytest.param("0::/../../other\n", {"cpu.max": "200000 100000"}, Limits(2.0, None), id="a path that leaves the mount"),
        pytest.param("nothing of the kind\n", {"cpu.max": "200000 100000"}, Limits(2.0, None), id="an own cgroup that cannot be read"),
    ],
)
def test_the_tightest_limit_counts(own: str, files: dict[str, str], expected: Limits, tmp_path: Path) -> None:
    assert tree(tmp_path, own, files) == expected


@pytest.mark.parametrize(
    ("allowed", "limits", "expected"),
    [
        (8, Limits(None, None), 8),
        (8, Limits(2.9, None), 2),
        (8, Limits(0.5, None), 1),
        (8, Limits(None, 3), 3),
        (2, Limits(6.0, 4), 2),
        (8, Limits(5.0, 4), 4),
    ],
)
def test_the_least_of_all_limits(allowed: int, limits: Limits, expected: int) -> None:
    assert cores._limited(allowed, limits) == expected


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
        ({"LOCAL_WORLD_SIZE": ""}, 1),
        ({"LOCAL_WORLD_SIZE": "many"}, 1),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "0"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "7"}, 1),
        ({"SLURM_TASKS_PER_NODE": "8"}, 1),  # the script of a batch job, not started by srun
        ({"SLURM_STEP_TASKS_PER_NODE": "1", "LOCAL_WORLD_SIZE": "8"}, 8),  # torchrun below srun
    ],
)
def test_the_ranks_of_this_node(environment: dict[str, str], ranks: int) -> None:
    assert ranks_here(environment) == ranks


@pytest.mark.parametrize(
    ("usable", "environment", "affinity", "share"),
    [
        (16, {"LOCAL_WORLD_SIZE": "4"}, 16, 4),
        (2, {"LOCAL_WORLD_SIZE": "4"}, 16, 1),
        (6, {"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_CPUS_PER_TASK": "6"}, 6, 6),  # bound: these are its own
        (24, {"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_CPUS_PER_TASK": "6"}, 24, 6),  # not bound: all share all
        (6, {"SLURM_CPUS_PER_TASK": "6", "LOCAL_WORLD_SIZE": "2"}, 6, 3),
    ],
)
def test_the_share_of_a_rank(usable: int, environment: dict[str, str], affinity: int, share: int) -> None:
    assert share_of_rank(usable, environment, affinity) == share


def test_of_this_process() -> None:
    allowed = os.sched_getaffinity(0)
    assert 1 <= cores.usable_cores() <= len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert cores.usable_cores() == 1
        assert cores.auto_workers() == 1
    finally:
        os.sched_setaffinity(0, allowed)
