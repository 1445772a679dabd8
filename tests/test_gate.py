"""Gates: closed at first, opened by one, closed behind whoever came through."""

from __future__ import annotations

import signal
import threading

import pytest

from antifreeze.gate import Gate


def test_one_comes_through_for_each_time_that_it_is_opened() -> None:
    gate = Gate()
    assert not gate.wait(0.0)
    gate.open()
    gate.open()  # it is
    assert gate.wait(0.0) and not gate.wait(0.0)
    gate.open()
    gate.close()
    gate.close()
    assert not gate.wait(-1.0)


def test_another_thread_lets_it_through() -> None:
    gate, came = Gate(), list[bool]()
    thread = threading.Thread(target=lambda: came.append(gate.wait(20)), daemon=True)
    thread.start()
    gate.open()
    thread.join(20)
    assert came == [True]


def test_a_wait_that_a_signals_handler_breaks_off_leaves_it_as_it_was() -> None:
    def rings(*_: object) -> None:
        raise KeyError("an alarm")

    gate, before = Gate(), signal.signal(signal.SIGALRM, rings)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyError):
            gate.wait(20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    gate.open()
    assert gate.wait(0.0)
