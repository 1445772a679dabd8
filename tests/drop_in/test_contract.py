"""The comparison itself: it sees every difference a contract is about, and none where there is none."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from .contract import difference
from .datasets import Pair, Tagged, Typed
from .kinds import ALL

A, B = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])

DIFFERENT: dict[str, tuple[Any, Any]] = {
    "value": (A, B),
    "dtype": (A, A.double()),
    "shape": (A, A[None]),
    "strides": (torch.ones(2, 2), torch.ones(4, 2)[::2]),
    "minus zero": (torch.tensor([0.0]), torch.tensor([-0.0])),
    "minus zero, python": (0.0, -0.0),
    "requires grad": (A, A.clone().requires_grad_()),
    "leaf": (A.clone().requires_grad_() * 1, A.clone().requires_grad_()),
    "parameter": (torch.nn.Parameter(A), A.clone().requires_grad_()),
    "list and tuple": ([A], (A,)),
    "list and tensor": ([1, 2], torch.tensor([1, 2])),
    "length": ([A], [A, A]),
    "int and float": (1, 1.0),
    "int and bool": (1, True),
    "dict and OrderedDict": ({"a": 1}, OrderedDict(a=1)),
    "key order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "deep": ({"a": [{"b": (A,)}]}, {"a": [{"b": (B,)}]}),
    "namedtuple": (Pair(1, 2), Typed(1, 2)),
    "attribute of a dict": (Tagged(a=1), _tagged := Tagged(a=1)),
    "sparse": (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse()),
    "layout": (torch.eye(2).to_sparse(), torch.eye(2)),
    "numpy dtype": (np.ones(2), np.ones(2, dtype=np.float32)),
    "numpy scalar": (np.float32(1), np.float64(1)),
    "numpy scalar and python": (np.float64(1), 1.0),
    "NaN and number": (float("nan"), 1.0),
    "str and bytes": ("a", b"a"),
    "None": (None, 0),
}
_tagged.tag = "set"


@pytest.mark.parametrize("name", list(DIFFERENT))
def test_a_difference_is_seen(name: str) -> None:
    ours, torchs = DIFFERENT[name]
    assert difference(ours, torchs)
    assert difference(torchs, ours)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_no_difference_where_there_is_none() -> None:
    assert {name: found for name, sample in ALL.items() if (found := difference([sample(1)], [sample(1)]))} == {}
