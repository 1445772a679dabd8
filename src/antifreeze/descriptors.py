"""Descriptors that somebody owns: closed when he lets go of them, or when nobody holds him any more, and never anybody else's.

1. Whatever is opened is owned before another line of Python runs: an exception of a signal's handler leaks nothing.
2. A number that somebody else closed, and that a file of his may have by now, is not closed again: it must still be what was opened.
   (What the kernel gives no inode of its own, as epoll and pidfds before Linux 6.9, is told from files, but not from its like.)
"""

from __future__ import annotations

import os
import select
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, repeat, starmap
from typing import Any

Identity = tuple[int, int]


def identity_of(number: int) -> Identity | None:
    """What is open under this number; None: nothing."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def open_now() -> int:
    """How many this process has."""
    return len(os.listdir("/proc/self/fd")) - 1  # less the one it is listed by


def wait_readable(number: int, limit_s: float) -> bool:
    """Whether something, or the end, is there to be read by then. (select() takes no number above 1023, and jobs have many files open.)"""
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(max(0.0, limit_s) * 1000))


class Seen:
    """What was open under some numbers, which their own objects (a socket, an epoll) close."""

    def __init__(self, *numbers: int) -> None:
        self._identities = {number: identity_of(number) for number in numbers}

    def is_whole(self) -> bool:
        return all(identity_of(number) == identity for number, identity in self._identities.items())

    def is_same(self, number: int) -> bool:
        return number in self._identities and self._identities[number] == identity_of(number)


class Held:
    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._identities: dict[int, Identity | None] = {}
        self._closer = weakref.finalize(self, _close, self._numbers, self._identities)
        self._closer.atexit = False

    def __repr__(self) -> str:
        return f"<Held {self._numbers}>"

    def open(self, call: Callable[..., int], *given: Any) -> int:
        """The descriptor that `call` returns."""
        self._numbers.extend(starmap(call, [given]))
        return self._note(-1)

    def open_pipe(self) -> tuple[int, int]:
        self._numbers.extend(chain.from_iterable(starmap(os.pipe, [()])))
        return self._note(-2), self._note(-1)

    def _note(self, at: int) -> int:
        number = self._numbers[at]
        self._identities[number] = identity_of(number)
        return number

    def is_empty(self) -> bool:
        return not self._numbers

    def is_whole(self) -> bool:
        """Whether nobody else has closed one of them."""
        return all(identity_of(number) == identity for number, identity in self._identities.items())

    def close(self, *only: int) -> None:
        """All of them, or these; may be called twice."""
        _close(self._numbers, self._identities, only)


def _close(numbers: list[int], identities: dict[int, Identity | None], only: tuple[int, ...] = ()) -> None:
    for number in list(numbers):
        if identities.get(number) not in (None, identity_of(number)):
            numbers.remove(number)  # it is somebody else's
            identities.pop(number, None)
    while closing := [number for number in numbers if not only or number in only]:
        numbers[:] = [*(number for number in numbers if number not in closing), *closing]
        with suppress(OSError):  # nothing runs between the taking of a number and its closing
            deque(map(os.close, map(list.pop, repeat(numbers, len(closing)))), maxlen=0)
    for number in identities.keys() - set(numbers):
        del identities[number]
