"""Workers as torch has them: their information, their init function, their copy of the data set, their life."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from antifreeze.supervisor import pool
from antifreeze.torch_private import accelerator_for_pinning
from waiting import wait_until

from .contract import REPEATS, Ours, Torchs, assert_same, build, drain, ours_only
from .datasets import Count, Info, Pinnable, Remembering, Samples, Sharded, Squares

pytestmark = REPEATS


class Notes:
    """An init function that notes its call in a folder, and lets no worker go on before all have been called."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.workers = folder, workers

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        note = f"{worker_id} {info.id} {info.num_workers} {info.seed} {torch.initial_seed()} {torch.get_num_threads()}"
        (self.folder / f"{worker_id}-{os.getpid()}.part").write_text(note)
        (self.folder / f"{worker_id}-{os.getpid()}.part").rename(self.folder / f"{worker_id}-{os.getpid()}.note")
        wait_until(lambda: len(self.notes()) % self.workers == 0)

    def notes(self) -> list[str]:
        return sorted(path.read_text() for path in self.folder.glob("*.note"))


def noted(cls: Any, folder: Path, dataset: Any, epochs: int, **kwargs: Any) -> list[str]:
    folder.mkdir()
    notes = Notes(folder, kwargs["num_workers"])
    torch.manual_seed(9)
    loader = build(cls, dataset, batch_size=2, worker_init_fn=notes, **kwargs)
    for _ in range(epochs):
        drain(loader)
    return notes.notes()


@pytest.mark.parametrize("dataset", [Squares(), Count()], ids=["map", "stream"])
@pytest.mark.parametrize("persistent", [False, True])
def test_every_worker_is_told_who_it_is(dataset: Any, persistent: bool, tmp_path: Path) -> None:
    """Once per worker and epoch, or once per worker when they persist; with torch's seeds."""
    kwargs = {"num_workers": 2, "persistent_workers": persistent}
    ours = noted(Ours, tmp_path / "ours", dataset, 2, **kwargs)
    assert ours == noted(Torchs, tmp_path / "torch", dataset, 2, **kwargs)
    assert len(ours) == (2 if persistent else 4)


def test_the_seed_comes_from_the_generator(tmp_path: Path) -> None:
    notes = noted(Ours, tmp_path / "notes", Squares(), 1, num_workers=2, generator=torch.Generator().manual_seed(5))
    base = torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(5)).item()
    assert [int(note.split()[3]) for note in notes] == [base, base + 1]


def test_worker_info_while_samples_are_loaded() -> None:
    infos = drain(Ours(Info(), batch_size=None, num_workers=2))
    bases = {info[3] - info[1] for info in infos}
    assert len(bases) == 1
    assert {info[1] for info in infos} <= {0, 1}
    assert {(info[0], info[2], info[4], info[5]) for info in infos} == {("WorkerInfo", 2, True, True)}


def test_no_worker_info_in_the_parent() -> None:
    for num_workers in (0, 1):
        for _ in Ours(Squares(), num_workers=num_workers):
            assert get_worker_info() is None
    assert {info[0] for info in drain(Ours(Info(), batch_size=None))} == {"parent"}
    assert get_worker_info() is None


def set_scale(worker_id: int) -> None:
    get_worker_info().dataset.scale = 7.0


def test_an_init_function_may_change_the_workers_copy() -> None:
    told = []
    for cls in (Ours, Torchs):
        dataset = Squares()
        told.append(drain(cls(dataset, batch_size=3, num_workers=2, worker_init_fn=set_scale)))
        assert dataset.scale == 1.0
    assert_same(told[0], told[1])
    assert told[0][0][0][0, 2] == 3.5


def test_no_init_function_without_workers() -> None:
    called: list[int] = []
    drain(Ours(Squares(), worker_init_fn=called.append))
    assert called == []


class Window(IterableDataset):  # type: ignore[type-arg]
    """torch's own example: the init function tells each worker its part."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def divide(worker_id: int) -> None:
    info = get_worker_info()
    window, step = info.dataset, -(-(info.dataset.end - info.dataset.start) // info.num_workers)
    window.start += worker_id * step
    window.end = min(window.start + step, window.end)


def test_an_init_function_may_share_out_a_stream() -> None:
    ours, torchs = (drain(build(cls, Window(3, 20), batch_size=2, num_workers=3, worker_init_fn=divide)) for cls in (Ours, Torchs))
    assert_same(ours, torchs)
    assert sorted(torch.cat(ours).tolist()) == list(range(3, 20))


CONTEXTS: list[Any] = ["fork", "spawn", multiprocessing.get_context("fork"), torch.multiprocessing.get_context("forkserver")]


@pytest.mark.parametrize("context", CONTEXTS, ids=["fork", "spawn", "fork context", "torch's forkserver context"])
def test_any_start_method(context: Any) -> None:
    told = []
    for cls, kwargs in ((Ours, {"num_workers": 1, "multiprocessing_context": context, "worker_init_fn": set_scale}), (Torchs, {})):
        torch.manual_seed(3)
        told.append(drain(cls(Squares(7, 1.0 if kwargs else 7.0), batch_size=2, shuffle=True, **kwargs)))
    assert_same(told[0], told[1])


@pytest.mark.slow
def test_a_stream_in_spawned_workers() -> None:
    ours = drain(Ours(Sharded(7), batch_size=2, num_workers=2, multiprocessing_context="spawn"))
    assert_same(ours, drain(Torchs(Sharded(7), batch_size=2, num_workers=2)))


WORD = "as imported"


@pytest.mark.filterwarnings("ignore:antifreeze. dataset.handle .* was opened before the workers are forked")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_know_what_the_parent_knew(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Globals as they are now; locks, lambdas, local classes and open files in the data set."""
    monkeypatch.setitem(globals(), "WORD", "as it is now")

    class Local(Dataset):  # type: ignore[type-arg]
        def __init__(self, handle: Any) -> None:
            self.lock, self.handle, self.double = threading.Lock(), handle, lambda index: 2 * index

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            with self.lock:
                return WORD, os.pread(self.handle.fileno(), 4, 0), self.double(index)

    with open(__file__, "rb") as handle:
        ours = drain(Ours(Local(handle), batch_size=2, num_workers=num_workers))
    assert_same(ours, [[("as it is now",) * 2, (b'"""W',) * 2, torch.tensor(pair)] for pair in ([0, 2], [4, 6])])


@pytest.mark.leaves("descriptor", why="multiprocessing keeps the arena of a Value for the next one")
def test_what_is_shared_with_workers_stays_shared() -> None:
    count, cache = multiprocessing.get_context("fork").Value("i", 0), torch.zeros(6).share_memory_()

    def sample(index: int) -> int:
        with count.get_lock():
            count.value += 1
        cache[index] = index + 1
        return index

    drain(Ours(Samples(6, sample), batch_size=2, num_workers=2))
    assert count.value == 6
    assert cache.tolist() == [1, 2, 3, 4, 5, 6]


def test_persistent_workers_keep_iterator_processes_and_data_set() -> None:
    class Known(Remembering):
        def __getitem__(self, index: int) -> Any:
            return (*super().__getitem__(index), os.getpid())

    def epochs(cls: Any) -> tuple[list[Any], int]:
        loader = cls(Known(), batch_size=2, num_workers=1, persistent_workers=True)
        first = iter(loader)
        told = [drain(first)]
        assert iter(loader) is first
        told += [drain(first), drain(loader)]
        pids = {int(pid) for epoch in told for batch in epoch for pid in batch[2]}
        return [[batch[:2] for batch in epoch] for epoch in told], len(pids)

    ours = epochs(Ours)
    assert_same(ours, epochs(Torchs))
    assert ours[1] == 1


def test_persistent_workers_left_early_start_again() -> None:
    def left(cls: Any) -> list[Any]:
        torch.manual_seed(2)
        loader = cls(Squares(20), batch_size=3, shuffle=True, num_workers=2, persistent_workers=True)
        batches = iter(loader)
        told = [next(batches), next(batches)]
        assert iter(loader) is batches
        return [*told, drain(batches), drain(loader)]

    assert_same(left(Ours), left(Torchs))


def test_workers_that_do_not_persist_start_afresh() -> None:
    def epochs(cls: Any) -> list[Any]:
        loader = cls(Remembering(), batch_size=2, num_workers=1)
        return [drain(loader), drain(loader)]

    assert_same(epochs(Ours), epochs(Torchs))


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_what_never_ends_can_be_left(num_workers: int) -> None:
    class Endless(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[int]:
            return itertools.count()

    stream, steps = Ours(Endless(), batch_size=2, num_workers=num_workers), max(num_workers, 1)
    expected = [torch.tensor([i, i + 1]) for i in range(0, 10, 2)]
    assert_same(list(itertools.islice(stream, 5 * steps))[::steps], expected)
    sampled = Ours(range(10**9), batch_size=2, sampler=itertools.count(), num_workers=num_workers)
    assert_same(list(itertools.islice(sampled, 5)), expected)


class Tidy(IterableDataset):  # type: ignore[type-arg]
    """Cleans up behind itself, in the worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            (self.folder / str(time.monotonic_ns())).touch()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_stream_that_is_left_early_may_clean_up_in_its_worker(persistent: bool, tmp_path: Path) -> None:
    for cls in (Ours, Torchs):
        loader = cls(Tidy(tmp_path), batch_size=2, num_workers=1, persistent_workers=persistent)
        for _ in range(2):
            for _batch in loader:
                break
        del loader
        gc.collect()
        assert len(list(tmp_path.iterdir())) == 2, cls
        for file in tmp_path.iterdir():
            file.unlink()


class Nest(Dataset):  # type: ignore[type-arg]
    """Loads with a loader of its own, in `inner` workers of its worker."""

    def __init__(self, cls: Any, inner: int) -> None:
        self.cls, self.inner = cls, inner

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        batches = drain(self.cls(Squares(4, float(index)), batch_size=2, num_workers=self.inner))
        assert get_worker_info() is info
        return batches


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("inner_class", [Ours, Torchs], ids=["ours in ours", "torch's in ours"])
def test_a_loader_inside_a_worker(num_workers: int, inner_class: Any) -> None:
    ours, torchs = (drain(Ours(Nest(cls, 0), batch_size=2, num_workers=num_workers)) for cls in (inner_class, Torchs))
    assert_same(ours, torchs)


@ours_only
def test_a_loader_with_workers_inside_a_worker() -> None:
    assert_same(drain(Ours(Nest(Ours, 1), batch_size=2, num_workers=2)), drain(Torchs(Nest(Torchs, 0), batch_size=2)))


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
@pytest.mark.skipif(accelerator_for_pinning() is not None, reason="about having none")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_pin_memory_without_an_accelerator_pins_nothing(num_workers: int) -> None:
    def batches(cls: Any) -> list[Any]:
        dataset = Samples(5, lambda index: torch.ones(2) * index)
        return [drain(cls(dataset, batch_size=2, num_workers=num_workers, pin_memory=True, collate_fn=fn)) for fn in (Pinnable, None)]

    ours = batches(Ours)
    assert_same(ours, batches(Torchs))
    assert not ours[0][0].pinned


def test_timeout() -> None:
    loaded, never = (multiprocessing.get_context("fork").Event() for _ in range(2))

    def sample(index: int) -> int:
        if index == 2:
            loaded.set()
            never.wait()
        return index

    batches = iter(Ours(Samples(4, sample), batch_size=2, num_workers=1, timeout=0.5))
    loaded.wait()  # the first batch is there, however long its worker was in coming
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.5 seconds"):
        next(batches)
    never.set()


def fails_in_second(worker_id: int) -> None:
    if worker_id == 1:
        raise KeyError("no decoder")


class OfWorker(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(100 * info.id, 100 * info.id + 4))


def everything(loader: Any) -> list[Any]:
    """Batches, and the names of errors, of a loop that goes on."""
    came: list[Any] = []
    batches = iter(loader)
    while True:
        try:
            came.append(next(batches).tolist())
        except StopIteration:
            return came
        except Exception as error:
            assert "worker_init_fn" in str(error)
            came.append(type(error).__name__)


@pytest.mark.parametrize(
    ("dataset", "given", "expected"),
    [
        (range(8), {}, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (range(8), {"workers": "thread"}, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (range(2), {}, [[0, 1]]),
        (OfWorker(), {}, [[0, 1], [2, 3]]),
    ],
    ids=["by index", "threads", "not needed", "streams"],
)
def test_an_init_function_that_fails_in_one_worker_is_told_in_its_turn_and_others_do_its_work(
    dataset: Any, given: dict[str, Any], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "INITS_S", 100.0)
    came = everything(Ours(dataset, batch_size=2, num_workers=2, worker_init_fn=fails_in_second, **given))
    assert came.index("KeyError") > 0
    came.remove("KeyError")
    assert came == expected


def test_an_init_function_that_fails_everywhere_ends_in_as_many_errors_as_there_are_batches() -> None:
    def fail(worker_id: int) -> None:
        raise KeyError("no decoder")

    assert everything(Ours(range(8), batch_size=2, num_workers=1, worker_init_fn=fail)) == ["KeyError"] * 4
