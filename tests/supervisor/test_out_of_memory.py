"""The out-of-memory killer of a real cgroup takes a worker and not the training, and the story says so; what a cgroup still allows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antifreeze.supervisor import cgroup as module
from antifreeze.supervisor.cgroup import Kills, OomWatch, count_kills, limits_and_use

PROGRAM = """
import os, sys, time
procs, limit, used = sys.argv[1:]
open(procs, "w").write(str(os.getpid()))
import numpy as np, torch
from antifreeze import DataLoader
open(limit, "w").write(str(int(open(used).read()) + (500 << 20)))  # what torch itself takes is not the same everywhere

class Grows(torch.utils.data.Dataset):
    def __len__(self): return 60
    def __getitem__(self, index):
        kept = []
        while index == 37:
            kept.append(np.ones(8 << 20, np.uint8))
        return index

loader = DataLoader(Grows(), 10, num_workers=2, on_bad_sample="skip", multiprocessing_context="fork")
batches = iter(loader)
came = next(batches).tolist()
model = np.ones(400 << 20, np.uint8)  # larger than any worker may become
came += [index for batch in batches for index in batch.tolist()]
print(sorted(set(range(60)) - set(came)), len(came))
print(*loader.report().story, sep="\\n")
"""


@pytest.fixture
def group() -> Iterator[list[Path]]:
    """A new cgroup: who is in it, what it may use, what it uses."""
    old = Path("/sys/fs/cgroup/memory").is_dir()
    folder = Path("/sys/fs/cgroup/memory" if old else "/sys/fs/cgroup") / f"antifreeze-oom-{os.getpid()}"
    limit, used = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
    try:
        folder.mkdir()
        (folder / limit).write_text("4G")
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no such cgroup can be made here: {error}")
    yield [folder / "cgroup.procs", folder / limit, folder / used]
    for _ in range(100):  # its last process may still be on its way out
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.05)


def test_a_worker_is_taken_and_not_the_larger_training_and_the_story_says_who_took_it(group: list[Path]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, group)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    missing, *story = done.stdout.splitlines()
    assert missing == "[37] 59"
    ends = [line for line in story if "SIGKILL" in line]
    assert not [line for line in ends if "its peak memory was" not in line or "out-of-memory killer" not in line]
    assert any("while at sample 37" in line for line in ends), ends  # one that was forked later, and is idle, may be the larger one


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        (
            "4:memory:/pod\n0::/\n",
            {
                "memory/pod/memory.limit_in_bytes": "1000",
                "memory/pod/memory.usage_in_bytes": "900",
                "memory/pod/memory.stat": "inactive_file 1\nactive_file 1\ntotal_inactive_file 500\ntotal_active_file 100\n",
                "memory/memory.limit_in_bytes": str(2**63 - 4096),
                "memory/memory.usage_in_bytes": "5000",
            },
            [(1000, 300)],
        ),
        (
            "0::/job/task\n",
            {
                "job/task/memory.max": "max",
                "job/task/memory.current": "70",
                "job/memory.max": "800",
                "job/memory.current": "500",
                "job/memory.stat": "anon 3\ninactive_file 100\nactive_file 50\n",
            },
            [(800, 350)],
        ),
        ("0::/../elsewhere\n", {"memory.max": "640", "memory.current": "40"}, [(640, 40)]),
        ("0::/\n", {}, []),
    ],
    ids=["version 1", "version 2, the limit above", "in a container", "none"],
)
def test_what_is_used_is_without_the_cache_of_files(cgroup: str, files: dict[str, str], expected: Any, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text(cgroup)
    for name, text in files.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert limits_and_use(str(tmp_path / "root"), str(own)) == expected


def test_two_that_were_struck_at_once_are_both_explained_and_a_third_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_told_by_kernel", lambda pid: None)
    counted = [Kills(3, 7)]
    monkeypatch.setattr(module, "count_kills", lambda: counted[0])
    watch = OomWatch()
    assert watch.evidence(1) is None
    counted[0] = Kills(5, 9)
    assert "in its cgroup" in str(watch.evidence(1))
    assert "in its cgroup" in str(watch.evidence(2))
    assert watch.evidence(3) is None
    counted[0] = Kills(5, 10)
    assert "on this machine" in str(watch.evidence(4))
    counted[0] = Kills(5, 11)
    watch.look()
    assert "on this machine" in str(watch.evidence(5)), "a death may be noticed after a look"
    watch.look()
    assert watch.evidence(6) is None
    counted[0] = Kills(5, 12)
    watch.look()
    watch.look()  # it struck somebody else
    assert watch.evidence(7) is None


def test_kills_are_counted(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("oom 3\noom_kill 2\n")
    own = tmp_path / "own"
    own.write_text("0::/\n")
    assert count_kills(str(tmp_path), str(own)).cgroup == 2
