"""With how many of torch's threads the loop copies where it loads without workers; the user's own code has all of them, always."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

from antifreeze import DataLoader, torch_private
from antifreeze.delivery import local_pool
from antifreeze.delivery.copy_threads import ASLEEP_LOOKS, LOOK_AFTER_NS, CopyThreads, has_large
from antifreeze.delivery.thread_use import REST_LOOKS
from antifreeze.torch_private import SHARED_AMONG_THREADS, collate_alone

LARGE = torch.arange(2 * SHARED_AMONG_THREADS, dtype=torch.float32).reshape(2, -1)
SMALL = torch.arange(12.0)


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


# --- which is faster ---


def looks(copies: CopyThreads, *means_ms: int) -> list[bool]:
    """Of as many batches as it takes; whether the next one is copied alone."""
    alone = []
    for mean_ms in means_ms:
        for _ in range(math.ceil(LOOK_AFTER_NS / (mean_ms * 1_000_000))):
            copies.add(mean_ms * 1_000_000)
        alone.append(copies.alone)
    return alone


def test_one_thread_is_measured_first_and_then_all_have_their_turn() -> None:
    copies = CopyThreads()
    assert copies.alone and "to be measured" in repr(copies)
    assert looks(copies, 10, 8, 9) == [False] * 3


def test_where_all_threads_take_longer_there_is_one_for_a_while() -> None:
    copies = CopyThreads()
    assert looks(copies, 10, 8, 300) == [False, False, True]
    assert looks(copies, *[10] * REST_LOOKS) == [True] * (REST_LOOKS - 1) + [False]
    assert looks(copies, 8) == [False]


def test_nothing_is_learnt_while_there_is_nothing_large() -> None:
    copies = CopyThreads()
    copies.nothing_large()
    assert not copies.alone and "nothing large" in repr(copies)
    assert looks(copies, *[1] * ASLEEP_LOOKS) == [False] * (ASLEEP_LOOKS - 1) + [True], "it has not been measured yet"


@pytest.mark.parametrize(
    ("samples", "large"),
    [
        ([LARGE], True),
        ([SMALL, LARGE], False),
        ([(SMALL, {"x": [LARGE]})], True),
        ([np.zeros(SHARED_AMONG_THREADS)], True),
        ([{"x": 1.0, "y": "text"}], False),
        ([], False),
        (None, False),
    ],
)
def test_what_is_large(samples: Any, large: bool) -> None:
    assert has_large(samples) is large


# --- the same batches ---


class Pair(NamedTuple):
    image: Any
    label: Any


class Own(torch.Tensor):
    pass


def seen(value: Any) -> Any:
    """Everything that can be told of a batch."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).tolist()
        return type(value), value.dtype, value.shape, value.stride(), value.is_conj(), value.requires_grad, raw
    if isinstance(value, dict):
        return type(value), {key: seen(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [seen(each) for each in value]
    return value


SAMPLES: dict[str, Callable[[int], Any]] = {
    "a tensor": lambda index: LARGE + index,
    "with a label": lambda index: (LARGE + index, index),
    "in a dict": lambda index: {"x": LARGE + index, "name": str(index), "more": [SMALL + index]},
    "in a named tuple": lambda index: Pair(LARGE + index, index / 3),
    "an array": lambda index: (LARGE + index).numpy(),
    "bytes": lambda index: (LARGE % 251).to(torch.uint8) + index,
    "half as wide": lambda index: (LARGE + index).bfloat16(),
    "complex and conjugate": lambda index: torch.complex(LARGE, LARGE + index).conj(),
    "not contiguous": lambda index: (LARGE + index).t(),
    "channels last": lambda index: torch.rand(1, 4, 96, 96, generator=torch.Generator().manual_seed(index)).to(
        memory_format=torch.channels_last
    ),
    "odd dimensions": lambda index: LARGE.reshape(1, -1, 1) + index,
    "with a gradient": lambda index: (LARGE + index).requires_grad_(),
    "a class of its own": lambda index: (LARGE + index).as_subclass(Own),
    "of two dtypes": lambda index: LARGE.double() if index else LARGE,
    "small": lambda index: SMALL + index,
    "only one": torch.tensor,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_batch_that_is_copied_alone_is_the_same(name: str) -> None:
    samples = [SAMPLES[name](index) for index in range(3)]
    assert seen(collate_alone(samples)) == seen(default_collate(samples))


def test_an_error_is_torchs() -> None:
    samples = [LARGE, LARGE[:1]]
    with pytest.raises(RuntimeError) as of_torch:
        default_collate(samples)
    with pytest.raises(RuntimeError) as ours:
        collate_alone(samples)
    assert str(ours.value) == str(of_torch.value)


@pytest.mark.parametrize(("sample", "stacks"), [(LARGE, 0), ((LARGE, SMALL), 1), (LARGE.t(), 1)])
def test_torch_stacks_only_what_it_stacks_in_one_thread_or_better(sample: Any, stacks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr(torch_private, "_collate_tensors", lambda batch, collate_fn_map=None: called.append(batch))
    monkeypatch.setitem(torch_private._collate.default_collate_fn_map, torch.Tensor, torch_private._collate_tensors)
    collate_alone([sample, sample])
    assert len(called) == stacks


# --- in a loader ---


class Images(Dataset[Any]):
    def __init__(self, make: Callable[[int], Any], samples: int = 40) -> None:
        self.make, self.samples, self.threads = make, samples, set[int]()

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        self.threads.add(torch.get_num_threads())
        return self.make(index)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Every batch is looked at, and every other one is copied alone; which ones were."""
    alone: list[bool] = []
    monkeypatch.setattr(local_pool, "COPIES_MATTER_NS", -1)

    def look(copies: CopyThreads, loaded_ns: int) -> None:
        alone.append(copies.alone)
        copies.alone = not copies.alone

    monkeypatch.setattr(CopyThreads, "add", look)
    return alone


@pytest.mark.parametrize("slot_bytes", [local_pool.SLOT_PAYS_BYTES, 1], ids=["collated", "written to slots"])
@pytest.mark.parametrize("name", ["with a label", "in a dict", "bytes", "half as wide", "an array", "not contiguous"])
def test_the_batches_of_a_loader(name: str, slot_bytes: int, often: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_pool, "SLOT_PAYS_BYTES", slot_bytes)
    images = Images(SAMPLES[name])
    batches = [seen(batch) for batch in DataLoader(images, batch_size=4, num_workers=0)]
    assert batches == [seen(default_collate([images.make(index + at) for at in range(4)])) for index in range(0, 40, 4)]
    assert images.threads == {4} and torch.get_num_threads() == 4
    assert set(often) == {True, False}


def test_a_collate_function_of_the_users_has_all_threads(often: list[bool]) -> None:
    threads = []

    def collate(samples: list[Any]) -> Any:
        threads.append(torch.get_num_threads())
        return default_collate(samples)

    for _ in DataLoader(Images(lambda index: LARGE + index), batch_size=4, num_workers=0, collate_fn=collate):
        assert torch.get_num_threads() == 4
    assert set(threads) == {4} and not often


def test_what_workers_may_make_is_not_decided_here(often: list[bool]) -> None:
    with DataLoader(Images(lambda index: LARGE + index), batch_size=4, num_workers="auto") as loader:
        for _ in loader:
            pass
    assert not often
