"""The line to a worker in the same process: whole messages, each to one reader, and silence once it is cut."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from antifreeze.channel.line import Bell, Line
from antifreeze.channel.messages import Bounced, RowsDone, Stop

LONG_S = 100.0
DONE = RowsDone(1, 0, 1, 0, 0, 0, 0, 0)


def sleeping(bell: Bell, through: int = 0) -> threading.Thread:
    """A parent that sleeps until the bell rings."""
    parent = threading.Thread(target=bell.wait, args=(LONG_S, through), daemon=True)
    parent.start()
    until(lambda: bell._sleeps)
    return parent


def until(found: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + LONG_S
    while not found() and time.monotonic() < limit_s:
        time.sleep(0.001)
    assert found()


def wakes(parent: threading.Thread) -> bool:
    parent.join(LONG_S)
    return not parent.is_alive()


def test_what_is_said_is_heard_once_and_in_order() -> None:
    bell = Bell()
    line = Line(bell, 3)
    line.send(Bounced(1))
    line.send(Bounced(2))
    bell.wait(LONG_S)  # something was said before: it does not sleep at all
    assert [(heard.worker, message) for heard, message in bell.heard()] == [(3, Bounced(1)), (3, Bounced(2))]
    assert bell.heard() == []


def test_a_word_wakes_the_parent() -> None:
    bell = Bell()
    line = Line(bell, 0)
    for number in range(20):
        parent = sleeping(bell)
        line.send(Bounced(number))
        assert wakes(parent)
        assert len(bell.heard()) == 1


def test_it_sleeps_through_some_results_of_workers_that_have_more_to_do() -> None:
    bell = Bell()
    lines = [Line(bell, number) for number in range(3)]
    for line in lines:
        line.put(Stop(0))
    parent = sleeping(bell, through=2)
    lines[0].send(DONE)
    lines[1].send(DONE)
    assert parent.is_alive() and bell._sleeps
    lines[2].send(DONE)
    assert wakes(parent)
    assert len(bell.heard()) == 3


def test_a_worker_with_nothing_more_to_do_wakes_it_with_its_first_result() -> None:
    bell = Bell()
    parent = sleeping(bell, through=100)
    Line(bell, 0).send(DONE)
    assert wakes(parent)


def test_whatever_is_no_result_wakes_it() -> None:
    bell = Bell()
    line = Line(bell, 0)
    line.put(Stop(0))
    parent = sleeping(bell, through=100)
    line.send(Bounced(1))
    assert wakes(parent)


def test_a_bell_that_is_rung_late_wakes_the_parent_once_for_nothing() -> None:
    """Whoever saw it sleep may come to the bell when it is up already."""
    bell = Bell()
    bell._string.release()
    bell.wait(LONG_S)
    parent = sleeping(bell)
    parent.join(0.05)
    assert parent.is_alive()
    Line(bell, 0).send(Bounced(1))
    assert wakes(parent)


def test_a_wait_ends_with_its_limit() -> None:
    bell = Bell()
    bell.wait(0.001)
    assert bell.heard() == []
    Line(bell, 0).send(Bounced(1))
    assert len(bell.heard()) == 1


def test_what_was_not_read_is_taken_back() -> None:
    bell = Bell()
    line = Line(bell, 0)
    for number in range(3):
        line.put(Stop(number))
    assert line.receive() == Stop(0)
    assert line.take_back() == [Stop(1), Stop(2)]
    assert line.take_back() == []


def test_a_line_that_was_cut_is_silent_and_ends_the_wait() -> None:
    bell = Bell()
    line, received = Line(bell, 0), []
    line.send(Bounced(1))
    reader = threading.Thread(target=lambda: received.append(line.receive()))
    reader.start()
    line.cut()
    reader.join(LONG_S)
    line.send(Bounced(2))
    assert received == [None]
    assert bell.heard() == []
    with pytest.raises(OSError, match="cut"):
        line.check()
