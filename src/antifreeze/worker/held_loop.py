"""The event loop that samples wait in, kept from batch to batch so that clients can be kept in it.

1. A worker has one for as long as it lives. Without workers all loaders of a thread share one, from pass to pass, until the last of them
   is gone or it was given up because something broke it off (a signal's handler, say). A loader inside a sample of another has its own.
2. What still waits in a loop when it is closed goes with it, and nothing is said of that.
3. A child that was forked neither uses nor closes the loop of its parent.
"""

from __future__ import annotations

import asyncio
import inspect
import select
import selectors
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from antifreeze.linux import on_fork
from antifreeze.worker.journal import JournalRow, Stage, UnreadRow, Word

_LONG_WAIT_S, _MOST_FOR_SELECT = 0.1, 1024


class _Selector(selectors.DefaultSelector):
    """Notes in the journal when every sample waits for something outside: then none of them keeps the worker.
    And waits as long as it was told: epoll by itself rounds up to milliseconds, which samples that take few of them would feel."""

    notes = True

    def __init__(self, journal: JournalRow) -> None:
        super().__init__()
        self.waited_s = 0.0
        self._journal = journal

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        before, began_s = self._journal.words[Word.STAGE], time.monotonic()
        if self.notes:
            self._journal.stage(Stage.AWAIT)
        try:
            if timeout is None or timeout > _LONG_WAIT_S or self.fileno() >= _MOST_FOR_SELECT:
                return super().select(timeout)
            select.select([self.fileno()], [], [], timeout)
            return super().select(0)
        finally:
            self._journal.words[Word.STAGE] = before
            self.waited_s += time.monotonic() - began_s


class HeldLoop:
    """An event loop, closed with the last who holds this."""

    def __init__(self, journal: JournalRow) -> None:
        self._selector = _Selector(journal)
        self.loop = asyncio.SelectorEventLoop(self._selector)
        weakref.finalize(self, _close, self.loop).atexit = False

    @property
    def waited_s(self) -> float:
        """So far, with nobody's code running."""
        return self._selector.waited_s

    @contextmanager
    def for_one(self) -> Iterator[None]:
        """What waits meanwhile is one sample, or one call for many: as with any other code, the journal says that the worker is at it, and
        its deadline is the parent's affair."""
        self._selector.notes = False
        try:
            yield
        finally:
            self._selector.notes = True

    def close(self) -> None:
        _close(self.loop)


_here = threading.local()
_of_parent: list[HeldLoop] = []


def loop_of_thread() -> HeldLoop:
    held: HeldLoop | None = _here.loop() if hasattr(_here, "loop") else None
    if held is None:
        held = HeldLoop(UnreadRow())
        _here.loop = weakref.ref(held)
    return HeldLoop(UnreadRow()) if held.loop.is_running() else held


def give_up(held: HeldLoop) -> None:
    """The next batch has another loop."""
    if hasattr(_here, "loop") and _here.loop() is held:
        del _here.loop
    held.close()


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """With what still waits in it."""
    if loop.is_running() or loop.is_closed():
        return
    for job in asyncio.all_tasks(loop):
        _let_die(job)
    loop.close()


def _let_die(job: asyncio.Task[Any]) -> None:
    """It may never end, or not have begun: nobody shall complain of that."""
    job._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = job.get_coro()
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        coroutine.close()


def _after_fork_in_child() -> None:
    """What the loop waits for is the parent's: it is neither used here nor closed, which would be felt there."""
    held: HeldLoop | None = _here.__dict__.pop("loop", lambda: None)()
    if held is not None:
        _of_parent.append(held)


on_fork(child=_after_fork_in_child)
