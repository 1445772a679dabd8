"""What some patients need around them: a small /dev/shm, a cgroup with a limit, a mount of their own. Each skips, with its reason, where
this machine or user cannot give it.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Room = tuple[tuple[str, ...], tuple[str, ...]]
"""(command prefix, further arguments)"""

CGROUPS = Path("/sys/fs/cgroup")
_numbers = itertools.count()


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


SWAP_BYTES = 512 << 20


@contextmanager
def memory_and_swap() -> Iterator[Room]:
    """Less memory than the patient wants, and a file to swap to."""
    if os.geteuid() != 0 or shutil.which("swapon") is None or shutil.which("mkswap") is None:
        pytest.skip("swap space needs root, mkswap and swapon")
    with tempfile.NamedTemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, SWAP_BYTES)
        for command in ("mkswap", "swapon"):
            done = subprocess.run([command, file.name], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"no swap space can be made here: {done.stderr.strip()}")
        try:
            with _cgroup("memory", {"memory.limit_in_bytes": "200M"}, {"memory.max": "200M"}) as procs:
                yield (), (procs,)
        finally:
            subprocess.run(["swapoff", file.name], check=True)


@contextmanager
def freezer_1() -> Iterator[Room]:
    if not (CGROUPS / "freezer").is_dir():
        pytest.skip("version 1 of the kernel's freezer is not mounted here")
    with _cgroup("freezer", {}, {}) as procs:
        yield (), (procs,)


@contextmanager
def freezer_2() -> Iterator[Room]:
    mount = CGROUPS / "unified" if (CGROUPS / "unified").is_dir() else CGROUPS
    if not (mount / "cgroup.procs").exists() or not (mount / "cgroup.controllers").exists():
        pytest.skip("version 2 of the kernel's cgroups is not mounted here")
    with _folder(mount / f"antifreeze-test-{os.getpid()}-frozen", {}) as folder:
        yield (), (str(folder / "cgroup.procs"),)


@contextmanager
def frozen(said: dict[str, Any]) -> Iterator[None]:
    """Every process of the cgroup is held until the end: of version 1 they could not even be killed."""
    folder = Path(said["folder"])
    switch = folder / ("freezer.state" if (folder / "freezer.state").exists() else "cgroup.freeze")
    hold, release = ("FROZEN", "THAWED") if switch.name == "freezer.state" else ("1", "0")
    switch.write_text(hold)
    try:
        time.sleep(0.5)
        yield
    finally:
        switch.write_text(release)


@contextmanager
def _cgroup(controller: str, version1: dict[str, str], version2: dict[str, str]) -> Iterator[str]:
    old = (CGROUPS / controller).is_dir()
    folder = (CGROUPS / controller if old else CGROUPS) / f"antifreeze-test-{os.getpid()}-{next(_numbers)}-{controller}"
    with _folder(folder, version1 if old else version2):
        yield str(folder / "cgroup.procs")


@contextmanager
def _folder(folder: Path, settings: dict[str, str]) -> Iterator[Path]:
    try:
        folder.mkdir()
        for name, value in settings.items():
            (folder / name).write_text(value)
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no such cgroup can be made here: {error}")
    try:
        yield folder
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
