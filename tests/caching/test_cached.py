"""`cached` under our loader and torch's own: each sample read once, the same samples and random numbers, none kept that must not be."""

from __future__ import annotations

import base64
import copy
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, DistributedSampler, IterableDataset, Subset, get_worker_info
from torch.utils.data import DataLoader as TorchDataLoader

from antifreeze import DataLoader, OptionError, StaleCache, cached
from antifreeze.caching.folder import FORMAT, META
from antifreeze.delivery.likeness import attributes, likeness
from antifreeze.slots.parcel import unpack
from caching.data import COUNT, Augmented, Drawing, DrawingLate, Flock, Late, LateFlock, Locked, OwnGenerator, Sheep, asked, note
from slots.same import assert_same

ALL = list(range(COUNT))
WAYS: dict[str, Callable[..., Any]] = {
    "inline": lambda dataset, **more: DataLoader(dataset, num_workers=0, **more),
    "processes": lambda dataset, **more: DataLoader(dataset, num_workers=2, **more),
    "threads": lambda dataset, **more: DataLoader(dataset, num_workers=3, workers="thread", **more),
    "auto": lambda dataset, **more: DataLoader(dataset, num_workers="auto", **more),
    "torch": lambda dataset, **more: TorchDataLoader(dataset, num_workers=0, **more),
    "torch, workers": lambda dataset, **more: TorchDataLoader(dataset, num_workers=2, **more),
}
OURS = ["inline", "processes", "threads", "auto"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def through(way: str, dataset: Any, **more: Any) -> list[Any]:
    loader = WAYS[way](dataset, batch_size=7, collate_fn=as_list, **more)
    return [sample for batch in loader for sample in batch]


@pytest.mark.parametrize("way", WAYS)
def test_each_sample_is_read_once_and_comes_as_it_was(way: str, log: Path, folder: Path) -> None:
    data = Sheep(log)
    for epoch in range(3):
        samples = through(way, cached(data, folder, check=False))
        for index, sample in enumerate(samples):
            assert_same(sample, data.made(index))
        assert_read(way, log, [] if epoch else ALL)


def assert_read(way: str, log: Path, wanted: list[int]) -> None:
    """Each of them once; in threads a task may be loaded again, and what loads while another thread seeds generators is kept later."""
    found = sorted(asked(log))
    if way == "threads":
        assert {*wanted} <= {*found} and len(found) < len(wanted) + COUNT // 4
    else:
        assert found == wanted


@pytest.mark.parametrize("kind", [Flock, Late, LateFlock])
@pytest.mark.parametrize("way", OURS)
def test_data_sets_that_give_many_or_are_awaited(way: str, kind: Any, log: Path, folder: Path) -> None:
    data = kind(log)
    first = through(way, Subset(cached(data, folder, check=False), range(0, COUNT, 2)))
    asked(log)
    then = through(way, cached(data, folder, check=False))
    assert_read(way, log, ALL[1::2])  # what was there is not asked for again
    assert_same(first, [data.made(index) for index in range(0, COUNT, 2)])
    assert_same(then, [data.made(index) for index in ALL])


def test_what_is_missing_of_a_batch_comes_in_one_call(log: Path, folder: Path) -> None:
    calls: list[list[int]] = []

    class Calls(Flock):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            calls.append(list(indices))
            return super().__getitems__(indices)

    data = Calls(log)
    keeps: Any = cached(data, folder, check=False)
    keeps.__getitems__([1, 3])
    samples = keeps.__getitems__([0, 1, 2, 3, 4])
    assert calls == [[1, 3], [0, 2, 4]]
    assert_same(samples, [data.made(index) for index in range(5)])


@pytest.mark.parametrize("inner", ["subset", "concat"])
def test_data_sets_of_data_sets(inner: str, log: Path, folder: Path) -> None:
    data = Sheep(log)
    whole: Any = Subset(data, ALL[::-1]) if inner == "subset" else ConcatDataset([Subset(data, ALL[:30]), Subset(data, ALL[30:])])
    for _ in range(2):
        samples = through("processes", cached(whole, folder, check=False))
        assert [sample["y"] for sample in samples] == (ALL[::-1] if inner == "subset" else ALL)
    assert sorted(asked(log)) == ALL
    with pytest.raises(StaleCache, match=r"there: class '.*Subset of Sheep'\n  here:  class 'Sheep'"):
        cached(data, tmp_of_class(whole, folder, log))


def tmp_of_class(whole: Any, folder: Path, log: Path) -> Path:
    if type(whole) is Subset:
        return folder
    other = folder.parent / "other"
    cached(Subset(Sheep(log), ALL), other)
    return other


def test_samples_are_the_users_own(log: Path, folder: Path) -> None:
    keeps: Any = cached(Sheep(log), folder)
    for _ in range(3):
        sample = keeps[5]
        assert_same(sample, Sheep(log).made(5))
        sample["x"].zero_()
        sample["a"][:] = 0
        sample["parts"][1].append(3)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "auto"])
def test_random_numbers_are_those_without_a_cache(way: str, log: Path, folder: Path) -> None:
    def run(dataset: Any) -> Any:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        loader = WAYS[way](Augmented(dataset), batch_size=7, shuffle=True)
        batches = [batch for _ in range(2) for batch in loader]
        return batches, torch.rand(1), random.random(), np.random.rand()

    plain, first, then = run(Sheep(log)), run(cached(Sheep(log), folder)), run(cached(Sheep(log), folder))
    assert_same(plain, first)
    assert_same(plain, then)


@pytest.mark.parametrize("source", ["torch", "random", "numpy.random"])
@pytest.mark.parametrize("way", WAYS)
def test_samples_that_draw_are_never_kept(way: str, source: str, log: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = Drawing(log)
    data.source = source
    keeps = cached(data, folder)
    epochs = [torch.stack(through(way, keeps)) for _ in range(3)]
    kept = sorted({*ALL} - {*missing_of(data, folder)})
    assert not set(kept) & set(range(0, COUNT, 3))
    if way != "threads":  # there another thread's draws may have come between
        assert kept == [index for index in ALL if index % 3]
    drawn = [epoch[::3, 1] for epoch in epochs]
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[1], drawn[2])
    said = capfd.readouterr().err
    assert said.count("draws random numbers") == 1
    assert f"draws random numbers ({source}): such samples are not kept" in said


def missing_of(data: Any, folder: Path) -> list[int]:
    return [int(index) for index in cached(data, folder)._files().missing()]


@pytest.mark.parametrize("way", ["processes", "threads", "inline"])
def test_what_awaited_samples_draw_is_not_blamed_on_others(way: str, log: Path, folder: Path) -> None:
    data = DrawingLate(log)
    for _ in range(4):
        through(way, cached(data, folder))
    kept = set(ALL) - set(missing_of(data, folder))
    assert not kept & set(range(0, COUNT, 3))
    assert len(kept) > COUNT // 3


def test_random_samples_come_with_the_numbers_they_have_without_a_cache(log: Path, folder: Path) -> None:
    def run(dataset: Any, **how: Any) -> Any:
        torch.manual_seed(2)
        return [batch for _ in range(2) for batch in DataLoader(dataset, batch_size=7, **how)]

    for how in ({"num_workers": 0}, {"num_workers": 2}, {"num_workers": 3, "workers": "thread"}):
        shutil.rmtree(folder, ignore_errors=True)
        plain = run(Drawing(log), **how)
        assert_same(plain, run(cached(Drawing(log), folder), **how))
        assert_same(plain, run(cached(Drawing(log), folder), **how))


class Contained(Dataset[Any]):
    """Draws beyond a hand, in a state of its own, before it asks the cache."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            beyond = torch.rand(700)[-1]
        return self.dataset[index]["y"], beyond, torch.rand(1)


def test_the_seal_of_torchs_generator_stays_broken(log: Path, folder: Path) -> None:
    def run(dataset: Any) -> Any:
        torch.manual_seed(2)
        return list(DataLoader(Contained(dataset), batch_size=7, num_workers=1))

    plain = run(Sheep(log))
    assert_same(plain, run(cached(Sheep(log), folder)))
    assert_same(plain, run(cached(Sheep(log), folder)))


def test_draws_of_other_threads_are_not_the_samples(log: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What cannot be kept for sure now is kept later, and who may have drawn is named."""
    keeps = cached(Sheep(log), folder)
    ends = threading.Event()

    def draw() -> None:
        while not ends.is_set():
            random.random()
            time.sleep(0.0002)

    drawing = threading.Thread(target=draw, name="augmenter")
    drawing.start()
    through("threads", keeps)
    ends.set()
    drawing.join()
    for _ in range(3):
        through("threads", keeps)
    assert keeps.held()[0] == COUNT
    said = capfd.readouterr().err
    assert said.count("draws random numbers") == said.count("draws random numbers (random; unless it is the thread augmenter)")


def test_draws_of_the_loop_are_not_the_samples(log: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keeps = cached(Sleepy(log), folder)
    loader = DataLoader(keeps, batch_size=3, num_workers=3, workers="thread", collate_fn=as_list)
    for _ in loader:
        ends_s = time.monotonic() + 0.01
        while time.monotonic() < ends_s:
            random.random()
    loader.close()
    assert keeps.held()[0] < COUNT  # some were loaded meanwhile, or this shows nothing
    assert "draws random numbers" not in capfd.readouterr().err
    for _ in range(3):
        through("threads", keeps)
    assert keeps.held()[0] == COUNT


class Sleepy(Sheep):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.003)
        return super().__getitem__(index)


class Wasteful(Sheep):
    """Draws, from a day on, and makes no use of it."""

    draws = False

    def __getitem__(self, index: int) -> Any:
        if self.draws:
            random.random()
            torch.rand(1)
            np.random.rand()
        return super().__getitem__(index)


@pytest.mark.parametrize("way", ["inline", "torch", "torch, workers"])
def test_the_sample_that_is_compared_moves_no_generator(way: str, log: Path, folder: Path) -> None:
    def run(dataset: Any) -> Any:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        return list(WAYS[way](Augmented(dataset), batch_size=7)), torch.rand(1), random.random(), np.random.rand()

    data = Wasteful(log)
    plain = run(data)
    cached(data, folder).fill(num_workers=0, progress=False)
    asked(log)
    data.draws = True
    assert_same(plain, run(cached(data, folder)))
    assert asked(log)  # it was compared


@pytest.mark.filterwarnings("ignore:antifreeze. dataset.dataset.own")  # the loader has seen it, too
@pytest.mark.parametrize("way", ["inline", "processes", "threads", "torch, workers"])
def test_samples_with_a_generator_of_their_own_are_not_kept(way: str, log: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keeps = cached(OwnGenerator(log), folder)
    for _ in range(2):
        through(way, keeps)
    assert keeps.held() == (0, 0)
    said = capfd.readouterr().err
    assert said.count("is another one when it is loaded again, at ['noise'] the values are others") == 1


def test_what_cannot_be_pickled_is_handed_out(log: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keeps: Any = cached(Locked(log), folder)
    for _ in range(2):
        assert [keeps[index]["index"] for index in ALL] == ALL
    assert keeps.held()[0] == COUNT - 1
    said = capfd.readouterr().err
    assert said.count("sample 7 cannot be pickled, and is not kept: TypeError: cannot pickle '_thread.lock' object") == 1


# --- samples of another time ---


@pytest.mark.parametrize("kind", [Sheep, Flock, Late])
@pytest.mark.parametrize("way", OURS)
def test_changed_samples_are_found(way: str, kind: Any, log: Path, folder: Path) -> None:
    through("processes", cached(kind(log), folder))
    with pytest.raises(StaleCache, match=r"sample \d+, at \['x'\] the values are others"):
        through(way, cached(kind(log, plus=0.5), folder))
    through(way, cached(kind(log, plus=0.5), folder, check=False))


def test_two_data_sets_that_fill_one_folder_together_are_found(log: Path, folder: Path) -> None:
    """The same class and length: train and val, or each rank with its own part. What one wrote itself says nothing of the others'."""
    one, other = (cached(Flock(log, plus=plus), folder) for plus in (0.0, 1000.0))
    for index in range(0, COUNT, 2):
        one[index]
        other[index + 1]
    later, together = (cached(Flock(log), folder) for _ in range(2))
    assert one.held()[0] == other.held()[0] == COUNT
    assert one[2]["y"] == other[3]["y"] - 1 == later[2]["y"] == 2
    for ask, given in ((one.__getitem__, 1), (other.__getitem__, 0), (later.__getitem__, 5), (together.__getitems__, [4, 5])):
        with pytest.raises(StaleCache, match="holds other samples"):
            ask(given)


def test_what_many_processes_of_one_job_wrote_is_compared_once(log: Path, folder: Path) -> None:
    data = cached(Sheep(log), folder)
    for index in range(4):
        copy.deepcopy(data)[index]
    assert len(list(folder.glob("*.index"))) == 4
    asked(log)
    later = cached(Sheep(log), folder)
    for index in range(4):
        later[index]
    assert asked(log) == [0]


@pytest.mark.parametrize("policy", ["skip", "replace", lambda index, error: "skip"], ids=["skip", "replace", "callable"])
@pytest.mark.parametrize("way", OURS)
def test_stale_files_are_no_bad_samples(way: str, policy: Any, log: Path, folder: Path) -> None:
    """All of them would be skipped, and the loop would end with nothing."""
    through("inline", cached(Sheep(log), folder))
    with pytest.raises(StaleCache, match="holds other samples than the data set gives now"):
        through(way, cached(Sheep(log, plus=0.5), folder), on_bad_sample=policy)


def test_a_stale_folder_stays_stale(log: Path, folder: Path) -> None:
    through("inline", cached(Sheep(log), folder))
    keeps = cached(Sheep(log, plus=0.5), folder)
    for _ in range(3):
        with pytest.raises(StaleCache, match="holds other samples than the data set gives now"):
            through("inline", keeps, on_bad_sample="skip")


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda log, folder: cached(Sheep(log, COUNT + 1), folder), f"there: len {COUNT}\n  here:  len {COUNT + 1}"),
        (lambda log, folder: cached(Flock(log), folder), "there: class 'Sheep'\n  here:  class 'Flock'"),
        (lambda log, folder: cached(Sheep(log), folder, version="2"), "there: version ''\n  here:  version '2'"),
    ],
)
def test_another_data_set_is_refused(other: Callable[[Path, Path], Any], told: str, log: Path, folder: Path) -> None:
    cached(Sheep(log), folder)
    with pytest.raises(StaleCache) as raised:
        other(log, folder)
    assert told in str(raised.value) and "what to do" in str(raised.value)
    cached(Sheep(log), folder)


def test_what_a_data_set_has_opened_is_nothing_of_its_class(log: Path, folder: Path) -> None:
    opened, fresh = Opening(log), Opening(log)
    opened[0]
    for data in (opened, fresh, Opening(log)):
        assert cached(data, folder)[1]["y"] == 1


class Opening(Sheep):
    """It opens a file when it is first asked, as those of HDF5 do."""

    dataset: Any = None

    def __getitem__(self, index: int) -> Any:
        self.dataset = self.dataset or [self.made(number) for number in range(COUNT)]
        return self.dataset[index]


def test_a_damaged_meta_file_is_named(log: Path, folder: Path) -> None:
    cached(Sheep(log), folder)
    (folder / META).write_text("{")
    with pytest.raises(StaleCache, match=META):
        cached(Sheep(log), folder)


def test_storage_that_is_away_does_not_matter_once_samples_are_kept(log: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Away(Sheep):
        is_away = False

        def __getitem__(self, index: int) -> Any:
            if self.is_away:
                raise OSError("the share is not mounted")
            return super().__getitem__(index)

    data = Away(log)
    through("inline", cached(data, folder))
    data.is_away = True
    assert [sample["y"] for sample in through("inline", cached(data, folder))] == ALL
    assert "could not be compared with what the data set gives now: OSError: the share is not mounted" in capfd.readouterr().err


def test_samples_equal_in_another_way_are_no_difference(log: Path, folder: Path) -> None:
    class Odd(Sheep):
        def __getitem__(self, index: int) -> Any:
            word = "".join(["wo", "rd"])
            shared = [word, word] if os.environ.get("SHARED") else [word, "".join(["wo", "rd"])]
            return {
                "words": set("abcdefgh"),
                "shared": shared,
                "thing": Thing(index),
                "nan": float("nan"),
                "t": torch.tensor([float("nan")]),
            }

    through("inline", cached(Odd(log), folder))
    os.environ["SHARED"] = "1"
    try:
        through("inline", cached(Odd(log), folder))
    finally:
        del os.environ["SHARED"]


class Thing:
    def __init__(self, index: int) -> None:
        self.index = index
        self.values = np.arange(index)


# --- processes ---


def test_used_before_a_fork_and_pickled_and_copied(log: Path, folder: Path) -> None:
    keeps: Any = cached(Sheep(log), folder, check=False)
    first = keeps[0]
    for copied in (pickle.loads(pickle.dumps(keeps)), copy.deepcopy(keeps), copy.copy(keeps)):
        assert_same(copied[0], first)
    assert [sample["y"] for sample in through("processes", keeps)] == ALL
    assert sorted(asked(log)) == ALL
    child = multiprocessing.get_context("fork").Process(target=has_let_go, args=(keeps,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    child.close()
    names = {path.stem for path in folder.glob("*.index")}
    assert len(names) == 3 and len({name.split("-")[1] for name in names}) == 3  # of this process, and of each worker
    spawned = DataLoader(keeps, batch_size=30, collate_fn=as_list, num_workers=1, multiprocessing_context="spawn")
    assert [sample["y"] for batch in spawned for sample in batch] == ALL
    assert asked(log) == []


def has_let_go(keeps: Any) -> None:
    """A child has nothing of its parent's any more: tables, and descriptors."""
    before = len(os.listdir("/proc/self/fd"))
    keeps.held()
    assert list(keeps._here._by_pid) == [os.getpid()]
    assert len(os.listdir("/proc/self/fd")) < before


def test_epochs_after_the_first_make_no_segment(log: Path, folder: Path) -> None:
    keeps = cached(Sheep(log), folder, check=False)
    through("processes", keeps)
    segments = len(list(folder.glob("*.index")))
    for _ in range(3):
        through("torch, workers", keeps)
        through("processes", keeps, recycle_worker_after=10)
    assert len(list(folder.glob("*.index"))) == segments == 2


def test_what_is_read_and_written_is_no_change_of_the_data_set(log: Path, folder: Path) -> None:
    """Or workers would be started anew for the next epoch."""
    keeps: Any = cached(Sheep(log), folder)
    before = likeness(keeps), attributes(keeps)
    for _ in range(2):
        list(keeps)
    assert (likeness(keeps), attributes(keeps)) == before


class Deadly(Sheep):
    def __getitem__(self, index: int) -> Any:
        if index == 31 and get_worker_info() is not None and not self.log.with_name("died").exists():
            self.log.with_name("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_worker_that_is_killed(log: Path, folder: Path) -> None:
    keeps = cached(Deadly(log), folder, check=False)
    assert [sample["y"] for sample in through("processes", keeps)] == ALL
    asked(log)
    assert [sample["y"] for sample in through("processes", keeps)] == ALL
    assert asked(log) == []


def test_two_jobs_at_once(log: Path, folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    jobs = [context.Process(target=job, args=(log, folder, number)) for number in range(3)]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join(120)
        assert each.exitcode == 0
        each.close()
    assert cached(Sheep(log), folder).held()[0] == COUNT


def job(log: Path, folder: Path, number: int) -> None:
    keeps: Any = cached(Sheep(log), folder)
    order = np.random.default_rng(number).permutation(COUNT)
    for _ in range(2):
        for index in order:
            assert_same(keeps[index], Sheep(log).made(int(index)))


def test_ranks(log: Path, folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=rank_of, args=(log, folder, rank)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(120)
        assert each.exitcode == 0
        each.close()
    found = asked(log)
    assert sorted({*found}) == ALL and len(found) < 2 * COUNT  # of four epochs; in the first they share the work


def rank_of(log: Path, folder: Path, rank: int) -> None:
    sampler: Any = DistributedSampler(range(COUNT), num_replicas=2, rank=rank, shuffle=True)  # type: ignore[arg-type]
    loader = DataLoader(cached(Sheep(log), folder, check=False), batch_size=7, sampler=sampler, num_workers=2, collate_fn=as_list)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        samples = [sample for batch in loader for sample in batch]
        assert_same(samples, [Sheep(log).made(index) for index in sampler])
    loader.close()


def test_a_resumed_epoch(log: Path, folder: Path) -> None:
    def loader() -> Any:
        return DataLoader(
            Augmented(cached(Sheep(log), folder)), batch_size=7, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(4)
        )

    whole = list(loader())
    broken = loader()
    iterator = iter(broken)
    first = [next(iterator) for _ in range(3)]
    state = broken.state_dict()
    broken.close()
    resumed = loader()
    resumed.load_state_dict(state)
    assert_same(whole, [*first, *resumed])


# --- the folder ---


def test_damage_costs_one_loading_and_is_said_once(log: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    through("inline", cached(Sheep(log), folder, check=False))
    for data in folder.glob("*.data"):
        content = bytearray(data.read_bytes())
        content[100::4096] = bytes(byte ^ 1 for byte in content[100::4096])
        data.write_bytes(content)
    asked(log)
    for epoch in range(2):
        for index, sample in enumerate(through("processes", cached(Sheep(log), folder, check=False))):
            assert_same(sample, Sheep(log).made(index))
        again = asked(log)
        assert again if not epoch else not again
    assert capfd.readouterr().err.count("is damaged or gone; it is loaded again, and written anew") == 1


def test_a_folder_that_is_deleted_meanwhile(log: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keeps: Any = cached(Sheep(log), folder, check=False)
    before = [keeps[index] for index in range(5)]
    shutil.rmtree(folder)
    time.sleep(0.25)
    assert_same([keeps[index] for index in range(5)], before)
    assert [sample["y"] for sample in through("processes", keeps)] == ALL
    assert [sample["y"] for sample in through("inline", keeps)] == ALL
    assert "No such file or directory" in capfd.readouterr().err


def test_a_folder_that_cannot_be_written(
    log: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: Any, **more: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "makedirs", refuse)
        keeps = cached(Sheep(log), folder)
    folder.mkdir()
    for way in ("inline", "processes"):
        assert [sample["y"] for sample in through(way, keeps)] == ALL
    assert capfd.readouterr().err == f"antifreeze: no samples are written to {folder}: [Errno 13] Permission denied\n"
    assert not list(folder.glob("*.data"))  # without the file that tells whose they are


def test_a_folder_that_can_only_be_read(
    log: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    through("inline", Subset(cached(Sheep(log), folder, check=False), range(30)))
    asked(log)
    opens = os.open

    def read_only(path: Any, flags: int, *more: Any, **others: Any) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(folder)):
            raise OSError(30, "Read-only file system", path)
        return opens(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", read_only)
    assert [sample["y"] for sample in through("inline", cached(Sheep(log), folder, check=False))] == ALL
    assert asked(log) == ALL[30:]
    said = capfd.readouterr().err
    assert said.count("antifreeze:") == 1 and "no more samples are written to" in said and "Read-only file system" in said


def test_a_second_loading_that_fails_costs_nothing(log: Path, folder: Path) -> None:
    class Once(Sheep):
        done: ClassVar[set[int]] = set()

        def __getitem__(self, index: int) -> Any:
            if index < 3 and index in self.done:
                raise OSError("once is enough")
            self.done.add(index)
            return super().__getitem__(index)

    keeps: Any = cached(Once(log), folder)
    assert [keeps[index]["y"] for index in ALL] == ALL
    assert keeps.held()[0] == COUNT - 3


def test_max_bytes_is_said_once_and_the_run_goes_on(log: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keeps = cached(Sheep(log), folder, max_bytes=20_000)
    for _ in range(2):
        assert [sample["y"] for sample in through("processes", keeps)] == ALL
    samples, size = keeps.held()
    assert 0 < samples < COUNT and size < 23_000
    said = capfd.readouterr().err
    assert said.count("antifreeze:") == 1 and "no more samples are written to" in said and "max_bytes=20,000 is reached" in said


def test_fill_reads_what_is_missing(log: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keeps: Any = cached(Sheep(log), folder, check=False)
    keeps[3]
    torch.manual_seed(1)
    assert keeps.fill(num_workers=2) == COUNT
    assert sorted(asked(log)) == ALL
    numbers = torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == numbers
    assert keeps.fill(num_workers=0) == COUNT and asked(log) == []
    assert repr(keeps).startswith(f"<cached Sheep: {COUNT} of {COUNT} samples in {folder}, ")
    assert capfd.readouterr().err.count(f"{COUNT} of {COUNT} samples are in {folder}") == 2


@pytest.mark.parametrize("how", [{"num_workers": 2}, {"num_workers": 2, "multiprocessing_context": "spawn"}, {"num_workers": 0}])
def test_fill_says_what_could_not_be_kept(how: Any, log: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cached(Drawing(log), folder).fill(progress=False, **how) == COUNT - COUNT // 3
    assert f"{COUNT // 3} samples could not be kept: random numbers are drawn (torch) (sample 0, say)" in capfd.readouterr().err


def test_fill_takes_only_what_can_be_chosen(log: Path, folder: Path) -> None:
    with pytest.raises(OptionError, match="batch_size, shuffle"):
        cached(Sheep(log), folder).fill(shuffle=True, batch_size=3)


# --- at the door ---


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


class NoLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"dataset": Stream()}, "Stream has no samples by number"),
        ({"dataset": NoLength()}, r"NoLength has no len\(\)"),
        ({"dataset": 5}, "int has no samples by number"),
        ({"folder": 5}, "folder=5 is not the path of a folder"),
        ({"folder": ""}, "folder='' is not the path of a folder"),
        ({"folder": __file__}, "is a file"),
        ({"folder": __file__ + "/below"}, "is a file, or below one"),
        ({"max_bytes": 0}, "max_bytes=0 must be None or a number of bytes, 1 or more"),
        ({"max_bytes": 1e9}, "max_bytes=1000000000.0 must be"),
        ({"max_bytes": True}, "max_bytes=True must be"),
        ({"version": 2}, "version=2 must be a text"),
        ({"check": 1}, "check=1 must be True or False"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], told: str, log: Path, folder: Path) -> None:
    arguments = {"dataset": Sheep(log), "folder": folder, **given}
    with pytest.raises(OptionError, match=told):
        cached(**arguments)


def test_an_empty_data_set(log: Path, folder: Path) -> None:
    keeps = cached(Sheep(log, 0), folder)
    assert keeps.fill(num_workers=0) == 0 and keeps.held() == (0, 0) and len(keeps) == 0


def test_samples_of_torchs_workers_without_batches(log: Path, folder: Path) -> None:
    """They send the very tensors that were read, through shared memory."""
    for _ in range(2):
        loader = TorchDataLoader(cached(Sheep(log), folder), batch_size=None, num_workers=2)
        assert_same([sample["x"] for sample in loader], [Sheep(log).made(index)["x"] for index in ALL])


OF_FORMAT_1 = (
    "c$}qBy9&ZU5WLF+8?p5lk|v;nt)<0+g@v7jC>tWgi(D?Ef?#7nxX$%|{4`H;Ru(~=g`JsQmVxzHgNx<FGUE-+KYQ!D)<3QH*nhbAkA;<I3N$~E?k7TRQi*uN"
    "sLTshM!Q6=F(=)N6^gQuv8c8ylyoOxSDKUNM+%^${Sx;mXqI`v-*ZJ()Sf@J5}YLk0WebzxHW+bye93dLasBz8=(eclX+7ni~|e9%+;MVFA_BxHgl}0E$|DR"
    "Im|VG^nX44VDfG+e?vc4"
)
"""A payload that the first version wrote: folders of it must stay readable, or FORMAT must be another one."""


def test_payloads_of_this_format_stay_readable() -> None:
    payload = np.frombuffer(zlib.decompress(base64.b85decode(OF_FORMAT_1)), dtype=np.uint8).copy()
    sample = {"x": torch.arange(6, dtype=torch.int16).reshape(2, 3), "y": (7, "seven", None, torch.tensor(0.5))}
    assert FORMAT == 1
    assert_same(unpack(payload), sample)


def test_keys_that_are_no_numbers_are_named(log: Path, folder: Path) -> None:
    keeps: Any = cached(Sheep(log), folder)
    with pytest.raises(TypeError, match="the sample 'seven' is not asked for by a number"):
        keeps["seven"]
    for key in (-1, COUNT):
        with pytest.raises(IndexError, match=f"there is no sample {key}"):
            keeps[key]
    assert_same(keeps[np.int64(3)], keeps[torch.tensor(3)])
    assert len(list(keeps)) == len(keeps) == COUNT
    assert keeps.dataset.count == COUNT


def test_a_none_is_not_kept(log: Path, folder: Path) -> None:
    class Gaps(Sheep):
        def __getitem__(self, index: int) -> Any:
            note(self.log, index)
            return None if index == 2 else index

    keeps: Any = cached(Gaps(log), folder)
    assert [keeps[index] for index in range(4)] == [0, 1, None, 3]
    assert keeps.held()[0] == 3


def test_batches_without_a_list_are_handed_on(log: Path, folder: Path) -> None:
    class Table(Sheep):
        def __getitems__(self, indices: list[int]) -> Any:
            return {"y": torch.tensor(indices)}

    keeps: Any = cached(Table(log), folder)
    for _ in range(2):
        assert keeps.__getitems__([1, 2])["y"].tolist() == [1, 2]
    assert keeps.held()[0] == 0
