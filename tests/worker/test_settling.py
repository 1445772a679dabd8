"""What a worker has set for itself, and the loop's process has not."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from antifreeze import DataLoader

PR_GET_TIMERSLACK = 30


class Slack:
    """By how many nanoseconds the thread that loads a sample may be woken late."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return int(ctypes.CDLL(None).prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0))


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_workers_are_woken_on_time(kind: Any) -> None:
    here = Slack()[0]
    with DataLoader(Slack(), num_workers=2, workers=kind) as loader:
        assert {int(slack) for slack in loader} == {1000}
    assert Slack()[0] == here > 1000
