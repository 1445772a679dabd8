"""Which sample of a batch is named when collating them fails: the one that is not like most of them, wherever it stands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from antifreeze.worker.odd_one import odd_one

TWO, THREE = torch.zeros(2), torch.zeros(3)
PADS = "; collate_fn=antifreeze.Pad() fills samples of different sizes up to the largest of their batch"


@pytest.mark.parametrize(
    ("samples", "row", "how"),
    [
        ([TWO, TWO, THREE], 2, "it is tensor float32[3], but the batch's first sample is tensor float32[2]" + PADS),
        ([THREE, TWO, TWO], 0, "it is tensor float32[3], but most of the batch are tensor float32[2]" + PADS),
        ([TWO, TWO.int()[None]], 1, "it is tensor int32[1, 2], but the batch's first sample is tensor float32[2]"),
        ([TWO, TWO[None]], 1, "it is tensor float32[1, 2], but the batch's first sample is tensor float32[2]"),
        ([{"x": None}, {"x": 1}, {"x": 2}], 0, "it is {'x': NoneType}, but most of the batch are {'x': int}"),
        ([{"x": None}, {"x": None}, {"x": 2}], 0, "it is {'x': NoneType}, but most of the batch are {'x': int}"),
        ([1, 2.5, None], 2, "it is None"),
        ([1, 2.5, 3, "text"], 3, "it is str, but the batch's first sample is int"),
        ([1, 2**70, 3], 1, "it cannot be collated even alone"),
        ([{"x": 1, "y": 1}, {"x": 1}, {"x": 1}], 0, "it is {'x': int, 'y': int}, but most of the batch are {'x': int}"),
        ([{"x": 1}, {"x": 1, "y": 1}, {"y": 1}], 2, "it is {'y': int}, but the batch's first sample is {'x': int}"),
        ([object(), object()], 0, "it cannot be collated even alone"),
        ([TWO, THREE], 1, "it is tensor float32[3], but the batch's first sample is tensor float32[2]" + PADS),
    ],
)
def test_of_torchs_own_collate(samples: list[Any], row: int, how: str) -> None:
    assert odd_one(samples, default_collate) == (row, how)


def test_of_another_collate_function_only_the_structure_is_known() -> None:
    assert odd_one([THREE, TWO, TWO], list) == (0, "it is tensor float32[3], but most of the batch are tensor float32[2]")
    assert odd_one([1, 2, 2**70], list) is None
    assert odd_one([None, None, 1], list) == (0, "it is None")
    assert odd_one([], list) is None


def test_of_as_many_of_one_kind_as_of_another_either_may_be_the_usual_one() -> None:
    assert [odd_one([TWO, THREE, TWO, THREE], default_collate, of_two)[0] for of_two in range(4)] == [1, 0, 1, 0]  # type: ignore[index]
    assert [odd_one([THREE, TWO, TWO], default_collate, of_two)[0] for of_two in range(4)] == [0] * 4  # type: ignore[index]
