"""`antifreeze.check` of live objects: each trap is found by its path, a healthy data set is not called ill, and nothing is left behind."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

import antifreeze
from antifreeze.checks.checked import Checked
from antifreeze.checks.errors import NotCheckable
from antifreeze.checks.live.child import ask_child
from antifreeze.checks.live.objects import measure_copies
from antifreeze.supervisor.observe import process_state

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks and /proc")


class Plain(Dataset[Any]):
    """Ten numbers, and whatever else it is given."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index))


class Fetching(Plain):
    def __getitem__(self, index: int) -> Any:
        return self.fetch(index)  # type: ignore[attr-defined]


def codes(target: Any, **options: Any) -> list[str]:
    return [each.code for each in antifreeze.check(target, **options).findings]


def loader(dataset: Any, workers: int = 2, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **{"batch_size": 2, "num_workers": workers, **options})


@pytest.mark.parametrize(
    "dataset",
    [
        Plain(),
        TensorDataset(torch.arange(100.0)),
        list(range(100)),
        Plain(paths=[f"/data/{i}.jpg" for i in range(1000)], table=np.zeros((100, 100))),
    ],
    ids=["plain", "tensors", "list", "paths"],
)
def test_nothing_is_found_in_healthy_data_sets(dataset: Any) -> None:
    assert codes(loader(dataset)) == []
    assert codes(dataset) == []


def test_random_augmentation_by_global_generators_is_healthy() -> None:
    assert codes(loader(Fetching(fetch=lambda i: torch.rand(4)))) == []
    assert codes(loader(Fetching(fetch=lambda i: np.random.rand(4)))) == []


def test_a_generator_of_its_own_repeats_and_one_per_worker_does_not() -> None:
    rng = np.random.default_rng(0)
    dataset = Fetching(fetch=lambda i: rng.random(4), rng=rng)
    (found,) = antifreeze.check(loader(dataset)).findings
    assert found.code == "random-numbers-repeated"
    assert any("dataset.rng" in line for line in found.evidence)

    def seed_anew(worker: int) -> None:
        rng.bit_generator.state = np.random.default_rng(worker).bit_generator.state

    assert codes(loader(dataset, worker_init_fn=seed_anew)) == []


def test_handles_are_found_by_path_and_their_position_is_not_moved(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("a", "b")
    with (
        open(tmp_path / "file", "rb", buffering=0) as file,
        zipfile.ZipFile(tmp_path / "z.zip") as archive,
        sqlite3.connect(":memory:") as database,
    ):
        dataset = Fetching(fetch=lambda i: file.read(1), reader={"archive": archive}, file=file, nested=[database])
        found = antifreeze.check(loader(dataset)).findings
        assert [each.code for each in found] == ["handle-opened-before-fork"] * 3
        assert [each.verdict.split()[0] for each in found] == ["dataset.reader['archive']", "dataset.file", "dataset.nested[0]"]
        assert file.tell() == 0
    database.close()


def test_locks_and_whether_they_are_held() -> None:
    shared = multiprocessing.get_context("fork").Lock()
    (found,) = antifreeze.check(loader(Plain(lock=shared))).findings
    assert found.code == "lock-in-dataset" and "all workers share" in found.verdict
    lock = threading.Lock()
    with lock:
        (found,) = antifreeze.check(loader(Plain(lock=lock))).findings
    assert "dataset.lock" in found.verdict and "locked now" in found.verdict


def test_copies_are_measured_and_named() -> None:
    pairs = [(f"/data/pictures/{i:09}.jpg", 1000 + i) for i in range(500_000)]
    measured = measure_copies(Plain(pairs=pairs, pixels=np.ones((1000, 10_000))))
    assert measured.answer is not None
    (holding,) = measured.answer
    assert (holding.path, holding.length, holding.share) == ("dataset.pairs", 500_000, 1.0)
    held = sum(sys.getsizeof(pair) + sys.getsizeof(pair[0]) for pair in pairs)
    assert 0.5 * held < holding.copied < 3 * held
    (found,) = antifreeze.check(loader(Plain(pairs=pairs))).findings
    assert found.code == "copy-on-write"
    assert "dataset.pairs" in found.evidence[0]


def test_under_spawn_the_unpicklable_part_is_named_by_its_path() -> None:
    dataset = Plain(reader=Plain(transform=lambda x: x))
    spawned = antifreeze.check(loader(dataset, multiprocessing_context="spawn"))
    assert [each.code for each in spawned.findings] == ["not-picklable"]
    assert "dataset.reader.transform" in spawned.findings[0].verdict
    assert codes(loader(dataset)) == []
    assert codes(antifreeze.DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context="spawn")) == []
    heavy = loader(Plain(data=np.zeros(10_000_000)), multiprocessing_context="spawn")
    assert codes(heavy) == ["copied-to-every-worker"]


class Numbers(IterableDataset[int]):
    def __init__(self, split: bool) -> None:
        self.split = split

    def __iter__(self) -> Any:
        info = get_worker_info()
        return iter(range(info.id if info and self.split else 0, 100, info.num_workers if info and self.split else 1))


class OneShard(IterableDataset[int]):
    def __iter__(self) -> Any:
        info = get_worker_info()
        return iter(range(10) if info is None or info.id == 0 else ())


def test_iterable_data_sets() -> None:
    assert codes(loader(Numbers(split=True))) == []
    assert codes(loader(Numbers(split=False))) == ["iterable-not-split"]
    assert codes(loader(Numbers(split=False), workers=0)) == []
    assert codes(loader(OneShard())) == ["worker-without-data"]


def test_bad_samples() -> None:
    def fail(index: int) -> Any:
        raise KeyError(index)

    (found,) = antifreeze.check(loader(Fetching(fetch=fail))).findings
    assert found.code == "sample-raises" and "KeyError" in found.verdict
    assert found.file == __file__
    assert codes(loader(Fetching(fetch=lambda i: None))) == ["none-for-a-bad-sample"]
    assert codes(loader(Fetching(fetch=lambda i: None), collate_fn=list)) == []
    assert codes(loader(Fetching(fetch=lambda i: torch.zeros(i + 1)))) == ["samples-do-not-collate"]
    assert codes(loader(Fetching(fetch=lambda i: lambda: i), collate_fn=list)) == ["batch-not-picklable"]

    def refuse(worker: int) -> None:
        raise OSError("no such disk")

    (found,) = antifreeze.check(loader(Plain(), worker_init_fn=refuse)).findings
    assert found.code == "sample-raises" and "no such disk" in found.verdict


def test_a_sample_that_hangs_or_kills_is_contained(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as soon:
        soon.setattr("antifreeze.checks.live.samples.LIMIT_S", 0.5)
        assert codes(loader(Fetching(fetch=lambda i: threading.Event().wait()))) == ["sample-never-comes"]
    assert codes(loader(Fetching(fetch=lambda i: os.abort()))) == ["sample-kills"]


def test_without_fetching_nothing_is_loaded() -> None:
    def fail(index: int) -> Any:
        raise KeyError(index)

    assert codes(loader(Fetching(fetch=fail)), fetch=False) == []


@pytest.mark.parametrize("wrong", [None, 3, "train", {"a": 1}, Plain, len, io.StringIO()])
def test_what_is_no_data_set_is_refused(wrong: Any) -> None:
    with pytest.raises(NotCheckable):
        antifreeze.check(wrong)


def test_what_it_gives_prints_itself() -> None:
    checked = antifreeze.check(loader(Numbers(split=False)))
    assert isinstance(checked, Checked) and not checked
    assert str(checked).endswith("1 error: Numbers, batch_size=2, 2 workers by fork")
    assert checked.as_dict()["findings"][0]["code"] == "iterable-not-split"
    assert "<script" not in checked.html() and "iterable-not-split" in checked.html()
    assert antifreeze.check(Plain())


# --- the child that is asked ---


def sleeps_on() -> None:
    time.sleep(60)


def test_a_child_answers_raises_dies_or_is_ended() -> None:
    assert ask_child(lambda: {"pid": os.getpid()}, 100).answer["pid"] != os.getpid()
    assert ask_child(lambda: bytes(3_000_000), 100).answer == bytes(3_000_000)
    assert "ZeroDivisionError" in ask_child(lambda: 1 / 0, 100).trouble
    assert ask_child(lambda: os._exit(3), 100).trouble == "it died (exit code 3)"
    line = f"{__file__}:{sleeps_on.__code__.co_firstlineno + 1} in sleeps_on"
    assert ask_child(sleeps_on, 1).trouble == f"it did not answer within 1 s, at {line}"
    assert f"it died (SIGSEGV), at {__file__}:" in ask_child(lambda: os.kill(os.getpid(), signal.SIGSEGV), 100).trouble
    assert "SystemExit" in ask_child(sys.exit, 100).trouble


def test_ctrl_c_while_a_child_is_asked_leaves_no_child(tmp_path: Path) -> None:
    def slow() -> None:
        (tmp_path / "child").write_text(str(os.getpid()))
        while process_state(os.getppid()) != "S":  # Python swallows what comes while its own after-fork functions run
            time.sleep(0.01)
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        ask_child(slow, 100)
    with pytest.raises(ChildProcessError):  # it was reaped
        os.waitpid(int((tmp_path / "child").read_text()), os.WNOHANG)


def test_a_child_that_ignores_everything_and_has_children_is_ended_with_them(tmp_path: Path) -> None:
    def stubborn() -> None:
        if os.fork() == 0:
            (tmp_path / "grandchild").write_text(str(os.getpid()))
        time.sleep(60)

    assert "did not answer" in ask_child(stubborn, 2).trouble
    grandchild = int((tmp_path / "grandchild").read_text())
    deadline = time.monotonic() + 100
    while os.path.exists(f"/proc/{grandchild}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{grandchild}")


# --- ranks ---

RANK = """
import sys, torch, torch.distributed as dist, antifreeze
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
class Lines(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter(range(info.id, 1000, info.num_workers))
class ByRank(IterableDataset):
    def __iter__(self):
        info, ranks = get_worker_info(), dist.get_world_size()
        return iter(range(dist.get_rank() * info.num_workers + info.id, 1000, ranks * info.num_workers))
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
for kind in (Lines, ByRank):
    print([each.code for each in antifreeze.check(DataLoader(kind(), batch_size=2, num_workers=2)).findings])
dist.barrier()
"""


@pytest.mark.slow
def test_a_stream_that_every_rank_repeats(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RANK, str(tmp_path / "store")]
    both = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
    said = [process.communicate(timeout=100)[0].splitlines() for process in both]
    assert said == [["['iterable-not-split-by-rank']", "[]"]] * 2
