"""num_workers="auto": whatever is decided, and whenever, the batches are torch's; and what it decides is respected and told."""

from __future__ import annotations

import copy
import itertools
import mmap
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import ConcatDataset, Dataset, DistributedSampler, Subset, get_worker_info

from antifreeze import DataLoader
from antifreeze.delivery import autopilot as module
from antifreeze.delivery.autopilot import Autopilot
from antifreeze.delivery.likeness import MOST_LOOKS, likeness
from antifreeze.delivery.steering import Steering
from antifreeze.supervisor.pool import Pool
from antifreeze.tuning.decide import Decision
from antifreeze.tuning.setting import INLINE, Kind, Setting

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:This DataLoader will create")
SAMPLES = 80


class Drawn(Dataset[dict[str, Any]]):
    """Every sample draws from all three random generators."""

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "torch": torch.rand(3), "numpy": np.random.rand(), "random": random.random()}

    def __len__(self) -> int:
        return SAMPLES


class Named(Drawn):
    """No rows: a string, and a length of its own."""

    def __getitem__(self, index: int) -> Any:
        return f"sample {index}", torch.rand(3)


class Many(Drawn):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


def flat(batches: Any) -> list[Any]:
    return [repr(batch) for batch in batches]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop waits for workers that were asked for: or a short epoch would be over before they are there."""
    steer, steered = Steering.steer, []

    def noted(self: Steering, now_ns: int) -> None:
        steered[:] = [self._pool]
        if not SlowInWorkers.flags[0]:
            SlowInWorkers.flags[1] = 0
        steer(self, now_ns)
        SlowInWorkers.flags[0] |= not self._flights.inline

    def look_soon(self: Autopilot, now_ns: int) -> None:
        (pool,) = steered
        while pool.growth_failed is None and pool.ready < min(self.setting.workers, pool.size):
            pool.look_after()
            time.sleep(0.001)

    monkeypatch.setattr(Steering, "steer", noted)
    monkeypatch.setattr(Autopilot, "look_soon", look_soon)
    SlowInWorkers.flags[:] = bytes(2)


@pytest.fixture
def wild(patient: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Setting]]:
    """Before every batch anything may be decided; what was, in order."""
    dice, seen = random.Random(5), []

    def look(self: Autopilot, now_ns: int, setting: Setting) -> Decision:
        seen.append(setting)
        count = dice.randint(0 if self.may_inline else 1, 3)
        self.setting = self.tuner.home = Setting(self.kind, count) if count else INLINE
        self.due_ns = 0
        self.helps_beside = dice.choice((0, 4))
        return Decision(self.setting, "the dice say so")

    monkeypatch.setattr(Autopilot, "look", look)
    yield seen


def test_iter_draws_the_samplers_seed_whoever_loads_the_first_batch() -> None:
    """Of two passes that begin side by side, and of what the loop draws itself before it asks for a batch."""

    def drawn(kind: Any, num_workers: Any) -> list[Any]:
        torch.manual_seed(1)
        loader = kind(list(range(SAMPLES)), batch_size=8, shuffle=True, num_workers=num_workers)
        seen = []
        for _ in range(3):
            one, other = iter(loader), iter(loader)
            seen.append(flat([torch.rand(1), *zip(one, other, strict=True)]))
        return seen

    assert drawn(DataLoader, "auto") == drawn(torch.utils.data.DataLoader, 2)


@pytest.mark.parametrize("dataset", [Drawn, Named, Many])
@pytest.mark.parametrize(
    "more", [{}, {"persistent_workers": True}, {"drop_last": True, "batch_size": 7}], ids=["", "persistent", "drop_last"]
)
def test_any_decisions_leave_every_byte_as_it_is(dataset: type[Drawn], more: dict[str, Any], wild: list[Setting]) -> None:
    given = {"batch_size": 4, "shuffle": True, **more}
    expected, state = [], []
    torch.manual_seed(1)
    with DataLoader(dataset(), num_workers=2, multiprocessing_context="fork", **given) as loader:
        for _ in range(2):
            expected.append(flat(loader))
            state.append(torch.get_rng_state().tolist())
    torch.manual_seed(1)
    with DataLoader(dataset(), num_workers="auto", multiprocessing_context="fork", **given) as loader:
        for epoch in range(2):
            assert flat(loader) == expected[epoch]
            assert torch.get_rng_state().tolist() == state[epoch]
    assert {setting.kind for setting in wild} == {Kind.INLINE, Kind.PROCESS}
    assert len({setting.workers for setting in wild}) >= 3


def test_with_threads_too(wild: list[Setting]) -> None:
    torch.manual_seed(1)
    expected = flat(DataLoader(Drawn(), batch_size=4, shuffle=True))
    torch.manual_seed(1)
    with DataLoader(Drawn(), batch_size=4, shuffle=True, num_workers="auto", workers="thread") as loader:
        assert flat(loader) == expected
        assert len(flat(loader)) == len(expected)
    assert {setting.kind for setting in wild} == {Kind.INLINE, Kind.THREAD}


class Deadly(Drawn):
    """One sample in six ends its worker, the first time."""

    def __init__(self) -> None:
        self.flags = mmap.mmap(-1, SAMPLES)

    def __getitem__(self, index: int) -> Any:
        if index % 6 == 5 and get_worker_info() is not None and not self.flags[index]:
            self.flags[index] = 1
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_through_deaths_too(wild: list[Setting]) -> None:
    torch.manual_seed(1)
    expected = flat(DataLoader(Drawn(), batch_size=4, shuffle=True))
    torch.manual_seed(1)
    dataset = Deadly()
    with DataLoader(dataset, batch_size=4, shuffle=True, num_workers="auto", max_restarts_per_minute=1000) as loader:
        assert flat(loader) == expected
    assert any(dataset.flags)


def test_a_state_is_resumed_with_another_setting(wild: list[Setting]) -> None:
    torch.manual_seed(1)
    expected = flat(DataLoader(Drawn(), batch_size=4, shuffle=True))
    for stop in (1, 7, 20):
        torch.manual_seed(1)
        with DataLoader(Drawn(), batch_size=4, shuffle=True, num_workers="auto") as loader:
            iterator = iter(loader)
            got = flat(next(iterator) for _ in range(stop))
            state = loader.state_dict()
        with DataLoader(Drawn(), batch_size=4, shuffle=True, num_workers="auto") as other:
            other.load_state_dict(state)
            assert got + flat(other) == expected


# --- the loop makes batches too, while it waits for those of workers ---


class SlowInWorkers(Drawn):
    """So that the loop has to wait; and when workers have something to do, it makes no batch before one of them has begun."""

    flags = mmap.mmap(-1, 2)  # they have; one of them has begun

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            self.flags[1] = 1
            time.sleep(0.003)
        while self.flags[0] and not self.flags[1]:
            time.sleep(0.001)
        return super().__getitem__(index)


@pytest.fixture
def helping(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker, and the loop beside it."""

    def look(self: Autopilot, now_ns: int, setting: Setting) -> Decision:
        self.setting, self.helps_beside = Setting(self.kind, 1), 1
        return Decision(self.setting, "the test says so")

    monkeypatch.setattr(Autopilot, "look", look)


@pytest.mark.parametrize("more", [{}, {"in_order": False}, {"batch_size": None}], ids=repr)
def test_what_the_loop_makes_is_what_a_worker_would_have_made(more: dict[str, Any], helping: None) -> None:
    given = {"batch_size": 4, "shuffle": True, "multiprocessing_context": "fork", **more}
    torch.manual_seed(1)
    with DataLoader(SlowInWorkers(), num_workers=1, **given) as loader:
        expected = [flat(loader) for _ in range(2)]
    torch.manual_seed(1)
    with DataLoader(SlowInWorkers(), num_workers="auto", **given) as loader:
        got = [flat(loader) for _ in range(2)]
        report = loader.report()
    assert got == expected if more.get("in_order", True) else list(map(sorted, got)) == list(map(sorted, expected))
    assert 0 < report.made_by_loop < report.batches == sum(map(len, expected))
    assert f"{report.made_by_loop} batches made by the loop itself" in str(report)


def test_what_the_loop_has_made_and_not_delivered_is_not_lost_in_a_state(helping: None) -> None:
    torch.manual_seed(1)
    expected = flat(DataLoader(Drawn(), batch_size=4, shuffle=True))
    for stop in range(2, 20, 5):
        torch.manual_seed(1)
        with DataLoader(SlowInWorkers(), batch_size=4, shuffle=True, num_workers="auto") as loader:
            iterator = iter(loader)
            got = flat(next(iterator) for _ in range(stop))
            state = loader.state_dict()
        with DataLoader(SlowInWorkers(), batch_size=4, shuffle=True, num_workers="auto") as other:
            other.load_state_dict(state)
            assert got + flat(other) == expected


class BadInTheLoop(SlowInWorkers):
    """Samples from the fortieth on raise `error`: everywhere, or in the loop's process alone, and once."""

    def __init__(self, error: type[BaseException], everywhere: bool) -> None:
        self.error, self.everywhere, self.raised = error, everywhere, 0

    def __getitem__(self, index: int) -> Any:
        if index >= 40 and (self.everywhere or (get_worker_info() is None and not self.raised)):
            self.raised += 1
            raise self.error(f"sample {index}")
        return super().__getitem__(index)


def outcomes(loader: Any) -> list[str]:
    iterator, seen = iter(loader), []
    while True:
        try:
            seen.append(repr(next(iterator)))
        except StopIteration:
            return seen
        except (ValueError, KeyboardInterrupt) as error:
            seen.append(f"{type(error).__name__} {str(error)[:40]}" if isinstance(error, ValueError) else "Ctrl-C")


@pytest.mark.parametrize("everywhere", [True, False])
def test_what_fails_in_the_loop_is_tried_by_a_worker_whose_word_counts(everywhere: bool, helping: None) -> None:
    torch.manual_seed(1)
    with DataLoader(BadInTheLoop(ValueError, everywhere), batch_size=4, num_workers=1) as loader:
        expected = outcomes(loader)
    dataset = BadInTheLoop(ValueError, everywhere)
    torch.manual_seed(1)
    with DataLoader(dataset, batch_size=4, num_workers="auto") as loader:
        assert outcomes(loader) == expected
        assert loader.report().made_by_loop
        assert "loading in the loop failed" in loader.report().decided[-1]
    assert dataset.raised == 1


def test_ctrl_c_while_the_loop_makes_a_batch_loses_none(helping: None) -> None:
    with DataLoader(Drawn(), batch_size=4) as loader:
        expected = [repr(batch["index"]) for batch in loader]
    with DataLoader(BadInTheLoop(KeyboardInterrupt, everywhere=False), batch_size=4, num_workers="auto") as loader:
        got = outcomes(loader)
    assert got.count("Ctrl-C") == 1
    assert [one for one in expected if any(one in batch for batch in got)] == expected and len(got) == len(expected) + 1


# --- what may not be loaded in the loop's process ---


class OnlyInWorkers(Drawn):
    def __getitem__(self, index: int) -> int:
        info = get_worker_info()
        assert info is not None
        return info.id * 0 + index


def no_init(worker: int) -> None:
    pass


def seeding_init(worker: int) -> None:
    random.seed(worker)


@pytest.mark.parametrize(
    "asked",
    [
        {"worker_init_fn": no_init},
        {"worker_init_fn": seeding_init},
        {"on_bad_sample": "skip"},
        {"sample_timeout_s": 100},
        {"stall_report_s": 5},
        {"hedge": True},
        {"timeout": 60},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_nothing_is_loaded_in_the_loop_where_workers_were_asked_to_do_more(asked: dict[str, Any], wild: list[Setting]) -> None:
    with DataLoader(OnlyInWorkers(), batch_size=4, num_workers="auto", multiprocessing_context="fork", **asked) as loader:
        assert torch.cat(list(loader)).tolist() == list(range(SAMPLES))
    assert INLINE not in wild


def test_what_cannot_be_loaded_in_the_loop_is_left_to_a_worker() -> None:
    with DataLoader(OnlyInWorkers(), batch_size=4, num_workers="auto") as loader:
        assert torch.cat(list(loader)).tolist() == list(range(SAMPLES))
        assert "loading in the loop failed" in loader.report().decided[-1]


class Broken(Drawn):
    def __getitem__(self, index: int) -> int:
        if index == 9:
            raise KeyError("nine")
        return index


def test_an_error_is_a_workers_error_and_the_next_batch_follows() -> None:
    with DataLoader(Broken(), batch_size=4, num_workers="auto") as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(KeyError, match="Caught KeyError in DataLoader worker process 0"):
            next(iterator)
        assert next(iterator).tolist() == [12, 13, 14, 15]


class Unpicklable(Drawn):
    def __init__(self) -> None:
        self.handle = threading.Lock()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is a window, and workers are always tried."""
    for name in ("WINDOW_NS", "FIRST_WINDOW_NS", "SETTLE_NS", "LOOK_AGAIN_NS", "LOOK_SOON_NS"):
        monkeypatch.setattr(module, name, 1)
    for name in ("LEAST_BATCHES", "LEAST_INLINE"):
        monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr("antifreeze.tuning.window.HAND_OVER_S", 0.0)


@pytest.mark.usefixtures("hasty")
def test_where_no_worker_can_be_started_the_loop_loads_and_says_why() -> None:
    with DataLoader(Unpicklable(), batch_size=4, num_workers="auto", multiprocessing_context="spawn") as loader:
        assert len(list(loader)) == SAMPLES // 4
        report = loader.report()
    assert report.workers == 0
    assert "could not be had" in report.decided[-1]
    assert "dataset.handle" in report.decided[-1]


def pids(loader: DataLoader[Any]) -> list[int]:
    pool = loader._parking.pool
    assert isinstance(pool, Pool)
    return [worker.pid for worker in pool.crew.workers if worker is not None]


@pytest.fixture
def two_workers(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(self: Autopilot, now_ns: int, setting: Setting) -> Decision:
        self.setting = self.tuner.home = Setting(Kind.PROCESS, 2)
        return Decision(self.setting, "two")

    monkeypatch.setattr(Autopilot, "look", look)


@pytest.fixture
def six_one_by_one(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(self: Autopilot, now_ns: int, setting: Setting) -> Decision:
        self.setting = self.tuner.home = Setting(Kind.PROCESS, 6)
        return Decision(self.setting, "six")

    monkeypatch.setattr(Autopilot, "look", look)
    monkeypatch.setattr("antifreeze.delivery.steering.GROWS_FOR_S", 0.0)
    monkeypatch.setattr("antifreeze.delivery.steering.RESTS", 0.0)


@pytest.mark.usefixtures("six_one_by_one")
def test_of_very_many_workers_some_are_started_at_a_time_and_the_loop_goes_on() -> None:
    expected = flat(DataLoader(Drawn(), batch_size=4, generator=torch.Generator().manual_seed(5)))
    with DataLoader(Drawn(), batch_size=4, num_workers="auto", generator=torch.Generator().manual_seed(5)) as loader:
        batches: Any = iter(loader)
        got, sizes = [], [0]
        for batch in batches:
            got.append(batch)
            sizes.append(batches.pool.size)
        assert flat(got) == expected
        assert [after - before for before, after in itertools.pairwise(sizes[:7])] == [1] * 6
        assert set(sizes[7:]) == {6}


@pytest.mark.usefixtures("six_one_by_one")
def test_workers_that_were_not_started_before_the_epoch_ended_come_in_the_next_one() -> None:
    with DataLoader(Drawn(), batch_size=20, num_workers="auto") as loader:
        sizes = []
        for _ in range(3):
            batches: Any = iter(loader)
            sizes += [batches.pool.size for _ in batches]
    assert sizes[3] < 6
    assert sizes[-1] == 6


# --- what the loop's own process has opened ---


class OpenedBy:
    """A connection, say: only the process that opened it may use it, and it has a lock, which does not pickle."""

    def __init__(self) -> None:
        self.pid, self.lock = os.getpid(), threading.Lock()

    def read(self) -> int:
        return int(self.pid == os.getpid())


opened: OpenedBy | None = None


class Opens(Drawn):
    """On first use, as it should be."""

    def __init__(self) -> None:
        self.handle: OpenedBy | None = None
        self.handles: dict[int, OpenedBy] = {}
        self.of_thread = threading.local()
        self.one_of_each: list[OpenedBy] = []
        self.pool = ThreadPoolExecutor(1)  # starts its threads when it has something to do

    def __getitem__(self, index: int) -> Any:
        global opened
        if self.handle is None:
            self.handle = OpenedBy()
        if opened is None:
            opened = OpenedBy()
        if not self.one_of_each:
            self.one_of_each.append(OpenedBy())
        there = self.handles.setdefault(0, OpenedBy())
        of_thread = self.of_thread.__dict__.setdefault("handle", OpenedBy())
        in_thread = self.pool.submit(os.getpid).result(timeout=30) == os.getpid()
        return torch.tensor([each.read() for each in (self.handle, opened, *self.one_of_each, there, of_thread)] + [int(in_thread)])


def test_what_the_loop_has_opened_is_not_given_to_workers(wild: list[Setting]) -> None:
    dataset = Opens()
    part = Subset(dataset, range(SAMPLES))
    with DataLoader(part, batch_size=4, num_workers="auto", multiprocessing_context="fork") as loader:
        for _ in range(3):
            assert torch.cat(list(loader)).all()
            loader.close()  # the next ones are forked when this process has used everything
    dataset.pool.shutdown()
    assert {setting.kind for setting in wild} == {Kind.INLINE, Kind.PROCESS}


class OpensOne(Drawn):
    handle: OpenedBy | None = None

    def __getitem__(self, index: int) -> int:
        if self.handle is None:
            self.handle = OpenedBy()
        return self.handle.read()


@pytest.mark.usefixtures("two_workers")
def test_nor_does_it_keep_a_data_set_from_fresh_processes() -> None:
    with DataLoader(OpensOne(), batch_size=4, num_workers="auto", multiprocessing_context="spawn") as loader:
        assert torch.cat(list(loader)).all()
        assert len(pids(loader)) == 2


@pytest.mark.usefixtures("two_workers")
def test_what_the_user_has_put_there_since_is_the_users() -> None:
    dataset = OpensOne()
    with DataLoader(dataset, batch_size=4, num_workers="auto", multiprocessing_context="fork") as loader:
        next(iter(loader))
        loader.close()
        dataset.handle = OpenedBy()
        assert not torch.cat(list(loader)).all()


# --- between epochs ---


class Changing(Drawn):
    def __init__(self) -> None:
        self.add = 0
        self.order = list(range(SAMPLES))
        self.cache: dict[int, int] = {}

    def __getitem__(self, index: int) -> int:
        return self.order[index] + self.add


@pytest.mark.usefixtures("two_workers")
def test_workers_stay_for_the_next_epoch_and_go_with_the_loader() -> None:
    loader = DataLoader(Changing(), batch_size=4, num_workers="auto", multiprocessing_context="fork")
    list(loader)
    first = pids(loader)
    assert len(first) == 2
    assert torch.cat(list(loader)).tolist() == list(range(SAMPLES))
    assert pids(loader) == first
    loader.close()
    for pid in first:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert torch.cat(list(loader)).tolist() == list(range(SAMPLES))
    second = pids(loader)
    del loader
    for pid in second:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.usefixtures("two_workers")
def test_a_change_of_the_data_set_between_epochs_is_seen() -> None:
    dataset = Changing()
    with DataLoader(dataset, batch_size=4, num_workers="auto", multiprocessing_context="fork") as loader:
        list(loader)
        first = pids(loader)
        dataset.add = 1000
        assert torch.cat(list(loader)).tolist() == [1000 + index for index in range(SAMPLES)]
        second = pids(loader)
        assert not set(first) & set(second)
        random.Random(1).shuffle(dataset.order)
        assert torch.cat(list(loader)).tolist() == [1000 + index for index in dataset.order]


@pytest.mark.usefixtures("two_workers")
def test_so_is_one_within_an_epoch_by_the_next_and_a_cache_that_has_grown_is_none() -> None:
    dataset = Changing()
    with DataLoader(ConcatDataset([dataset]), batch_size=4, num_workers="auto", multiprocessing_context="fork") as loader:
        list(loader)
        first = pids(loader)
        for number, _ in enumerate(loader):
            dataset.cache[number] = number  # as its own code does, where the loop's process loads too
        assert pids(loader) == first
        for number, _ in enumerate(loader):
            dataset.add = 1000 if number > SAMPLES // 8 else 0
        assert torch.cat(list(loader)).tolist() == [1000 + index for index in range(SAMPLES)]
        assert not set(first) & set(pids(loader))


@pytest.mark.usefixtures("two_workers")
def test_an_epoch_that_was_left_early_and_two_at_a_time() -> None:
    with DataLoader(Changing(), batch_size=4, num_workers="auto", multiprocessing_context="fork") as loader:
        for batch in loader:
            if batch[0] > 40:
                break
        pairs = list(zip(loader, loader, strict=True))
        assert len(pairs) == SAMPLES // 4
        assert all(one.tolist() == other.tolist() for one, other in pairs)
        finished = iter(loader)
        assert len(list(finished)) == SAMPLES // 4
        assert next(finished, "nothing") == "nothing"
        finished.close()
        assert len(list(loader)) == SAMPLES // 4


@pytest.mark.usefixtures("two_workers")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_workers_that_are_gone_when_the_next_epoch_begins(number: int) -> None:
    with DataLoader(Changing(), batch_size=4, num_workers="auto", multiprocessing_context="fork") as loader:
        list(loader)
        for pid in pids(loader):
            os.kill(pid, number)
        assert torch.cat(list(loader)).tolist() == list(range(SAMPLES))


def test_a_forked_child_makes_workers_of_its_own(two_workers: None) -> None:
    with DataLoader(Changing(), batch_size=4, num_workers="auto", multiprocessing_context="fork") as loader:
        list(loader)
        first = pids(loader)
        child = os.fork()
        if child == 0:
            ok = torch.cat(list(loader)).tolist() == list(range(SAMPLES)) and not set(first) & set(pids(loader))
            loader.close()
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert torch.cat(list(loader)).tolist() == list(range(SAMPLES))
        assert pids(loader) == first


def test_a_copy_of_the_loader_is_one_of_its_own(two_workers: None) -> None:
    with DataLoader(Changing(), batch_size=4, num_workers="auto", multiprocessing_context="fork") as loader:
        list(loader)
        with copy.deepcopy(loader) as other:
            assert torch.cat(list(other)).tolist() == list(range(SAMPLES))
            assert not set(pids(loader)) & set(pids(other))


def test_likeness() -> None:
    class Holder:
        def __init__(self) -> None:
            self.name, self.rows, self.tensor = "x", list(range(1000)), torch.zeros(10)
            self.inner = {"array": np.arange(1000)}

    holder = Holder()
    before = likeness(holder)
    assert likeness(holder) == before

    def changes(what: Any) -> bool:
        earlier = likeness(holder)
        what()
        return likeness(holder) != earlier

    assert changes(lambda: setattr(holder, "name", "y"))
    assert changes(lambda: random.Random(3).shuffle(holder.rows))
    assert changes(lambda: holder.rows.append(1))
    assert changes(lambda: holder.tensor.add_(1))
    assert changes(lambda: setattr(holder, "inner", dict(holder.inner)))
    assert changes(lambda: np.random.default_rng(1).shuffle(holder.inner["array"]))
    assert not changes(lambda: None)
    with torch.inference_mode():
        assert changes(lambda: setattr(holder, "tensor", torch.zeros(10))), "one that does not count what is written to it"
    assert likeness(holder) == likeness(holder)
    holder.tensor = torch.zeros(10)
    holder.rows = [holder]  # type: ignore[list-item]
    assert likeness(holder) == likeness(holder)
    for number in range(2 * MOST_LOOKS):
        setattr(holder, f"tensor{number}", torch.zeros(1))
    assert changes(lambda: holder.tensor.add_(1)), "of one that holds very much, what is near is still looked at"


# --- the rest ---


def test_the_sampler_of_a_rank_is_asked_as_with_workers(wild: list[Setting]) -> None:
    sampler = DistributedSampler(range(SAMPLES), num_replicas=2, rank=1, shuffle=True)
    with DataLoader(Changing(), batch_size=4, num_workers="auto", sampler=sampler) as loader:
        for epoch in range(2):
            sampler.set_epoch(epoch)
            assert torch.cat(list(loader)).tolist() == list(sampler)


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(20))


def test_an_iterable_data_set_keeps_its_number_of_streams() -> None:
    with DataLoader(Stream(), batch_size=4, num_workers="auto") as loader:
        before = loader.num_workers
        assert torch.cat(list(loader)).tolist() == list(range(20))
        assert loader.num_workers == before
        (decided,) = loader.report().decided
        assert f"{before} worker process" in decided and "of an iterable data set the number of workers says" in decided
        assert "so it is the cores less one, and stays" in decided


def test_a_number_that_is_set_later_is_meant() -> None:
    with DataLoader(Changing(), batch_size=4, num_workers="auto") as loader:
        loader.num_workers = 3
        iterator = iter(loader)
        assert iterator.pool.size == 3
        assert torch.cat(list(iterator)).tolist() == list(range(SAMPLES))


def test_the_report_tells_what_was_decided(hasty: None) -> None:
    with DataLoader(Changing(), batch_size=4, num_workers="auto") as loader:
        assert 'num_workers="auto", 0 batches' in repr(loader)
        list(loader)
        assert f'num_workers="auto" ({loader.report().decided[-1].split(" since ")[0]} now)' in repr(loader)
        report = loader.report()
    assert report.decided[0] == "no workers since batch 0, because nothing is measured yet"
    assert any(line.strip().startswith("auto ") for line in str(report).splitlines())
    assert isinstance(report.as_dict()["decided"], list)
