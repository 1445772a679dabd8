"""Texts beside tensors: whatever they are, the batch is torch's, and it goes as rows where each fits into its cell."""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from antifreeze import DataLoader
from antifreeze.slots import texts
from antifreeze.slots.layout import RowLayout, learn

COUNT, BATCH = 40, 8
Named = namedtuple("Named", "picture name")

SHAPES: dict[str, Callable[[torch.Tensor, int, Any], Any]] = {
    "tuple": lambda picture, index, text: (picture, index, text),
    "list": lambda picture, index, text: [text, picture],
    "dict": lambda picture, index, text: {"picture": picture, "text": text},
    "namedtuple": lambda picture, index, text: Named(picture, text),
    "nested": lambda picture, index, text: (picture, [index, text], {"text": text}),
}
TEXTS: dict[str, Callable[[int], Any]] = {
    "paths": lambda index: f"class-{index % 3}/{index}.jpg",
    "some empty": lambda index: "é😀" * (index % 3),
    "bytes": lambda index: bytes([index]) * 3,
    "surrogates": lambda index: "\ud800x" * (index + 1),
    "as long as fits": lambda index: "y" * texts.WIDTH,
    "some too long": lambda index: "y" * (index * 20),
    "a zero inside": lambda index: f"a\0{index}",
    "some end in zero": lambda index: "a\0" if index % 2 else "a",
    "bytes that end in zero": lambda index: b"a\0" if index == 17 else b"a",
    "one is another type": lambda index: b"a" if index == 17 else "a",
    "one is no text": lambda index: None if index == 17 else "a",
}


class Captioned(Dataset[Any]):
    def __init__(self, shape: str, text: Callable[[int], Any]) -> None:
        self.shape, self.text = SHAPES[shape], text

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.shape(torch.full((700,), float(index)), index, self.text(index))


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize(
    ("shape", "text"), [(shape, text) for shape in SHAPES for text in TEXTS if shape == "nested" or text in ("paths", "some too long")]
)
def test_batches_are_torchs(shape: str, text: str) -> None:
    data = Captioned(shape, TEXTS[text])
    theirs = list(TorchLoader(data, BATCH))
    with DataLoader(data, BATCH, num_workers=2) as loader:
        ours = list(loader)
    assert same(ours, theirs)


def test_they_go_as_rows_beside_something_larger_and_else_as_parcels() -> None:
    assert isinstance(learn((torch.zeros(700), "a/path.jpg")), RowLayout)
    assert learn((torch.zeros(10), "a/path.jpg")) is None
    assert learn("a/path.jpg") is None
    assert learn((torch.zeros(700), "a" * (texts.WIDTH + 1))) is None
    assert learn((torch.zeros(700), "a", "b", "c")) is None


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("full", [True, False])
def test_bad_samples_among_them(policy: str, full: bool) -> None:
    class Torn(Captioned):
        def __getitem__(self, index: int) -> Any:
            if index % 11 == 5:
                raise ValueError(f"picture {index} is truncated")
            return super().__getitem__(index)

    with DataLoader(Torn("tuple", TEXTS["paths"]), BATCH, num_workers=2, on_bad_sample=policy, keep_batches_full=full) as loader:
        seen = [(int(index), int(picture[0]), text) for batch in loader for picture, index, text in zip(*batch, strict=True)]
    assert all(index == value and text == TEXTS["paths"](index) for index, value, text in seen)
    assert len(seen) == (COUNT if policy == "replace" else COUNT - 4)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=texts.WIDTH + 4), st.binary(max_size=texts.WIDTH + 4)), min_size=1, max_size=6))
def test_what_fits_comes_back_as_it_was(some: list[str | bytes]) -> None:
    for kind in (str, bytes):
        fitting = [text for text in some if texts.fits(kind, text)]
        assert all(type(text) is kind for text in fitting)
        if fitting:
            dtype, _ = texts.CELLS[kind]
            cells = torch.full((len(fitting), texts.WIDTH), random.randrange(100), dtype=dtype)
            texts.write(kind, cells, fitting)
            assert texts.read(kind, cells) == fitting
