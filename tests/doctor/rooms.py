"""What some patients need around them: a small /dev/shm, a cgroup with a limit, a mount of their own. Each skips, with its reason, where
this machine or user cannot give it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

Room = tuple[tuple[str, ...], tuple[str, ...]]
"""(command prefix, further arguments)"""

CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def small_shm() -> Iterator[Room]:
    own_namespace = ("unshare", "-m") if os.geteuid() == 0 else ("unshare", "-rm")
    if shutil.which("unshare") is None or subprocess.run([*own_namespace, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespace of one's own may be made here")
    yield (*own_namespace, "sh", "-c", 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"', "sh"), ()


@contextmanager
def network_mount() -> Iterator[Room]:
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("a FUSE mount needs root and /dev/fuse")
    with tempfile.TemporaryDirectory() as folder:
        yield ("unshare", "-m", "--propagation", "private"), (folder,)


@contextmanager
def little_memory() -> Iterator[Room]:
    with _cgroup("memory", {"memory.limit_in_bytes": "700M"}, {"memory.max": "700M", "memory.swap.max": "0"}) as procs:
        yield (), (procs,)


@contextmanager
def little_cpu() -> Iterator[Room]:
    with _cgroup("cpu", {"cpu.cfs_quota_us": "20000"}, {"cpu.max": "20000 100000"}) as procs:
        yield (), (procs,)


@contextmanager
def _cgroup(controller: str, version1: dict[str, str], version2: dict[str, str]) -> Iterator[str]:
    old = (CGROUPS / controller).is_dir()
    folder = (CGROUPS / controller if old else CGROUPS) / f"antifreeze-test-{os.getpid()}-{controller}"
    try:
        folder.mkdir()
        for name, value in (version1 if old else version2).items():
            if (folder / name).exists() or name.endswith((".max", ".cfs_quota_us", ".limit_in_bytes")):
                (folder / name).write_text(value)
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no {controller} cgroup can be made here: {error}")
    try:
        yield str(folder / "cgroup.procs")
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Its last process was killed just now, and may still be on its way out."""
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.05)
