"""Workers that grow: measured on real processes, and named by what makes them grow."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from antifreeze import AntifreezeWarning, DataLoader
from antifreeze.delivery.containers import largest_container
from antifreeze.delivery.growth import MATTERS_BYTES, growth_finding
from antifreeze.delivery.traps import Traps
from antifreeze.supervisor import memory as module
from antifreeze.supervisor.memory import Grown, MemoryWatch
from antifreeze.supervisor.observe import Memory, busy_threads, memory_of

MB = 10**6


class Leaks(Dataset[Any]):
    """Keeps a megabyte of every sample."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.paths = [f"{number}.jpg" for number in range(200)]

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        self.kept.append(os.urandom(1 << 20))
        if index == 150:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_leak_is_seen_and_a_death_says_the_memory_and_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    monkeypatch.setattr(module, "FIRST_ROUND_S", 0.0)
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    monkeypatch.setattr(module, "_SHARE_OF_TIME", 0)
    loader = DataLoader(Leaks(), 5, num_workers=1, on_bad_sample="skip", multiprocessing_context="fork")
    delivered = [int(index) for batch in loader for index in batch]
    assert sorted(delivered) == [index for index in range(200) if index != 150]
    report = loader.report()
    assert report.growth is not None
    assert "dataset.kept (list) grew from 0 to" in report.growth
    assert report.worker_bytes > 0
    ends = [line for line in report.story if "SIGKILL" in line]
    assert ends
    assert all("its peak memory was" in line and "sample 150 (150.jpg)" in line for line in ends), ends
    assert report.bad_samples[0].path == "150.jpg"
    assert "[150.jpg]" in str(report)


def test_what_is_measured_is_this_process_own() -> None:
    before = memory_of(os.getpid())
    kept = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # new pages, whatever an allocator still holds
    for page in range(0, len(kept), mmap.PAGESIZE):
        kept[page] = 1
    after = memory_of(os.getpid())
    assert before is not None
    assert after is not None
    assert after.own_bytes - before.own_bytes >= len(kept) * 0.9
    assert memory_of(2**22) is None


def test_a_worker_that_was_replaced_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([10 * MB, 30 * MB, 5 * MB, 6 * MB])
    monkeypatch.setattr(module, "memory_of", lambda pid: Memory(size := next(sizes), size))
    watch = MemoryWatch()
    for pid, samples in [(1, 0), (1, 1000), (2, 0), (2, 500)]:
        watch.look([(0, pid)], {0: samples}.__getitem__)
    assert watch.most_grown is not None
    assert (watch.most_grown.pid, watch.most_grown.grown_bytes, watch.most_grown.per_1000_samples()) == (1, 20 * MB, 20 * MB)
    assert watch.workers[0].grown_bytes == MB
    assert (watch.last_bytes(0, 2), watch.last_bytes(0, 1), watch.last_bytes(1, 2)) == (6 * MB, None, None)


def test_looks_are_rare() -> None:
    watch = MemoryWatch()
    began_s = module.time.monotonic()
    assert not watch.due(began_s)
    assert watch.due(began_s + module.FIRST_S)
    watch.look([(0, os.getpid())], lambda _: 0)
    assert not watch.due(module.time.monotonic())


def test_one_worker_at_a_time_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop waits for a look: with 64 workers, all of them at once took a tenth of a second."""
    looked: list[int] = []
    monkeypatch.setattr(module, "memory_of", lambda pid: looked.append(pid) or Memory(MB, MB))
    monkeypatch.setattr(module, "busy_threads", lambda pid: 1)
    watch = MemoryWatch()
    for workers in ([1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 4, 3], [1, 4, 3], [1, 4, 3]):
        watch.look(list(enumerate(workers)), lambda _: 0)
    assert looked == [1, 2, 3, 1, 4, 3, 1]
    assert sorted(grown.pid for grown in watch.workers.values()) == [1, 3, 4]


class Holds:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (Holds(paths=[f"/data/{number}.jpg" for number in range(20_000)]), "dataset.paths: list of 20,000 str"),
        (Holds(inner=Holds(table={n: (n, str(n)) for n in range(10_000)})), "dataset.inner.table: dict of 10,000 tuple"),
        (Holds(small=[1] * 20_000, large=["x" * 200] * 15_000), "dataset.large: list of 15,000 str"),
        ([{"name": str(n)} for n in range(12_000)], "dataset: list of 12,000 dict"),
        (Holds(array=torch.zeros(100_000), few=list(range(9_999))), None),
    ],
)
def test_the_largest_container(dataset: Any, said: str | None) -> None:
    found = largest_container(dataset)
    assert (None if found is None else str(found)) == said


@pytest.mark.parametrize(
    ("grown_bytes", "dataset", "said"),
    [
        (MATTERS_BYTES - 1, None, None),
        (MATTERS_BYTES, None, "a worker grew by 67.1 MB"),
        (MATTERS_BYTES, Holds(paths=["x" * 1000] * 50_000), "most likely dataset.paths: list of 50,000 str"),
        (100 * MATTERS_BYTES, Holds(paths=["x" * 1000] * 50_000), "nothing large in the data set explains it"),
    ],
)
def test_growth_in_a_sentence(grown_bytes: int, dataset: Any, said: str | None) -> None:
    found = growth_finding(Grown(1, 0, 0, bytes=grown_bytes, samples=1000), dataset)
    assert (found is None) == (said is None)
    assert said is None or (found is not None and said in found)


@pytest.mark.parametrize(("threads", "cores", "said"), [([1, 1], 1, 0), ([8, 8], 4, 1), ([2, 2], 2, 0), ([], 2, 0), ([16], 64, 0)])
def test_thread_pools_that_fight_are_said_once(threads: list[int], cores: int, said: int, recwarn: pytest.WarningsRecorder) -> None:
    traps = Traps(lambda: cores)
    warnings.simplefilter("always")
    traps.busy_threads(threads)
    traps.busy_threads(threads)
    assert [warning.category for warning in recwarn] == [AntifreezeWarning] * said


def test_threads_that_compute_are_counted_and_those_that_sleep_are_not() -> None:
    end = threading.Event()
    sleepers = [threading.Thread(target=end.wait) for _ in range(4)]
    for thread in sleepers:
        thread.start()
    try:
        assert busy_threads(os.getpid()) < 1 + len(sleepers)
    finally:
        end.set()
        for thread in sleepers:
            thread.join()
    assert busy_threads(2**22) == 1


@pytest.mark.parametrize(("workers", "cores", "said"), [(3, 1, 1), (1, 1, 0), (3, 10**6, 0)])
def test_more_workers_than_the_quota_is_said(workers: int, cores: int, said: int) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Traps(lambda: cores).before_start([1], workers, forks=False)
    assert sum("quota" in str(warning.message) for warning in caught) == said


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_the_story_is_written_where_asked_when_an_error_leaves(tmp_path: Path, workers: int) -> None:
    class Torn(Dataset[int]):
        def __init__(self) -> None:
            self.files = [f"{number}.png" for number in range(4)]

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if index == 2:
                raise ValueError("the picture is torn")
            return index

    file = tmp_path / "story.txt"
    with pytest.raises(ValueError, match="the picture is torn") as caught:
        list(DataLoader(Torn(), num_workers=workers, story_file=file))
    assert "its file: 2.png" in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])]) or not hasattr(
        caught.value, "add_note"
    )
    assert "ValueError" in file.read_text()
    list(DataLoader([1, 2], num_workers=workers, story_file=file))  # type: ignore[arg-type]
    assert file.read_text().count("===") == 1


def test_a_story_that_cannot_be_written_hides_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TypeError):
        list(DataLoader([None], story_file=tmp_path / "no" / "folder"))  # type: ignore[arg-type]
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_journal_has_the_peak_memory_of_each_worker() -> None:
    loader = DataLoader(list(range(64)), 4, num_workers=2, persistent_workers=True, multiprocessing_context="fork")  # type: ignore[arg-type]
    with loader:
        assert len(list(loader)) == 16
        pool = loader._iterator.pool  # type: ignore[union-attr]
        rows = [pool.crew.journal.row(number) for number in range(2)]
        deadline_s = module.time.monotonic() + 100
        while not all(row.read().peak_bytes for row in rows) and module.time.monotonic() < deadline_s:
            module.time.sleep(0.01)  # one that was not needed may still be coming
        peaks = [row.read().peak_bytes for row in rows]
        assert all(peak > 10 * MB for peak in peaks)
