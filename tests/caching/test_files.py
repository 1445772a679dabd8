"""The files of a cache among processes that are killed, stopped, and write at once; on full disks, with damaged bytes."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from antifreeze.caching import files as module
from antifreeze.caching.files import RECORD, UNIT, Files, checks_of

COUNT = 200
FORK = multiprocessing.get_context("fork")


def payload_of(sample: int, size: int = 1024) -> Any:
    return np.full(size, sample % 251, dtype=np.uint8)


def in_child(work: Callable[[], None]) -> int:
    """How it ended, as Process.exitcode tells."""
    child = FORK.Process(target=work)
    child.start()
    child.join(60)
    code = child.exitcode
    child.close()
    assert code is not None
    return code


def write_all(folder: Path, samples: Any, max_bytes: int | None = None) -> Files:
    files = Files(str(folder), COUNT, max_bytes)
    for sample in samples:
        files.write(sample, payload_of(sample))
    return files


def good(files: Files) -> list[int]:
    """Those that are there, each with what was written of it."""
    found = [(sample, files.read(sample)) for sample in range(COUNT)]
    for sample, payload in found:
        assert payload is None or bytes(payload) == bytes(payload_of(sample, len(payload)))
    return [sample for sample, payload in found if payload is not None]


def test_what_one_process_writes_another_reads(tmp_path: Path) -> None:
    reader = Files(str(tmp_path), COUNT, None)
    assert good(reader) == []
    assert in_child(lambda: write_all(tmp_path, range(0, COUNT, 2)) and None) == 0
    reader.look(now=True)
    assert good(reader) == list(range(0, COUNT, 2))
    assert reader.held() == (100, 100 * (1024 + RECORD.itemsize))


def test_many_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    children = [FORK.Process(target=write_all, args=(tmp_path, range(first, COUNT, 4))) for first in (0, 1, 2, 3, 0, 1)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
        child.close()
    assert good(Files(str(tmp_path), COUNT, None)) == list(range(COUNT))
    assert len(list(tmp_path.glob("*.index"))) == 6


def end_in_the_middle(monkeypatch: pytest.MonkeyPatch, of_index: bool, how: int, keep: int) -> None:
    """The 5th write of this process gets as far as `keep` bytes."""
    whole, calls = module._write_at, [0]

    def write_at(file: int, left: memoryview, offset: int) -> None:
        is_index = len(left) == RECORD.itemsize
        calls[0] += is_index == of_index
        if calls[0] == 5 and is_index == of_index:
            whole(file, left[:keep], offset)
            os.kill(os.getpid(), how)
        whole(file, left, offset)

    monkeypatch.setattr(module, "_write_at", write_at)


@pytest.mark.parametrize(("of_index", "keep"), [(False, 0), (False, 700), (False, 1024), (True, 0), (True, 20)])
def test_a_writer_killed_in_the_middle_leaves_what_it_had_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_index: bool, keep: int
) -> None:
    def work() -> None:
        end_in_the_middle(monkeypatch, of_index, signal.SIGKILL, keep)
        write_all(tmp_path, range(COUNT))

    assert in_child(work) == -signal.SIGKILL
    files = Files(str(tmp_path), COUNT, None)
    assert good(files) == [0, 1, 2, 3]
    for sample in range(4, COUNT):
        assert files.write(sample, payload_of(sample)) == ""
    assert good(Files(str(tmp_path), COUNT, None)) == list(range(COUNT))


@pytest.mark.parametrize("of_index", [False, True])
def test_a_stopped_writer_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_index: bool) -> None:
    def work() -> None:
        end_in_the_middle(monkeypatch, of_index, signal.SIGSTOP, 10)
        write_all(tmp_path, range(20))

    child = FORK.Process(target=work)
    child.start()
    assert child.pid is not None
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        files = write_all(tmp_path, range(10, COUNT))
        files.look(now=True)
        assert good(files) == [0, 1, 2, 3, *range(10, COUNT)]
    finally:
        os.kill(child.pid, signal.SIGCONT)
        child.join(60)
    assert child.exitcode == 0
    child.close()
    files.look(now=True)
    assert good(files) == list(range(COUNT))  # its record, half written when it was first seen, too


def test_a_write_that_was_broken_off_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_all(tmp_path, range(3))
    whole = module._write_at

    def broken(file: int, left: memoryview, offset: int) -> None:
        whole(file, left[:11], offset)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_write_at", broken)
    with pytest.raises(KeyboardInterrupt):
        files.write(3, payload_of(3))
    monkeypatch.setattr(module, "_write_at", whole)
    assert files.write(4, payload_of(4)) == ""
    assert good(Files(str(tmp_path), COUNT, None)) == [0, 1, 2, 4]
    assert files.held()[1] == 4 * (1024 + RECORD.itemsize)


def test_damaged_payloads_are_struck_out_and_written_anew_once(tmp_path: Path) -> None:
    write_all(tmp_path, range(10))
    (data,) = tmp_path.glob("*.data")
    with open(data, "r+b") as file:
        file.seek(3 * 1024 + 5)
        file.write(b"\xff")
    files = Files(str(tmp_path), COUNT, None)
    assert good(files) == [0, 1, 2, *range(4, 10)] and files.bad == 1
    assert files.write(3, payload_of(3)) == ""
    for _ in range(3):  # whoever comes later meets the good one, and writes nothing
        later = Files(str(tmp_path), COUNT, None)
        assert good(later) == list(range(10)) and later.bad == 0


def test_damaged_indexes_cost_what_is_damaged(tmp_path: Path) -> None:
    write_all(tmp_path, range(10))
    (index,) = tmp_path.glob("*.index")
    content = bytearray(index.read_bytes())
    content[4 * RECORD.itemsize + 8] ^= 1  # an offset
    content[6 * RECORD.itemsize : 7 * RECORD.itemsize] = bytes(RECORD.itemsize)
    index.write_bytes(content[:-3])
    files = Files(str(tmp_path), COUNT, None)
    assert good(files) == [0, 1, 2, 3, 5, 7, 8]
    assert files.bad == 0  # nothing was read for what is no record


def test_a_record_that_is_not_written_yet_is_seen_when_it_is(tmp_path: Path) -> None:
    """A file may grow before what is in it can be seen."""
    write_all(tmp_path, range(3))
    (index,) = tmp_path.glob("*.index")
    content = index.read_bytes()
    index.write_bytes(content[: 2 * RECORD.itemsize] + bytes(RECORD.itemsize))
    files = Files(str(tmp_path), COUNT, None)
    assert good(files) == [0, 1]
    index.write_bytes(content)
    files.look(now=True)
    assert good(files) == [0, 1, 2]


def test_records_of_another_data_set_are_passed_over(tmp_path: Path) -> None:
    records = np.array([(COUNT, 0, 8, 0, 0), (-1, 0, 8, 0, 0), (5, -8, 8, 0, 0), (6, 0, 7, 0, 0), (7, 0, 0, 0, 0)], dtype=RECORD)
    records["check"] = checks_of(records)
    (tmp_path / "a.index").write_bytes(records.tobytes())
    assert Files(str(tmp_path), COUNT, None).held()[0] == 0


def test_truncated_and_lost_files(tmp_path: Path) -> None:
    write_all(tmp_path, range(10))
    (data,) = tmp_path.glob("*.data")
    os.truncate(data, 5 * 1024 + 100)
    files = Files(str(tmp_path), COUNT, None)
    assert good(files) == [0, 1, 2, 3, 4] and files.bad == 5
    os.unlink(data)
    assert good(files) == [0, 1, 2, 3, 4]  # it is still open
    assert good(Files(str(tmp_path), COUNT, None)) == []
    assert good(Files(str(tmp_path), COUNT, None)) == []


def test_files_that_are_deleted_under_their_writer(tmp_path: Path) -> None:
    """In a folder that is there again: what it went on to write would take room, and nobody could see it."""
    files = write_all(tmp_path, range(10))
    for path in tmp_path.iterdir():
        path.unlink()
    files.look(now=True)
    assert "what this process has written was deleted" in files.write(10, payload_of(10))
    assert list(tmp_path.iterdir()) == []


def test_a_descriptor_for_each_segment_but_not_for_a_thousand(tmp_path: Path) -> None:
    for sample in range(module._MOST_OPEN + 20):
        write_all(tmp_path, [sample])
    files, before = Files(str(tmp_path), COUNT, None), len(os.listdir("/proc/self/fd"))
    assert good(files) == list(range(module._MOST_OPEN + 20))
    assert len(os.listdir("/proc/self/fd")) - before == module._MOST_OPEN


def test_many_folders_leave_descriptors_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.close(lowest := os.dup(1))
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2 * (lowest + 20), 4096))
    opened = []
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        for sample in range(8):
            write_all(tmp_path / str(number), [sample])
        opened.append(Files(str(tmp_path / str(number)), COUNT, None))
        assert good(opened[-1]) == list(range(8))
    assert len(os.listdir("/proc/self/fd")) <= before + 20


def test_max_bytes_among_several_writers(tmp_path: Path) -> None:
    most, writers = 40 * 1024, 4
    children = [FORK.Process(target=write_all, args=(tmp_path, range(first, COUNT, writers), most)) for first in range(writers)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        child.close()
    samples, size = Files(str(tmp_path), COUNT, most).held()
    assert size <= most + writers * (1024 + RECORD.itemsize)
    assert samples > 30
    files = Files(str(tmp_path), COUNT, most)
    assert "max_bytes=40,960 is reached" in files.write(0, payload_of(0))
    assert len(good(files)) == samples  # nothing was evicted


def test_a_disk_is_never_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_usage(folder: str) -> Any:
        used = sum(path.stat().st_size for path in tmp_path.iterdir())
        return SimpleNamespace(total=1 << 40, free=(1 << 30) + 5000 - used)

    monkeypatch.setattr(module.shutil, "disk_usage", disk_usage)
    files = write_all(tmp_path, range(10))
    assert "its disk is nearly full (1,073,742,600 bytes are free)" in files.stopped
    assert good(files) == [0, 1, 2, 3]


ON_SMALL_DISK = """
import sys, resource
from pathlib import Path
sys.path.insert(0, {tests!r})
from antifreeze.caching import files as module
from caching.test_files import COUNT, good, payload_of
from antifreeze.caching.files import Files
module._KEPT_FREE = {kept}
if {limit}:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
files = Files({folder!r}, COUNT, None)
for sample in range(COUNT):
    files.write(sample, payload_of(sample, 32768))
print(len(good(files)), files.stopped)
assert good(Files({folder!r}, COUNT, None)) == good(files)
"""


@pytest.mark.parametrize(
    ("kept", "limit", "said"),
    [(-(1 << 30), 0, "No space left on device"), (1 << 30, 0, "its disk is nearly full"), (1 << 30, 1 << 20, "File too large")],
)
def test_real_disks_without_room(tmp_path: Path, kept: int, limit: int, said: str) -> None:
    program = ON_SMALL_DISK.format(tests=str(Path(__file__).parents[1]), kept=kept, limit=limit, folder=str(tmp_path))
    mount = f"mount -t tmpfs -o size=2m none '{tmp_path}' && exec \"$@\""
    room = ["unshare", "-Urm", "sh", "-c", mount, "sh"] if not limit else []
    if room and subprocess.run([*room, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces here")
    done = subprocess.run([*room, sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    samples, _, why = done.stdout.partition(" ")
    assert int(samples) >= 30 and said in why


def test_where_nothing_may_be_written(tmp_path: Path) -> None:
    files = Files(str(tmp_path / "gone"), COUNT, None)
    assert "No such file or directory" in files.write(0, payload_of(0))
    assert files.read(0) is None


def test_a_million_records_are_read_in_one_look(tmp_path: Path) -> None:
    count = 1_000_000 + 7  # more than are read at once
    records = np.zeros(count, dtype=RECORD)
    records["sample"], records["offset"], records["size"] = np.arange(count)[::-1], np.arange(count) * UNIT, UNIT
    records["check"] = checks_of(records)
    (tmp_path / "a.index").write_bytes(records.tobytes())
    files = Files(str(tmp_path), count, None)
    assert files.held()[0] == count
    assert sum(array.nbytes for array in (files._place, files._units, files._crc)) == 16 * count


def test_without_preadv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "preadv")
    assert good(write_all(tmp_path, range(10))) == list(range(10))
