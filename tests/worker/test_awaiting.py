"""Data sets whose `__getitem__` is a coroutine: order, errors, deadlines and random numbers of each sample, whatever waits beside it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import os
import random
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from antifreeze import DataLoader
from antifreeze.errors import AntifreezeWarning, LoadingError, OptionError, SampleTimeout
from antifreeze.worker.awaiting import AHEAD, AsyncMapFetcher
from antifreeze.worker.steps import Steps

PLACES = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}]
IDS = ["inline", "processes", "threads"]
everywhere = pytest.mark.parametrize("place", PLACES, ids=IDS)


class Awaited:
    def __init__(self, sample: Any, count: int = 20) -> None:
        self.sample, self.count = sample, count

    def __len__(self) -> int:
        return self.count

    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0.001 * (index % 3))
        return await self.sample(index)


async def itself(index: int) -> int:
    return index


def loader_of(sample: Any, place: dict[str, Any], **options: Any) -> Any:
    return DataLoader(Awaited(sample), **{"batch_size": 5, "keep_batches_full": False} | place | options)


def indices(loader: Any) -> list[int]:
    return [int(index) for batch in loader for index in batch]


@everywhere
def test_order(place: dict[str, Any]) -> None:
    assert indices(loader_of(itself, place)) == list(range(20))
    assert indices(loader_of(itself, place, collate_fn=list)) == list(range(20))
    assert indices([[batch] for batch in loader_of(itself, place, batch_size=None)]) == list(range(20))


class Counting(Awaited):
    """How many wait at once, in one loop."""

    now = most = 0

    async def __getitem__(self, index: int) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.05)
        self.now -= 1
        return self.most


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (4, 4), (32, 20)])
def test_as_many_wait_at_once_as_were_asked_for(concurrency: int, most: int) -> None:
    (batch,) = DataLoader(Counting(itself), batch_size=20, concurrency=concurrency)
    assert batch.max() == most
    assert max(max(batch.tolist()) for batch in DataLoader(Counting(itself), batch_size=20, num_workers=1, concurrency=concurrency)) == most


@everywhere
def test_an_exception_is_its_samples(place: dict[str, Any]) -> None:
    async def sample(index: int) -> int:
        if index == 7:
            raise KeyError("no such row")
        return index

    with pytest.raises(KeyError):
        indices(loader_of(sample, place))
    loader = loader_of(sample, place, on_bad_sample="skip")
    assert indices(loader) == [index for index in range(20) if index != 7]
    assert [bad.failure.index for bad in loader.report().bad_samples] == ["7"]


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit])
@pytest.mark.parametrize("place", PLACES[1:], ids=IDS[1:])
def test_an_exit_is_its_samples_and_ends_no_worker(place: dict[str, Any], kind: type[BaseException]) -> None:
    async def leaves(index: int) -> int:
        if index == 7:
            raise kind("enough")
        return index

    loader = loader_of(leaves, place, on_bad_sample="skip")
    assert indices(loader) == [index for index in range(20) if index != 7]
    assert loader.report().restarts == 0
    with pytest.raises(LoadingError, match=f"sample 7: __getitem__ raised {kind.__name__}: enough"):
        indices(loader_of(leaves, place))


def test_without_workers_an_exit_is_the_programs() -> None:
    async def leaves(index: int) -> int:
        raise GeneratorExit("enough")

    with pytest.raises(GeneratorExit, match="enough"):
        indices(loader_of(leaves, PLACES[0], on_bad_sample="skip"))


@everywhere
@pytest.mark.parametrize("obeys", [True, False])
def test_a_sample_that_waits_for_ever_is_cancelled_and_it_alone_is_bad(place: dict[str, Any], obeys: bool) -> None:
    async def sample(index: int) -> int:
        if index == 7:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not obeys:
                    await asyncio.sleep(60)
                raise
        return index

    loader = loader_of(sample, place, on_bad_sample="skip", sample_timeout_s=0.6)
    assert indices(loader) == [index for index in range(20) if index != 7]
    report = loader.report()
    assert report.restarts == 0
    assert report.bad_samples[0].failure.type_name == "SampleTimeout"
    assert "test_awaiting.py" in report.bad_samples[0].failure.traceback_text


def test_a_deadline_is_raised() -> None:
    async def sample(index: int) -> None:
        await asyncio.Event().wait()

    with pytest.raises(SampleTimeout, match=r"sample 0 took longer than 0\.2 s"):
        indices(loader_of(sample, {"num_workers": 1}, sample_timeout_s=0.2))


def test_a_sample_that_keeps_the_loop_is_known_by_the_journal() -> None:
    async def sample(index: int) -> int:
        if index == 7:
            time.sleep(60)
        return index

    loader = loader_of(sample, {"num_workers": 2}, on_bad_sample="skip", sample_timeout_s=0.8)
    assert indices(loader) == [index for index in range(20) if index != 7]
    assert loader.report().restarts == 1


@everywhere
@pytest.mark.parametrize("value", [None, "cancels itself"])
def test_none_and_cancelled_are_bad_samples(place: dict[str, Any], value: Any) -> None:
    async def sample(index: int) -> Any:
        if index == 7 and value is not None:
            raise asyncio.CancelledError
        return None if index == 7 else index

    assert indices(loader_of(sample, place, on_bad_sample="skip")) == [index for index in range(20) if index != 7]


async def drawn(index: int) -> float:
    first = random.random() + float(np.random.rand())
    await asyncio.sleep(0.001 * (index % 4))
    return first + random.random() + float(torch.rand(()))


async def drawn_late(index: int) -> float:
    await asyncio.sleep(0.001 * (index % 4))
    return random.random() if index > 12 else float(index)


@pytest.mark.parametrize("sample", [drawn, drawn_late], ids=["always", "late"])
def test_random_numbers_do_not_depend_on_who_waits_beside(sample: Any) -> None:
    runs = []
    for place in (*PLACES, {"num_workers": 0, "concurrency": 1}, {"num_workers": 2, "concurrency": 2}):
        random.seed(1), np.random.seed(2), torch.manual_seed(3)
        loader = loader_of(sample, place)
        runs.append([batch.tolist() for batch in loader])
        if sample is drawn or place.get("workers") != "thread":
            assert random.random() == random.Random(1).random(), "the loop's own numbers are untouched"
    assert all(run == runs[0] for run in runs[1:])


def test_random_numbers_of_samples_in_several_threads() -> None:
    """A step is not over when another thread runs; and in the thread whose first samples come late nobody knows yet that samples draw."""

    async def drawn_twice(index: int) -> torch.Tensor:
        await asyncio.sleep(0.05 * (index < 4))
        first = torch.randint(1 << 30, ())
        time.sleep(0.002)
        return torch.stack([first, torch.randint(1 << 30, ())])

    def drawn_in(place: dict[str, Any]) -> list[Any]:
        torch.manual_seed(0)
        return [batch.tolist() for _ in range(3) for batch in loader_of(drawn_twice, place, batch_size=10)]

    assert drawn_in({"num_workers": 2, "workers": "thread"}) == drawn_in({"num_workers": 0})


class Many(Awaited):
    async def __getitems__(self, indices: list[int]) -> list[int]:
        await asyncio.sleep(0.001)
        return [-index for index in indices]


@everywhere
def test_many_at_once_by_the_data_set_itself(place: dict[str, Any]) -> None:
    assert indices(DataLoader(Many(itself), batch_size=5, **place)) == [-index for index in range(20)]


class ManyThatWait(Awaited):
    async def __getitems__(self, indices: list[int]) -> list[Any]:
        return [await self.sample(index) for index in indices]


@pytest.mark.parametrize("place", PLACES[1:], ids=IDS[1:])
@pytest.mark.parametrize(("kind", "batch_size"), [(ManyThatWait, 5), (Awaited, None)], ids=["__getitems__", "a sample is a batch"])
def test_what_is_awaited_alone_and_never_comes_is_ended_by_its_deadline(kind: Any, batch_size: Any, place: dict[str, Any]) -> None:
    async def comes_or_not(index: int) -> torch.Tensor:
        await asyncio.sleep(600 * (index == 7))
        return torch.tensor([index])

    options: dict[str, Any] = {"on_bad_sample": "skip", "keep_batches_full": False, "sample_timeout_s": 0.5, **place}
    assert indices(DataLoader(kind(comes_or_not), batch_size=batch_size, **options)) == [index for index in range(20) if index != 7]


@everywhere
def test_parts_of_data_sets(place: dict[str, Any]) -> None:
    both = ConcatDataset([Subset(Awaited(itself), [3, 4]), Awaited(itself, 3)])  # type: ignore[arg-type, list-item]
    assert indices(DataLoader(both, batch_size=2, **place)) == [3, 4, 0, 1, 2]


class Client(Awaited):
    """Keeps what belongs to one loop, as clients of networks do."""

    def __init__(self) -> None:
        super().__init__(itself)
        self.kept = threading.local()

    async def __getitem__(self, index: int) -> int:
        loop = asyncio.get_running_loop()
        kept = self.kept.__dict__.setdefault("loop", loop)
        return int(kept is loop)


def test_one_loop_for_the_life_of_a_worker() -> None:
    loader = DataLoader(Client(), batch_size=5, num_workers=2, workers="thread", persistent_workers=True)
    assert indices(loader) + indices(loader) == [1] * 40
    loader.close()


def test_one_loop_for_all_loaders_of_a_thread_without_workers() -> None:
    dataset = Client()
    training, validation = DataLoader(dataset, batch_size=5), DataLoader(dataset, batch_size=5)
    for _ in range(2):
        assert indices(training) + indices(validation) == [1] * 40


class Nested(Client):
    """Loads other samples in a sample."""

    async def __getitem__(self, index: int) -> int:
        return await super().__getitem__(index) * sum(indices(DataLoader(Awaited(itself, index), batch_size=5)))


def test_a_loader_within_a_sample_has_a_loop_of_its_own() -> None:
    loader = DataLoader(Nested(), batch_size=3)
    assert indices(loader) + indices(loader) == [sum(range(index)) for index in range(20)] * 2


def test_iterators_made_in_one_thread_and_used_in_others() -> None:
    iterators = [iter(loader_of(itself, {"num_workers": 0})) for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(indices, iterators)) == [list(range(20))] * 3


class _Alarm(Exception):
    pass


def _ring(*_: Any) -> None:
    raise _Alarm


def test_an_exception_of_a_signals_handler_that_falls_into_a_callback_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio would log it, and the batch would wait for a sample that nobody has seen end."""
    before, settle, rung = signal.signal(signal.SIGALRM, _ring), AsyncMapFetcher._settle, []

    def interrupted(self: AsyncMapFetcher, sample: Any, outcome: Any) -> None:
        if sample.index == 7 and not rung:
            rung.append(sample)
            signal.raise_signal(signal.SIGALRM)
        settle(self, sample, outcome)

    monkeypatch.setattr(AsyncMapFetcher, "_settle", interrupted)
    try:
        loader = loader_of(itself, {"num_workers": 0})
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(_Alarm):
            next(iterator)
        assert indices(iterator) == list(range(5, 20))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_loop_is_not_shared_with_a_fork() -> None:
    """A forked worker has loaders without workers of its own; what they wait for is not what its parent waits for."""

    async def sample(index: int) -> int:
        return index + sum(indices(DataLoader(Awaited(itself, 5))))

    loader = loader_of(itself, {"num_workers": 0})
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3, 4]
    assert indices(loader_of(sample, {"num_workers": 2})) == [10 + index for index in range(20)]
    assert next(iterator).tolist() == [5, 6, 7, 8, 9]


def test_inside_a_loop_that_runs_already() -> None:
    async def notebook() -> list[int]:
        return indices(loader_of(itself, {"num_workers": 0}))

    assert asyncio.run(notebook()) == list(range(20))


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "8"])
def test_concurrency_is_checked_at_the_door(value: Any) -> None:
    with pytest.raises(OptionError, match="concurrency"):
        loader_of(itself, {}, concurrency=value)


class Meeting(Awaited):
    """A sample is there when `count` samples wait beside each other: only a window that spans batches ever gets so far."""

    def __init__(self, count: int) -> None:
        super().__init__(itself, count)
        self.there = 0

    async def __getitem__(self, index: int) -> Any:
        self.there += 1
        while self.there < self.count:
            await asyncio.sleep(0.001)
        return index


@pytest.mark.parametrize("place", [{"num_workers": 1}, {"num_workers": 1, "workers": "thread"}], ids=["process", "thread"])
@pytest.mark.parametrize("options", [{}, {"collate_fn": list}], ids=["rows", "parcels"])
def test_samples_of_several_batches_wait_at_once(place: dict[str, Any], options: dict[str, Any]) -> None:
    loader = DataLoader(Meeting(20), batch_size=4, concurrency=20, timeout=100, **place, **options)
    assert indices(loader) == list(range(20))


@pytest.mark.parametrize("place", PLACES[1:], ids=IDS[1:])
def test_a_batch_that_waits_for_long_does_not_keep_the_others(place: dict[str, Any]) -> None:
    """They are whole before it, and delivered after it; its error is its own."""

    async def sample(index: int) -> int:
        if index == 2:
            await asyncio.sleep(0.3)
            raise KeyError("no such row")
        return index

    loader = loader_of(sample, place, on_bad_sample="skip", batch_size=4, concurrency=16)
    for _ in range(2):
        assert indices(loader) == [index for index in range(20) if index != 2]


@pytest.mark.parametrize("place", PLACES[1:], ids=IDS[1:])
def test_an_epoch_that_is_left_leaves_nothing_to_the_next(place: dict[str, Any]) -> None:
    loader = loader_of(itself, place, persistent_workers=True, concurrency=16, batch_size=2)
    for _ in range(3):
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    assert indices(loader) == list(range(20))
    loader.close()


def test_time_in_which_a_batch_is_collated_is_nobodys() -> None:
    """The loop stands still: a sample that could not go on, while the batches before its own were collated, has not taken longer."""

    async def sample(index: int) -> int:
        for _ in range(1 + index // 4):
            await asyncio.sleep(0.05)
        return index

    def collate(samples: list[int]) -> list[int]:
        time.sleep(0.5)
        return samples

    given: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 5}
    loader = loader_of(sample, given, collate_fn=collate, sample_timeout_s=1.5, concurrency=20, batch_size=4)
    assert indices(loader) == list(range(20))


@everywhere
def test_time_in_which_another_sample_keeps_the_loop_is_not_its_own(place: dict[str, Any]) -> None:
    async def sample(index: int) -> int:
        time.sleep(0.15)  # less than the limit, but those of one batch together are more
        await asyncio.sleep(0.01)
        return index

    loader = loader_of(sample, place, sample_timeout_s=0.5)
    assert indices(loader) == list(range(20))


def test_a_sample_that_keeps_the_loop_of_a_thread_alone_is_bad() -> None:
    """It has the random generators while it is watched; the samples of the other thread wait for them, which is no time of theirs."""
    over = threading.Event()

    async def sample(index: int) -> int:
        if index == 5:
            over.wait(60)
        for _ in range(10):
            await asyncio.sleep(0.01)
        return index

    loader = loader_of(sample, {"num_workers": 2, "workers": "thread"}, on_bad_sample="skip", sample_timeout_s=0.6)
    random.seed(3)
    expected = [random.random() for _ in range(2)]
    random.seed(3)
    try:
        assert indices(loader) == [index for index in range(20) if index != 5]
        drawn = [random.random()]
    finally:
        over.set()
        loader.close()
    while any("antifreeze-worker" in thread.name for thread in threading.enumerate()):
        time.sleep(0.01)
    assert [*drawn, random.random()] == expected, "what it puts back when it comes back would be the numbers of long ago"


def test_a_thread_whose_samples_wait_ends_with_the_loader() -> None:
    async def sample(index: int) -> int:
        if index >= 10:
            await asyncio.Event().wait()
        return index

    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    loader = loader_of(sample, {"num_workers": 2, "workers": "thread"})
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3, 4]
    loader.close()
    del iterator, loader
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_the_one_that_ends_its_worker_is_found_among_those_of_many_batches() -> None:
    async def sample(index: int) -> int:
        await asyncio.sleep(0.01)
        if index == 9:
            os._exit(3)
        return index

    loader = loader_of(sample, {"num_workers": 1}, on_bad_sample="skip", concurrency=20, batch_size=4)
    assert indices(loader) == [index for index in range(20) if index != 9]
    assert [bad.failure.index for bad in loader.report().bad_samples] == ["9"]


def test_samples_that_fail_before_they_wait_do_not_pile_up() -> None:
    """Each makes room for the next one at once, and there are thousands of them."""
    beyond = ConcatDataset([Awaited(itself, 5)])
    loader = DataLoader(beyond, batch_size=3000, sampler=[-7] * 3000, on_bad_sample="skip", max_bad_samples=5000)
    with pytest.warns(AntifreezeWarning, match="no batch came in this epoch"):
        assert list(loader) == []
    assert len(loader.report().bad_samples) == 3000


_chosen: contextvars.ContextVar[int] = contextvars.ContextVar("chosen", default=-1)


async def chosen_before(index: int) -> int:
    """What another sample has left in the context."""
    before = _chosen.get()
    _chosen.set(index)
    await asyncio.sleep(0.001)
    assert _chosen.get() == index, "a sample keeps its own"
    return before


@everywhere
def test_samples_that_follow_each_other_in_one_place_have_contexts_of_their_own(place: dict[str, Any]) -> None:
    assert set(indices(loader_of(chosen_before, place, concurrency=2))) == {-1}


async def cancelled_or_within_a_limit(index: int) -> int:
    task = asyncio.current_task()
    assert task is not None
    if index % 3 == 0:
        task.cancel()
        await asyncio.sleep(10)
    if sys.version_info >= (3, 11):
        assert not task.cancelling(), "whoever was cancelled was another"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(10)
    return index


@everywhere
def test_a_sample_that_was_cancelled_is_nothing_to_those_after_it_in_its_place(place: dict[str, Any]) -> None:
    loader = loader_of(cancelled_or_within_a_limit, place, concurrency=1, on_bad_sample="skip")
    assert indices(loader) == [index for index in range(20) if index % 3]


async def late_or_not(index: int) -> int:
    await asyncio.sleep(10 if index % 4 == 0 else 0.001)
    return index


@everywhere
def test_a_late_sample_is_nothing_to_those_after_it_in_its_place(place: dict[str, Any]) -> None:
    loader = loader_of(late_or_not, place, concurrency=2, on_bad_sample="skip", sample_timeout_s=0.2)
    assert indices(loader) == [index for index in range(20) if index % 4]


class BeginsWhenThereIsRoom(Awaited):
    """When each of its samples began and ended."""

    def __init__(self) -> None:
        super().__init__(itself, 96)
        self.at: list[tuple[float, float]] = []

    async def __getitem__(self, index: int) -> int:
        began = time.monotonic()
        await asyncio.sleep(0.01)
        self.at.append((began, time.monotonic()))
        return index


def test_the_next_sample_begins_in_the_step_in_which_the_last_one_ends() -> None:
    """Those that end together do not wait for each other: the first successor begins before the last of them has ended."""
    dataset = BeginsWhenThereIsRoom()
    assert len(indices(DataLoader(dataset, batch_size=96, concurrency=8))) == 96
    began, ended = sorted(began for began, _ in dataset.at), sorted(ended for _, ended in dataset.at)
    assert all(began[number] >= ended[number - 8] for number in range(8, 96)), "never more than eight at a time"
    assert sum(began[number] < ended[number - 7] for number in range(8, 96)) > 40


async def late_and_unmoved(index: int) -> int:
    """Every fourth one is cancelled, and comes all the same."""
    if index % 4 == 0:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return index
    if sys.version_info >= (3, 11):
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()
    return index


@everywhere
def test_one_that_passes_over_its_cancelling_is_nothing_to_those_after_it(place: dict[str, Any]) -> None:
    loader = loader_of(late_and_unmoved, place, concurrency=1, on_bad_sample="skip", sample_timeout_s=0.2)
    assert indices(loader) == [index for index in range(20) if index % 4]


def test_the_next_task_is_read_before_a_place_is_empty_and_no_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def begin(fetcher: AsyncMapFetcher, task: Any, ended: Any) -> None:
        found.append((fetcher._room, len(fetcher._line)))
        of_the_class(fetcher, task, ended)

    of_the_class = AsyncMapFetcher.begin
    monkeypatch.setattr(AsyncMapFetcher, "begin", begin)
    loader = DataLoader(Awaited(itself, 400), batch_size=8, num_workers=1, workers="thread", concurrency=8)
    assert indices(loader) == list(range(400))
    assert 0 in {room for room, _ in found}, "in line while every place is taken"
    assert max(in_line for _, in_line in found) < 8 // AHEAD


async def first_of_eight_is_slow(index: int) -> int:
    await asyncio.sleep(0.01 * (index % 8) if index % 8 else 0.4)
    return index


def test_the_next_task_is_read_while_none_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slow sample keeps the first task; those of the second get out of line meanwhile, and nothing else says so."""
    found = []

    def begin(fetcher: AsyncMapFetcher, task: Any, ended: Any) -> None:
        found.append((fetcher._room, len(fetcher._line)))
        of_the_class(fetcher, task, ended)

    of_the_class = AsyncMapFetcher.begin
    monkeypatch.setattr(AsyncMapFetcher, "begin", begin)
    loader = DataLoader(Awaited(first_of_eight_is_slow, 24), batch_size=8, num_workers=1, workers="thread", concurrency=8)
    assert indices(loader) == list(range(24))
    assert [room for room, _ in found] == [8, 0, 0], "every place is taken until the last task was read"


@pytest.mark.parametrize("broken_off", ["in line", "before its first step"])
def test_of_a_sample_that_never_began_nothing_is_said(broken_off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was told to end, or an alarm, may fall anywhere: "coroutine was never awaited" would blame the user."""
    interrupted: list[Any] = []

    def run(fetcher: AsyncMapFetcher, coroutine: Any) -> Any:
        coroutine.close()
        raise KeyboardInterrupt

    def step(steps: Steps, *_: Any) -> Any:
        interrupted.append(steps.coroutine)
        raise KeyboardInterrupt

    monkeypatch.setattr(*((AsyncMapFetcher, "run", run) if broken_off == "in line" else (Steps, "_step", step)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            indices(loader_of(itself, {"num_workers": 0}))
        gc.collect()
    assert [str(each.message) for each in said] == []
    assert [inspect.getcoroutinestate(coroutine) for coroutine in interrupted] == [inspect.CORO_CLOSED] * len(interrupted)
    assert bool(interrupted) == (broken_off == "before its first step")
