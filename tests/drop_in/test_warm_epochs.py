"""The first batches of the next epoch are loaded ahead, and nobody can tell but by the clock: order, bytes, random state, errors and counts
are those of a loader that loads nothing ahead, and the first two are torch's."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, RandomSampler

import antifreeze
from antifreeze.delivery.next_epoch import MISSES_ENOUGH
from antifreeze.supervisor.pool import Pool

from .contract import Torchs, ours_only

pytestmark = ours_only
N, BATCH = 40, 4


@pytest.fixture(autouse=True)
def of_its_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Other tests of this process may have shared memory with others, and it may still be there; but where it is what is tested."""
    if "shared memory" not in (request.function.__doc__ or ""):
        maps = tmp_path_factory.mktemp("proc") / "maps"
        maps.touch()
        monkeypatch.setattr("antifreeze.delivery.outside._MAPS", maps)


class Augmented(Dataset):  # type: ignore[type-arg]
    """The index, and a number of each generator."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor([float(index), *drawn], dtype=torch.float64)


class Awaited(Augmented):
    """The same from coroutines that wait in between, and collated by code that draws a number too."""

    async def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
        await asyncio.sleep(0.002 * (index % 3))
        return super().__getitem__(index)


def with_a_number(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples) + random.random()


class Gated(Dataset):  # type: ignore[type-arg]
    """Does what the files in a folder say: `raise` (at sample 5), `hold` (the first half, until it is gone)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        with open(self.folder / "calls", "a") as calls:
            calls.write(f"{index}\n")
        while index < N // 2 and (self.folder / "hold").exists():
            time.sleep(0.01)
        if index == 5 and (self.folder / "raise").exists():
            raise ValueError("sample 5")
        return index

    def calls(self) -> int:
        return len((self.folder / "calls").read_text().split())


def states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # type: ignore[index]


def loader_of(kind: Any, sampler: str, **given: Any) -> Any:
    data = Augmented()
    chosen: dict[str, Any] = {
        "sequential": {},
        "shuffled": {"shuffle": True},
        "generator": {"shuffle": True, "generator": torch.Generator().manual_seed(9)},
        "replacement": {"sampler": RandomSampler(data, replacement=True, num_samples=30)},
        "distributed": {"sampler": DistributedSampler(data, 2, 1, seed=3)},  # type: ignore[arg-type]
        "one by one": {"batch_size": None, "sampler": RandomSampler(data)},
    }[sampler]
    return kind(data, **({"batch_size": BATCH} | chosen | {"num_workers": 2, "persistent_workers": True} | given))


def epochs(loader: Any, between: Callable[[Any, int], None], count: int = 4) -> tuple[list[Any], list[Any]]:
    """(the indices, the whole batches), and the random states of this process at each step."""
    batches, seen = [], []
    for epoch in range(count):
        iterator = iter(loader)
        seen.append(states())
        for number, batch in enumerate(iterator):
            batches.append(batch)
            if number in (0, 5):
                seen.append(states())
        seen.append(states())
        between(loader, epoch)
    return batches, seen


def nothing(_: Any, __: int) -> None: ...


def validate(_: Any, __: int) -> None:
    """As a loader in between does: one base seed."""
    list(Torchs(range(3)))


def dropout(_: Any, __: int) -> None:
    torch.rand(1000)
    random.random()


def reseed(loader: Any, epoch: int) -> None:
    torch.manual_seed(100 + epoch)
    if loader.generator is not None:
        loader.generator.manual_seed(epoch)


def next_number(loader: Any, epoch: int) -> None:
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch + 1)


def other_number(loader: Any, epoch: int) -> None:
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(3 * epoch + 11)


EVERY_SAMPLER = ["sequential", "shuffled", "generator", "replacement", "distributed", "one by one"]


@pytest.mark.parametrize(
    ("sampler", "between", "is_foreseen"),
    [
        *((sampler, next_number, True) for sampler in EVERY_SAMPLER),
        *((sampler, validate, True) for sampler in ("sequential", "shuffled", "generator", "one by one")),
        ("sequential", dropout, True),
        ("generator", dropout, True),
        ("shuffled", dropout, False),
        ("shuffled", reseed, False),
        ("generator", reseed, False),
        ("distributed", other_number, False),
    ],
)
def test_order_bytes_and_random_state_are_as_ever(sampler: str, between: Any, is_foreseen: bool) -> None:
    came = []
    for kind, given in ((Torchs, {}), (antifreeze.DataLoader, {}), (antifreeze.DataLoader, {"warm_epochs": False})):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        loader = loader_of(kind, sampler, **given)
        batches, seen = epochs(loader, between)
        came.append((torch.stack([batch if sampler == "one by one" else batch[0] for batch in batches]), batches, seen))
        if kind is antifreeze.DataLoader:
            report = loader.report()
            loader.close()
            assert report.batches == len(batches)
            if not given:
                assert bool(report.loaded_ahead) == is_foreseen, report.loaded_ahead_no_more
    torchs, warm, cold = came
    assert torch.equal(torchs[0][:, 0], warm[0][:, 0])
    assert torchs[2] == warm[2] == cold[2]
    assert all(torch.equal(one, other) for one, other in zip(warm[1], cold[1], strict=True))


@pytest.mark.parametrize("collate_fn", [None, with_a_number])
def test_samples_that_are_awaited_have_the_numbers_of_their_own_epoch(collate_fn: Any) -> None:
    came = []
    for warm in (True, False):
        torch.manual_seed(1)
        given: dict[str, Any] = {"num_workers": 1, "persistent_workers": True, "concurrency": 16, "collate_fn": collate_fn}
        with antifreeze.DataLoader(Awaited(), BATCH, shuffle=True, warm_epochs=warm, **given) as loader:
            came.append(torch.cat(epochs(loader, nothing)[0]))
            assert bool(loader.report().loaded_ahead) == warm
    assert torch.equal(*came)


def test_a_distributed_sampler_whose_epoch_nobody_sets_is_advanced_and_foreseen() -> None:
    came = []
    for warm in (True, False):
        torch.manual_seed(2)
        loader = loader_of(antifreeze.DataLoader, "distributed", warm_epochs=warm)
        with pytest.warns(UserWarning, match="set_epoch"):
            came.append(torch.cat(epochs(loader, nothing)[0]))
        assert bool(loader.report().loaded_ahead) == warm
        loader.close()
    assert torch.equal(*came)


def test_after_some_wrong_guesses_in_a_row_they_become_rare() -> None:
    with loader_of(antifreeze.DataLoader, "shuffled") as loader:
        epochs(loader, dropout, MISSES_ENOUGH + 1)
        report = loader.report()
        assert "3 times in a row" in report.loaded_ahead_no_more and "3 times in a row" in " ".join(str(report).split())
        epochs(loader, dropout, 12)
        report = loader.report()
    assert report.loaded_ahead == 0 and "5 times in a row" in report.loaded_ahead_no_more
    assert 0 < report.loaded_ahead_in_vain <= 4 * (MISSES_ENOUGH + 2)


@pytest.mark.parametrize(("every", "wrong"), [(2, 2), (3, 4)])
def test_a_validation_after_some_epochs_is_no_reason_to_guess_no_more(every: int, wrong: int) -> None:
    """It moves the process's generator, and after the other epochs nobody does. What takes turns is learnt; what is rarer is a miss."""

    def between(loader: Any, epoch: int) -> None:
        if epoch % every == every - 1:
            validate(loader, epoch)

    with loader_of(antifreeze.DataLoader, "shuffled") as loader:
        epochs(loader, between, 12)
        report = loader.report()
    ahead_of_each = report.loaded_ahead_in_vain // wrong
    assert ahead_of_each and report.loaded_ahead >= ahead_of_each * (11 - wrong) and not report.loaded_ahead_no_more


def test_an_epoch_that_is_left_early_says_nothing_about_the_next_one() -> None:
    came = []
    for warm in (True, False):
        torch.manual_seed(4)
        with loader_of(antifreeze.DataLoader, "generator", warm_epochs=warm) as loader:
            batches: list[Any] = []
            for stop_at in (2, 9, 10, 1, 10):
                for number, batch in enumerate(loader):
                    if number == stop_at:
                        break
                    batches.append(batch)
            came.append(torch.cat(batches))
            assert loader.report().batches >= len(batches)
    assert torch.equal(*came)


@pytest.mark.parametrize("at", [0, 3, 9, 10])
def test_a_state_is_of_what_was_delivered_and_a_resume_goes_on_from_there(at: int) -> None:
    came, saved = [], []
    for warm in (True, False):
        torch.manual_seed(4)
        with loader_of(antifreeze.DataLoader, "generator", warm_epochs=warm) as loader:
            list(loader)
            iterator = iter(loader)
            for _ in range(at):
                next(iterator)
            saved.append(loader.state_dict())
            rest = [*iterator, *loader]
            loader.load_state_dict(saved[-1])
            again = [*loader, *loader]
        came += [torch.cat(rest), torch.cat(again)]
    assert saved[0] == saved[1]
    assert all(torch.equal(came[0], other) for other in came[1:3]) or at == 10
    assert torch.equal(came[1], came[3])


# --- faults -----------------------------------------------------------------------------------------------------------


def gated(folder: Path, **given: Any) -> antifreeze.DataLoader[Any]:
    given = {"num_workers": 2, "persistent_workers": True, "stall_report_s": None} | given
    return antifreeze.DataLoader(Gated(folder), BATCH, **given)


def wait_for(something: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not something():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_error_met_ahead_is_raised_in_its_epoch_at_its_batch(tmp_path: Path) -> None:
    with gated(tmp_path) as loader:
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        (tmp_path / "raise").touch()
        assert len(list(iterator)) == N // BATCH - 4
        calls = loader.dataset.calls  # type: ignore[attr-defined]
        wait_for(lambda: calls() >= N + 2 * BATCH)
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="sample 5"):
            next(iterator)
        assert next(iterator).tolist() == [8, 9, 10, 11]
        assert [bad.epoch for bad in loader.report().raised] == [2]


@pytest.mark.parametrize("on_bad_sample", ["raise", "skip"])
def test_an_error_met_ahead_that_is_none_when_its_epoch_begins_is_none(tmp_path: Path, on_bad_sample: str) -> None:
    with gated(tmp_path, on_bad_sample=on_bad_sample) as loader:
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        (tmp_path / "raise").touch()
        list(iterator)
        wait_for(lambda: loader.dataset.calls() >= N + 2 * BATCH)  # type: ignore[attr-defined]
        (tmp_path / "raise").unlink()
        assert torch.cat(list(loader)).tolist() == list(range(N))
        report = loader.report()
    assert not report.raised and not report.bad_samples and report.samples == 2 * N


def test_bad_samples_are_skipped_and_counted_in_their_epoch(tmp_path: Path) -> None:
    (tmp_path / "raise").touch()
    with gated(tmp_path, on_bad_sample="skip") as loader:
        for _ in range(3):
            assert sorted(torch.cat(list(loader)).tolist()) == [index for index in range(N) if index != 5]
        report = loader.report()
    assert [bad.epoch for bad in report.bad_samples] == [1, 2, 3] and report.samples == 3 * (N - 1)
    assert report.loaded_ahead


@pytest.mark.parametrize("kill_all", [True, False])
def test_workers_killed_while_they_load_ahead_are_replaced_and_nothing_is_lost(tmp_path: Path, kill_all: bool) -> None:
    class Held(Gated):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index), random.random()

    came = []
    for killed in (True, False):
        folder = tmp_path / str(killed)
        folder.mkdir()
        torch.manual_seed(6)
        loader = antifreeze.DataLoader(Held(folder), BATCH, num_workers=2, persistent_workers=True)
        iterator = iter(loader)
        batches = [next(iterator) for _ in range(N // BATCH // 2)]
        if killed:
            (folder / "hold").touch()
        batches += list(iterator)
        if killed:
            wait_for(lambda: loader.dataset.calls() >= N + 2)  # type: ignore[attr-defined]  # noqa: B023
            workers = [worker.pid for worker in loader._iterator.pool.crew.workers]
            for pid in workers if kill_all else workers[:1]:
                os.kill(pid, signal.SIGKILL)
            (folder / "hold").unlink()
        batches += [*loader, *loader]
        report = loader.report()
        assert report.samples == 3 * N and bool(report.loaded_ahead) and bool(report.restarts) == killed
        loader.close()
        came.append(batches)
    for one, other in zip(*came, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_who_never_begins_the_next_epoch_leaves_nothing_behind_and_counts_nothing(tmp_path: Path) -> None:
    loader = gated(tmp_path)
    list(loader)
    report = loader.report()
    assert (report.samples, report.batches, report.epochs, report.loaded_ahead) == (N, N // BATCH, 1, 0)
    wait_for(lambda: loader.dataset.calls() > N)  # type: ignore[attr-defined]
    (tmp_path / "hold").touch()
    loader.close()
    assert not [child for child in psutil.Process().children() if child.name() == "af_worker"]
    (tmp_path / "hold").unlink()
    assert torch.cat(list(loader)).tolist() == list(range(N)), "and it can be iterated again"
    loader.close()


def test_no_more_is_in_flight_than_one_epoch_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    submit, most = Pool.submit, []

    def watched(pool: Pool, *args: Any, **kwargs: Any) -> None:
        submit(pool, *args, **kwargs)
        most.append(len(pool.state.batches))

    monkeypatch.setattr(Pool, "submit", watched)
    seen = []
    for warm in (True, False):
        most.clear()
        with loader_of(antifreeze.DataLoader, "sequential", warm_epochs=warm) as loader:
            epochs(loader, nothing)
            seen.append(max(most))
    assert seen[0] == seen[1]


# --- who loads nothing ahead ------------------------------------------------------------------------------------------


class Told(Dataset):  # type: ignore[type-arg]
    """Its samples tell the epoch that the script has set, as `epoch` tells it."""

    def __init__(self, epoch: Any) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        epoch = self.epoch
        return int(epoch.value if hasattr(epoch, "value") else epoch["now"] if hasattr(epoch, "keys") else epoch[0])


def test_the_loop_is_not_held_up_by_the_look_for_what_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a driver's memory all objects are gone through, for some ten milliseconds: while the workers come up, and never after that."""
    maps, looks = tmp_path / "maps", []
    maps.write_text("10000-11000 rw-s 00000000 00:06 143 /dev/nvidia0\n12000-13000 rw-s 00000000 00:01 3098 /dev/zero (deleted)\n")
    monkeypatch.setattr("antifreeze.delivery.outside._MAPS", maps)
    monkeypatch.setattr("antifreeze.delivery.outside._maps_of_python", lambda: looks.append(len(looks)) or [])
    with antifreeze.DataLoader(Augmented(), BATCH, num_workers=2, persistent_workers=True) as loader:
        batches = iter(loader)
        assert len(looks) == 1
        list(batches)
        for _ in range(2):
            list(loader)
        assert loader.report().loaded_ahead
    assert len(looks) == 1


@pytest.mark.leaves("descriptor", why="multiprocessing keeps the memory of its values for others")
@pytest.mark.parametrize("way", ["value", "tensor", "manager", "thread"])
def test_an_epoch_that_workers_are_told_through_shared_memory_is_seen_by_all_its_samples(way: str) -> None:
    """With shared memory."""
    manager = multiprocessing.Manager() if way == "manager" else None
    shared: Any = {
        "value": lambda: multiprocessing.Value("i", 0),
        "tensor": lambda: torch.zeros(1, dtype=torch.int64).share_memory_(),
        "manager": lambda: manager.dict(now=0),  # type: ignore[union-attr]
        "thread": lambda: [0],
    }[way]()
    given = {"workers": "thread"} if way == "thread" else {}
    try:
        with antifreeze.DataLoader(Told(shared), BATCH, num_workers=2, persistent_workers=True, **given) as loader:  # type: ignore[arg-type]
            for epoch in range(4):
                if way == "value":
                    shared.value = epoch
                else:
                    shared["now" if way == "manager" else 0] = epoch
                assert set(torch.cat(list(loader)).tolist()) == {epoch}
            report = loader.report()
        assert not report.loaded_ahead and not report.loaded_ahead_in_vain
        assert way == "thread" or "share" in report.loaded_ahead_no_more
    finally:
        if manager is not None:
            manager.shutdown()


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(range(10))


def test_without_workers_that_stay_and_of_streams_nothing_is_loaded_ahead(tmp_path: Path) -> None:
    for loader in (gated(tmp_path, persistent_workers=False), gated(tmp_path, num_workers=0, persistent_workers=False)):
        (tmp_path / "calls").unlink(missing_ok=True)
        for _ in range(3):
            list(loader)
        time.sleep(0.05)
        assert loader.dataset.calls() == 3 * N  # type: ignore[attr-defined]
        loader.close()
    with antifreeze.DataLoader(Stream(), 5, num_workers=1, persistent_workers=True) as loader:
        assert [torch.cat(list(loader)).tolist() for _ in range(3)] == [list(range(10))] * 3
        assert not loader.report().loaded_ahead


# --- num_workers="auto" -----------------------------------------------------------------------------------------------


class Scaled(Augmented):
    scale = 1.0

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) * self.scale


def negated(samples: list[torch.Tensor]) -> torch.Tensor:
    return -torch.stack(samples)


def test_with_auto_workers_load_ahead_from_the_second_epoch_on_and_see_what_has_changed() -> None:
    came: list[Any] = []
    for given in ({"warm_epochs": True}, {"warm_epochs": False}, {"num_workers": 2}):
        torch.manual_seed(8)
        arguments: dict[str, Any] = {"num_workers": "auto", "stall_report_s": 29.0, "shuffle": True} | given
        with antifreeze.DataLoader(Scaled(), BATCH, **arguments) as loader:
            batches = []
            for epoch in range(8):
                if epoch == 4:
                    loader.dataset.scale = 3.0  # type: ignore[attr-defined]
                if epoch == 5:
                    loader.collate_fn = negated
                if epoch == 6:
                    loader.generator = torch.Generator().manual_seed(2)
                batches.append(torch.cat(list(loader)))
                if epoch == 0:
                    assert not loader.report().loaded_ahead and not loader.report().loaded_ahead_in_vain
            report = loader.report()
            assert bool(report.loaded_ahead) == (given == {"warm_epochs": True}), report
            assert report.samples == 8 * N
            came.append(batches)
    for epoch in range(8):
        assert torch.equal(came[0][epoch], came[1][epoch]) and torch.equal(came[0][epoch], came[2][epoch]), epoch


def test_with_auto_a_base_seed_that_was_not_foreseen_gives_no_bytes() -> None:
    came = []
    for warm in (True, False):
        torch.manual_seed(8)
        with antifreeze.DataLoader(Augmented(), BATCH, num_workers="auto", stall_report_s=29.0, warm_epochs=warm) as loader:
            came.append(torch.cat(epochs(loader, dropout)[0]))
            assert not loader.report().loaded_ahead and bool(loader.report().loaded_ahead_in_vain) == warm
    assert torch.equal(*came)


def test_two_iterations_of_one_auto_loader_at_once_are_two() -> None:
    came = []
    for warm in (True, False):
        torch.manual_seed(8)
        with antifreeze.DataLoader(Augmented(), BATCH, num_workers="auto", stall_report_s=29.0, warm_epochs=warm) as loader:
            batches: list[Any] = []
            for _ in range(2):
                batches += list(loader)
            for one in loader:
                batches.append(one)
                batches += list(loader)
            batches += list(loader)
            came.append(torch.cat(batches))
    assert torch.equal(*came)
