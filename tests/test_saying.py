"""What is said on stderr harms nobody, whatever stderr is."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from antifreeze import saying

LONG = "\n".join(["x" * 100] * 2000)


class Failing(io.StringIO):
    def write(self, text: str) -> int:
        raise RuntimeError("no")


def closed() -> Any:
    stream = io.StringIO()
    stream.close()
    return stream


def broken() -> Any:
    reading, writing = os.pipe()
    os.close(reading)
    return open(writing, "w", buffering=1)


@pytest.mark.parametrize("make", [lambda: None, closed, Failing, broken])
def test_nobody_is_harmed_where_it_cannot_be_heard(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make()
    monkeypatch.setattr(sys, "stderr", stream)
    saying.say("something")
    monkeypatch.undo()
    with contextlib.suppress(BrokenPipeError, AttributeError):
        stream.close()  # of the pipe's: what could not be written is tried once more


def test_a_pipe_that_nobody_reads_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(saying, "PATIENCE_S", 0.01)
    with open(writing, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        saying.say(LONG)
        monkeypatch.undo()
    with open(reading) as held:
        assert f"antifreeze: {LONG}".startswith(held.read().rstrip("\n"))


def test_all_of_it_is_said_where_it_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", heard := io.StringIO())
    saying.say(LONG)
    monkeypatch.undo()
    assert heard.getvalue() == f"antifreeze: {LONG}\n"
