"""The floor among threads: ThreadEnded may meet a thread anywhere, and whoever waits for the floor gets it all the same."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from antifreeze.worker import turns as floor
from antifreeze.worker.failure import ThreadEnded
from antifreeze.worker.journal import ROW_WORDS, JournalRow
from antifreeze.worker.turns import Of, Turn, Turns, Usage


class Numbers:
    """A generator of the process, which ThreadEnded meets while it is put back."""

    def __init__(self) -> None:
        self.state = 0
        self.interruptions = 0

    def mark(self) -> int:
        return self.state

    def moved_since(self, mark: int) -> bool:
        return self.state != mark

    def save(self) -> int:
        return self.state

    def restore(self, state: int) -> None:
        if self.interruptions:
            self.interruptions -= 1
            raise ThreadEnded
        self.state = state

    salt = 0

    def seed(self, seed: int) -> None:
        self.state = seed

    def deal(self, hand: bytes) -> None:
        """On top of its seed, which is all that this one shows."""


class UnsaidOnce(threading.Event):
    """ThreadEnded meets whoever gives the floor, just before it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.unsaid = 1

    def set(self) -> None:
        if self.unsaid:
            self.unsaid -= 1
            raise ThreadEnded
        super().set()


def _turns() -> tuple[Turns, Numbers]:
    usage, numbers = Usage(), Numbers()
    generators: list[Any] = [numbers]
    usage.generators = generators
    return Turns(usage), numbers


def _turn(turns: Turns) -> Turn:
    return Turn(turns, JournalRow(memoryview(bytearray(8 * ROW_WORDS)).cast("q")))


def _takes(turns: Turns, turn: Turn, numbers: Numbers, seen: list[int]) -> threading.Thread:
    thread = threading.Thread(target=lambda: seen.append(turns.take(turn, 7, numbers.save, Of.SAMPLE, True)), daemon=True)
    thread.start()
    return thread


def test_a_thread_ended_while_it_leaves_the_floor_does_not_keep_it() -> None:
    turns, numbers = _turns()
    ended, seen = _turn(turns), list[int]()
    turns.open()
    numbers.interruptions = 1
    with pytest.raises(ThreadEnded):
        turns.take(ended, 5, lambda: None, Of.SAMPLE, True)
    turns.give_up(ended)
    assert numbers.state == 0  # put back
    other = _takes(turns, _turn(turns), numbers, seen)
    other.join(10)
    assert seen == [7]
    assert turns.try_close(0.0)


def test_the_floor_given_by_a_thread_that_ended_before_it_said_so_is_taken() -> None:
    turns, numbers = _turns()
    ended, waiting, seen = _turn(turns), _turn(turns), list[int]()
    waiting.granted = UnsaidOnce()
    turns.open()

    others: list[threading.Thread] = []

    def another_comes() -> None:
        others.append(_takes(turns, waiting, numbers, seen))
        while waiting not in floor._waiting:
            pass

    with pytest.raises(ThreadEnded):
        turns.take(ended, 5, another_comes, Of.SAMPLE, True)
    turns.give_up(ended)
    others[0].join(10)
    assert seen == [7]
    turns.close()
