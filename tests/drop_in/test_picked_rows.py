"""Data sets whose own `__getitem__` only picks rows: gathered at once, and still what torch makes of them sample by sample."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from antifreeze.worker.gather import Gather, gather_of

from .contract import TAKES_NUMPY_BOOLS, Case, Ours, Torchs, assert_same, assert_same_outcome, build, drain, rows, run

X = torch.arange(40 * 3, dtype=torch.float32).view(40, 3) / 7
Y = torch.arange(40) * 7
N = X.numpy()


class Held(Dataset[Any]):
    def __init__(self, x: Any = X, y: Any = Y) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)


class Pair(Held):
    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


class Named(Held):
    def __getitem__(self, i: int) -> Any:
        return {"y": self.y[i], "x": [self.x[i], (self.y[i],)]}


class Numbers(Held):
    def __getitem__(self, i: int) -> Any:
        return float(self.x[i]), int(self.y[i])


class Made(Held):
    def __getitem__(self, i: int) -> Any:
        return torch.tensor(self.x[i], dtype=torch.float32), torch.tensor(self.y[i])


class Viewed(Held):
    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(self.x[i]), torch.as_tensor(self.y[i], dtype=torch.float32)


class Cast(Held):
    def __getitem__(self, i: int) -> Any:
        return self.x[i].float(), self.y[i].long()


class Whole(Held):
    def __getitem__(self, i: int) -> Any:
        return self.x[i].long()


class WithMany(Pair):
    def __getitems__(self, indices: Any) -> Any:
        return [self[i] for i in indices]


class Slotted(Held):
    __slots__ = ("x", "y")

    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


class Property(Dataset[Any]):
    def __init__(self) -> None:
        vars(self)["x"] = X
        self.looks = 0

    @property
    def x(self) -> Any:
        self.looks += 1
        return X + self.looks

    def __getitem__(self, i: int) -> Any:
        return self.x[i]

    def __len__(self) -> int:
        return len(X)


class Watchful(Pair):
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name) * 2 if name == "x" else super().__getattribute__(name)


class ByHalf(Held):
    def __getitem__(self, i: int) -> Any:
        return self.x[i].half().float(), self.y[i].int().long()


class ByByte(Held):
    def __getitem__(self, i: int) -> Any:
        return torch.tensor(self.y[i], dtype=torch.uint8).long()


class Refuses(Held):
    def __getitem__(self, i: int) -> Any:
        number = int(self.x[i])  # noqa: F841 - it raises, and nothing else
        return self.x[i]


def shuffled(_: Any) -> dict[str, Any]:
    return {"batch_size": 6, "shuffle": True}


def listed(*indices: Any) -> Any:
    return lambda _: {"sampler": list(indices), "batch_size": 3}


HUGE = torch.tensor([2**62 + 1, -(2**62) - 1, 2**53 + 1, 5])

GATHERED = [
    Case("tensors", Pair, shuffled, epochs=2),
    Case("arrays", lambda: Pair(N, Y.numpy()), shuffled),
    Case("tree", Named, shuffled),
    Case("numbers", lambda: Numbers(X[:, 0]), shuffled),
    Case("numbers of arrays", lambda: Numbers(N[:, 0], Y.numpy().astype("int8")), shuffled),
    Case("large integers as numbers", lambda: Numbers(HUGE, HUGE), lambda _: {"batch_size": 3}),
    Case("float64 made float32", lambda: Made(N.astype("float64"), Y.numpy()), shuffled),
    Case("numpy floats in the default dtype", lambda: Made(N, N[:, 0].astype("float64")), shuffled),
    Case("bytes made floats", lambda: Made((N * 7).astype("uint8"), N[:, 0] > 3 if TAKES_NUMPY_BOOLS else Y.numpy()), shuffled),
    Case("viewed", lambda: Viewed(N, Y.numpy().astype("int16")), shuffled),
    Case("cast", lambda: Cast(X.double(), Y.to(torch.int32)), shuffled),
    Case("subset", lambda: Subset(Pair(), [5, 3, 3, 39, 0]), lambda _: {"batch_size": 2}),
    Case("strided", lambda: Pair(N[::-2], Y), shuffled),
    Case("not a number", lambda: Pair(torch.full((9, 2), torch.nan)), shuffled),
]
ASKED = [
    Case("not there", Pair, listed(0, 1, 2, 3, 40, 5)),
    Case("not there in one of them", lambda: Pair(X, Y[:20]), shuffled),
    Case("a numpy index", Pair, listed(np.int64(3), np.int64(4))),
    Case("fractions as integers", lambda: Whole(X), shuffled),
    Case("large integers as float32", lambda: Viewed(N[:4], HUGE.numpy()), shuffled),
    Case("a list", lambda: Pair(X, Y.tolist()), shuffled),
    Case("texts", lambda: Pair(X, np.array(["a"] * 40)), shuffled),
    Case("a number of a row", Numbers, shuffled),
    Case("floats of an array", lambda: Cast(N, Y), shuffled),
    Case("a tensor of no dimension", lambda: Pair(X, torch.tensor(3)), shuffled),
    Case("__getitems__", WithMany, shuffled),
    Case("slots", Slotted, shuffled),
    Case("__getattribute__", Watchful, shuffled),
    Case("own collate", Pair, lambda _: {"batch_size": 6, "collate_fn": len}),
    Case("no batches", Pair, lambda _: {"batch_size": None}),
    Case("by way of a narrower dtype", lambda: ByHalf(HUGE.to(torch.int32), HUGE), lambda _: {"batch_size": 3}),
    Case("wide floats by way of half", lambda: ByHalf(torch.full((40,), 1e30, dtype=torch.bfloat16)), shuffled),
    Case("by way of a byte", lambda: ByByte(N, Y.numpy() * 7), shuffled),
    Case("a conversion that raises", lambda: Refuses(torch.full((40,), torch.nan)), shuffled),
    Case("backwards", lambda: Pair(N[:, ::-1]), shuffled),
    Case("grad", lambda: Pair(X.clone().requires_grad_()), shuffled),
]


@pytest.mark.parametrize("workers", [0, 2])
@rows([*GATHERED, *ASKED])
def test_the_same_batches(case: Case, workers: int) -> None:
    without = run(Torchs, case)
    assert_same_outcome(run(Ours, case, workers), run(Torchs, case, workers), without)


def gathered(dataset: Any, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> int:
    """How many rows came without a call of `__getitem__`."""
    made: list[int] = []
    write = Gather.write
    monkeypatch.setattr(Gather, "write", lambda *given: write(*given) and (made.append(len(given[1])) or True))
    drain(build(Ours, dataset, **kwargs))
    return sum(made)


@rows(GATHERED)
def test_these_are_gathered(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = case.make()
    assert gathered(dataset, monkeypatch, **case.kwargs(dataset)) == len(dataset)


@pytest.mark.parametrize("case", [case for case in ASKED if case.name not in ("not there", "a numpy index")], ids=lambda case: case.name)
def test_these_are_asked(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = case.make()
    try:
        assert gathered(dataset, monkeypatch, **case.kwargs(dataset)) < 20
    except (IndexError, TypeError, ValueError, AttributeError, RuntimeError):
        assert case.name not in ("slots", "__getitems__")


def test_a_property_runs() -> None:
    ours, theirs = Property(), Property()
    assert_same(drain(build(Ours, ours, batch_size=6)), drain(build(Torchs, theirs, batch_size=6)))
    assert ours.looks == theirs.looks == len(X)


def test_a_debugger_finds_its_breakpoint() -> None:
    assert gather_of(Pair()) is not None
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        assert gather_of(Pair()) is None
    finally:
        sys.settrace(before)


def test_what_changes_on_the_way_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Pair(X.clone())
    batches = iter(build(Ours, dataset, batch_size=5))
    assert_same(next(batches), [X[:5], Y[:5]])
    dataset.x.zero_()
    assert not next(batches)[0].any()
    dataset.x = np.ones((40, 2), dtype=np.int16)
    assert_same(next(batches), [torch.ones(5, 2, dtype=torch.int16), Y[10:15]])
    dataset.x = [7] * 40
    assert_same(next(batches), [torch.full((5,), 7), Y[15:20]])
    dataset.x = X
    assert_same(next(batches), [X[20:25], Y[20:25]])
    monkeypatch.setattr(Pair, "__getitem__", lambda self, i: -i)
    assert_same(next(batches), -torch.arange(25, 30))


def test_a_class_or_a_torch_that_changes_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(Made):
        pass

    batches = iter(build(Ours, Later(N, Y.numpy()), batch_size=5))
    assert_same(next(batches), [X[:5], Y[:5]])
    with monkeypatch.context() as changed:
        changed.setattr(Later, "x", property(lambda self: N * 2), raising=False)
        assert_same(next(batches), [X[5:10] * 2, Y[5:10]])
    tensor = torch.tensor
    with monkeypatch.context() as changed:
        changed.setattr(torch, "tensor", lambda *given, **named: tensor(*given, **named) * 3)
        assert_same(next(batches), [X[10:15] * 3, Y[10:15] * 3])
    with torch.device("meta"):
        assert next(batches)[0].is_meta
    assert_same(next(batches), [X[20:25], Y[20:25]])


def test_a_file_that_was_cut_off_names_the_sample(tmp_path: Path) -> None:
    """Rows of a memmap that are not in its file any more end the worker by a bus error, gathered or not."""
    saved = np.memmap(tmp_path / "rows", dtype="float32", mode="w+", shape=(40, 4096))
    with open(tmp_path / "rows", "r+b") as file:
        file.truncate(39 * 4096 * 4)
    with build(Ours, Pair(saved, np.arange(40)), batch_size=8, num_workers=2, on_bad_sample="skip") as loader:
        delivered = torch.cat([labels for _, labels in loader])
        bad = loader.report().bad_samples
    assert delivered.tolist() == list(range(39))
    assert [sample.index for sample in bad] == ["39"]
