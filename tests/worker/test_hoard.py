"""What a data set keeps ever more of is named, by the worker in which it does."""

from __future__ import annotations

import functools
import sys
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from antifreeze import DataLoader
from antifreeze.supervisor import memory
from antifreeze.worker.hoard import STEP_KIB, Hoard

KEPT: list[bytes] = []


class Keeps:
    def __init__(self) -> None:
        self.table: dict[int, Any] = {}
        self.seen: set[int] = set(range(1000))
        self.reader = SimpleNamespace(pages=deque(), other=[1, 2, 3])
        self.text = bytearray()

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033
    def decoded(self, index: int) -> int:
        return index


def in_dict(keeps: Keeps) -> None:
    keeps.table |= {number: np.zeros(1 << 17) for number in range(40)}


def in_deque(keeps: Keeps) -> None:
    keeps.reader.pages.extend([bytes(1 << 20)] * 40)


def in_text(keeps: Keeps) -> None:
    keeps.text += bytes(40 << 20)


def in_cache(keeps: Keeps) -> None:
    for number in range(20):
        keeps.decoded(number)


def in_module(keeps: Keeps) -> None:
    KEPT.extend([bytes(1 << 20)] * 40)


def nowhere(keeps: Keeps) -> None:
    keeps.seen.add(-1)


@pytest.mark.parametrize(
    ("grow", "said"),
    [
        (in_dict, "dataset.table (dict) grew from 0 to 40 entries"),
        (in_deque, "dataset.reader.pages (deque) grew from 0 to 40 entries"),
        (in_text, "dataset.text (bytearray) grew from 0 to 41,943,040 entries"),
        (in_cache, "the cache of dataset.decoded grew from 0 to 20 entries"),
        (in_module, f"{__name__}.KEPT (list) grew from 0 to 40 entries"),
        (nowhere, None),
    ],
)
def test_what_grew_is_named(grow: Any, said: str | None) -> None:
    KEPT.clear()
    Keeps.decoded.cache_clear()
    keeps = Keeps()
    hoard = Hoard(keeps)
    assert hoard.look(100_000) is None
    grow(keeps)
    assert hoard.look(100_000 + STEP_KIB - 1) is None  # too little to look for it
    assert hoard.look(100_000 + STEP_KIB) == said
    assert hoard.look(100_001 + STEP_KIB) is None
    KEPT.clear()


def test_a_data_set_that_cannot_be_looked_at_is_left_alone() -> None:
    class Odd:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no")

    hoard = Hoard(Odd())
    assert [hoard.look(kib) for kib in (1, 1 << 30)] == [None, None]


class Weightless:
    @property
    def nbytes(self) -> int:
        raise RuntimeError("no")


def test_nor_is_one_that_keeps_what_cannot_be_weighed() -> None:
    keeps = Keeps()
    hoard = Hoard(keeps)
    hoard.look(1)
    keeps.table = dict.fromkeys(range(1000), Weightless())
    assert hoard.look(1 << 30) is None


class Leaks(torch.utils.data.Dataset[int]):
    def __init__(self) -> None:
        self.history: list[bytes] = []

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        time.sleep(0.004)
        self.history.append(b"x" * (1 << 20))
        return index


@pytest.mark.skipif(sys.platform != "linux", reason="workers are torch's elsewhere")
def test_the_report_names_what_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "FIRST_S", 0.05)
    monkeypatch.setattr(memory, "FIRST_ROUND_S", 0.4)
    monkeypatch.setattr(memory, "_SHARE_OF_TIME", 1)
    monkeypatch.setattr(memory, "EVERY_S", 0.2)
    with DataLoader(Leaks(), batch_size=2, num_workers=1) as loader:
        assert sum(len(batch) for batch in loader) == 400
        growth = loader.report().growth
    assert growth is not None
    assert "dataset.history (list) grew from 0 to" in growth
    assert "most likely what grows" in growth
