"""Data sets that are arrays: gathered at once, and still what torch makes of them sample by sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset, random_split

from antifreeze.worker.gather import Gather, gather_of

from .contract import Case, Ours, Torchs, assert_same, assert_same_outcome, build, drain, rows, run

X = torch.arange(40 * 3, dtype=torch.float32).view(40, 3)
Y = torch.arange(40) * 7
N = X.numpy()


def listed(*indices: Any) -> Any:
    return lambda _: {"sampler": list(indices), "batch_size": 3}


GATHERED = [
    Case("tensors", lambda: TensorDataset(X, Y), lambda _: {"batch_size": 6, "shuffle": True}, epochs=2),
    Case("one tensor", lambda: TensorDataset(X), lambda _: {"batch_size": 6}),
    Case("a tensor itself", lambda: X, lambda _: {"batch_size": 6, "shuffle": True}),
    Case("a flat tensor", lambda: Y, lambda _: {"batch_size": 7}),
    Case("an array", lambda: N, lambda _: {"batch_size": 6, "shuffle": True}),
    Case("a flat array", N[:, 0].copy, lambda _: {"batch_size": 6}),
    Case("columns of an array", lambda: N[:, 1:], lambda _: {"batch_size": 6, "shuffle": True}),
    Case("every other row", lambda: N[::-2], lambda _: {"batch_size": 6, "shuffle": True}),
    Case("an array in another order", lambda: np.asfortranarray(N), lambda _: {"batch_size": 6}),
    Case("from the end of an array", lambda: N, listed(-1, -40, 5, *range(-20, 0))),
    Case("int16 array", lambda: N.astype("int16"), lambda _: {"batch_size": 6}),
    Case("bool tensor", lambda: TensorDataset(X > 50), lambda _: {"batch_size": 6}),
    Case("bfloat16 and complex", lambda: TensorDataset(X.bfloat16(), X.to(torch.complex64)), lambda _: {"batch_size": 6}),
    Case("strided", lambda: TensorDataset(X.t().contiguous().t(), Y[::1]), lambda _: {"batch_size": 6, "shuffle": True}),
    Case("empty rows", lambda: TensorDataset(torch.empty(40, 0), Y), lambda _: {"batch_size": 6}),
    Case("subset", lambda: Subset(TensorDataset(X, Y), [5, 3, 3, 39, 0]), lambda _: {"batch_size": 2}),
    Case("subset of a subset", lambda: Subset(Subset(TensorDataset(X, Y), range(10, 30)), [0, 19, 4]), lambda _: {"batch_size": 2}),
    Case("split", lambda: random_split(TensorDataset(X, Y), [30, 10])[0], lambda _: {"batch_size": 4, "shuffle": True}),
    Case("the last batch", lambda: TensorDataset(X, Y), lambda _: {"batch_size": 32}),
    Case("drop last", lambda: TensorDataset(X, Y), lambda _: {"batch_size": 32, "drop_last": True}),
    Case("large rows", lambda: TensorDataset(torch.rand(9, 3, 300, 300)), lambda _: {"batch_size": 4, "shuffle": True}),
]
ASKED = [
    Case("from the end", lambda: TensorDataset(X, Y), listed(-1, -40, 5)),
    Case("not there", lambda: TensorDataset(X, Y), listed(0, 1, 2, 3, 40, 5)),
    Case("not there in an array", lambda: N, listed(0, 1, 2, 3, 40, 5)),
    Case("not there in the subset", lambda: Subset(TensorDataset(X, Y), [1, 2]), listed(0, 1, 2)),
    Case("a bool", lambda: TensorDataset(X, Y), listed(True, False)),
    Case("a numpy index", lambda: TensorDataset(X, Y), listed(np.int64(3), np.int64(4))),
    Case("a huge index", lambda: TensorDataset(X, Y), listed(2**70)),
    Case("grad", lambda: TensorDataset(X.clone().requires_grad_()), lambda _: {"batch_size": 6}),
    Case("sparse", lambda: TensorDataset(X.to_sparse()), lambda _: {"batch_size": 6}),
    Case("objects", lambda: np.array([[1], [2]], dtype=object), lambda _: {"batch_size": 2}),
    Case("text", lambda: np.array(["a", "b"]), lambda _: {"batch_size": 2}),
    Case("other byte order", lambda: N.astype(">f4"), lambda _: {"batch_size": 6}),
    Case("own collate", lambda: TensorDataset(X, Y), lambda _: {"batch_size": 6, "collate_fn": len}),
    Case("no batches", lambda: TensorDataset(X, Y), lambda _: {"batch_size": None}),
]


@pytest.mark.parametrize("workers", [0, 2])
@rows([*GATHERED, *ASKED])
def test_the_same_batches(case: Case, workers: int) -> None:
    without = run(Torchs, case)
    assert_same_outcome(run(Ours, case, workers), run(Torchs, case, workers), without)


@rows(GATHERED)
def test_these_are_gathered(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    write = Gather.write
    monkeypatch.setattr(Gather, "write", lambda *given: made.append(len(given[1])) or write(*given))
    dataset = case.make()
    drain(build(Ours, dataset, **case.kwargs(dataset)))
    assert sum(made) >= len(dataset) - 32


class Half(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(part / 2 for part in super().__getitem__(index))


def test_a_data_set_of_the_users_own_kind_is_asked() -> None:
    assert gather_of(Half(X)) is None
    assert gather_of(Subset(Half(X), [0])) is None
    assert_same(drain(build(Ours, Half(X), batch_size=6)), drain(build(Torchs, Half(X), batch_size=6)))


def test_a_memmap_is_gathered(tmp_path: Path) -> None:
    saved = np.memmap(tmp_path / "rows", dtype="float32", mode="w+", shape=N.shape)
    saved[:] = N
    assert gather_of(saved) is not None
    for workers in (0, 2):
        assert_same(drain(build(Ours, saved, batch_size=6, num_workers=workers)), drain(build(Torchs, saved, batch_size=6)))


def test_other_tensors_in_their_place_are_seen_at_once() -> None:
    dataset = TensorDataset(X.clone(), Y)
    loader = build(Ours, dataset, batch_size=10)
    batches = iter(loader)
    assert next(batches)[0].dtype is torch.float32
    dataset.tensors[0].zero_()
    assert not next(batches)[0].any()
    dataset.tensors = (torch.ones(40, 2, dtype=torch.int16),)
    assert_same(next(batches), [torch.ones(10, 2, dtype=torch.int16)])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_the_users_own(workers: int) -> None:
    """What the loop does to it reaches neither the data set nor another batch."""
    dataset = TensorDataset(X.clone())
    for (batch,) in build(Ours, dataset, batch_size=10, num_workers=workers):
        batch.fill_(-1)
    assert torch.equal(dataset.tensors[0], X)
