"""The line to a worker in the same process: whole messages, each to one reader, and silence once it is cut."""

from __future__ import annotations

import select
import threading

import pytest

from antifreeze.channel.line import Bell, Line
from antifreeze.channel.messages import Bounced, Stop


def test_the_bell_rings_once_until_it_is_heard() -> None:
    bell = Bell()
    line = Line(bell, 3)
    line.send(Bounced(1))
    line.send(Bounced(2))
    assert select.select([bell], [], [], 1)[0]
    assert [(heard.worker, message) for heard, message in bell.heard()] == [(3, Bounced(1)), (3, Bounced(2))]
    assert not select.select([bell], [], [], 0)[0]
    line.send(Bounced(3))
    assert select.select([bell], [], [], 1)[0]
    bell.close()
    bell.close()


def test_what_was_not_read_is_taken_back() -> None:
    bell = Bell()
    line = Line(bell, 0)
    for number in range(3):
        line.put(Stop(number))
    assert line.receive() == Stop(0)
    assert line.take_back() == [Stop(1), Stop(2)]
    assert line.take_back() == []
    bell.close()


def test_a_line_that_was_cut_is_silent_and_ends_the_wait() -> None:
    bell = Bell()
    line, received = Line(bell, 0), []
    line.send(Bounced(1))
    reader = threading.Thread(target=lambda: received.append(line.receive()))
    reader.start()
    line.cut()
    reader.join(10)
    line.send(Bounced(2))
    assert received == [None]
    assert bell.heard() == []
    with pytest.raises(OSError, match="cut"):
        line.check()
    bell.close()
    line.send(Bounced(3))  # after the bell is gone: nothing is written to anybody's descriptor


def test_a_bell_that_is_rung_late_does_not_ring_on() -> None:
    """Heard between a thread's word and its hand at the bell, it rings for nothing: once, or the parent would never sleep again."""
    bell = Bell()
    line = Line(bell, 0)
    with bell._lock:
        speaker = threading.Thread(target=line.send, args=(Bounced(1),))
        speaker.start()
        while not bell._rung:
            pass
        assert [message for _, message in bell.heard()] == [Bounced(1)]
    speaker.join(10)
    assert select.select([bell], [], [], 1)[0]
    assert bell.heard() == []
    assert not select.select([bell], [], [], 0)[0]
    bell.close()
