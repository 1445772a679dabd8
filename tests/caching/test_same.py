"""Which samples are the same: a table, of pairs that are made twice and pairs that differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from antifreeze import cached
from antifreeze.caching.same import difference


@dataclass
class Boxes:
    xy: Any
    score: float = 0.0


class Slots:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


class Warming:
    """Fills a cache of its own when it is first looked at, which is no part of its state."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        self._looked = True
        raise ValueError("which part?")

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> Any:
        return self.x


class Refuses(torch.Tensor):
    """One of a library that refuses what it does not know."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


MADE: dict[str, Callable[[float], Any]] = {
    "sparse": lambda x: torch.tensor([[0, x], [0, 0]]).to_sparse(),
    "in an object": lambda x: SimpleNamespace(sparse=torch.tensor([[0, x], [0, 0]]).to_sparse()),
    "a dataclass with a nan": lambda x: Boxes(x, float("nan")),
    "a dataclass with a tensor": lambda x: Boxes(torch.tensor([x, float("nan")])),
    "slots": lambda x: Slots(torch.tensor([x])),
    "with a cache of its own": lambda x: Warming([x]),
    "a queue": lambda x: deque([torch.ones(2), torch.tensor([x])]),
    "a generator": lambda x: torch.Generator().manual_seed(int(x)),
    "a storage": lambda x: torch.tensor([x]).untyped_storage(),
    "an error": ValueError,
    "meta": lambda x: torch.empty(int(x), device="meta"),
}


@pytest.mark.parametrize("what", MADE)
def test_what_is_made_twice_is_the_same_and_what_differs_is_not(what: str) -> None:
    make = MADE[what]
    assert difference(make(3.0), make(3.0)) == ""
    assert difference([make(3.0)], [make(4.0)]).startswith("at [0]")


OTHERS: dict[str, Callable[[], torch.Tensor]] = {
    "meta": lambda: torch.empty(3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "refuses": lambda: torch.ones(3).as_subclass(Refuses),
}


@pytest.mark.filterwarnings("ignore")  # torch's, of what it calls a prototype
@pytest.mark.parametrize("what", OTHERS)
def test_tensors_of_other_kinds_end_no_run(what: str, tmp_path: Path) -> None:
    data = cached(Made(OTHERS[what]), tmp_path)
    for _ in range(3):
        assert type(data[0]) is type(data[1]) is type(OTHERS[what]())


class Made(Dataset[Any]):
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.make()
