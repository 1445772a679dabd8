"""Ctrl-C is one traceback, the user's: while workers are ended, and while the interpreter ends because of it.

1. While workers are ended, a first one waits for that; a second changes nothing.
2. Once one has ended the program and the interpreter is on its way out, a second changes nothing either: it would be one more
   traceback of whoever cleans up just then (torch's libraries, say). A third ends the process at once, so that nobody who hangs in
   there has it for ever.
3. An exception that a signal's handler raises within next() may leave anything half done: `came_from_signal` tells it from others.
"""

from __future__ import annotations

import atexit
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

from antifreeze.linux import interrupt_soon

_CAUSES = 4


@contextmanager
def interrupts_held_back(unheard: bool = False) -> Iterator[None]:
    """Ctrl-C while workers are ended waits for that, a second at most. A first one is delivered then (a moment later where an exception
    raised here would be `unheard`); a second changes nothing."""
    before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if before is None:  # another thread's affair, or one of a handler that is not Python's: nobody could put that back
        yield
        return
    pressed: list[int] = []
    try:
        signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    except ValueError:  # the interpreter is on its way out
        yield
        return
    interrupted = isinstance(sys.exc_info()[1], KeyboardInterrupt) or _ends_by_interrupt()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed and not interrupted:
            interrupt_soon() if unheard else signal.raise_signal(signal.SIGINT)


def came_from_signal(error: BaseException) -> bool:
    """Whether a signal's handler raised it (Ctrl-C, an alarm): then it fell into whatever was being done, and broke it off half done."""
    if isinstance(error, KeyboardInterrupt):
        return True
    codes = {code for number in signal.valid_signals() if (code := _code_of(signal.getsignal(number))) is not None}
    cause: BaseException | None = error if codes else None
    for _ in range(_CAUSES):  # it may have fallen where an exception is taken for the user's, and told as another one
        traceback = None if cause is None else cause.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code in codes:
                return True
            traceback = traceback.tb_next
        cause = None if cause is None else cause.__cause__
    return False


def _code_of(handler: Any) -> Any:
    while isinstance(handler, partial):
        handler = handler.func
    if not callable(handler) or handler is signal.default_int_handler:
        return None
    handler = handler if hasattr(handler, "__code__") or hasattr(handler, "__func__") else type(handler).__call__
    return getattr(handler, "__code__", None)


def _ends_by_interrupt() -> bool:
    """What nobody caught, and Python has printed."""
    return isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)


def _leave_in_peace() -> None:
    """At exit: ours is asked before what was made known before it, which is all of torch."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and _ends_by_interrupt() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _pressed_again)


def _pressed_again(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)


# where Python has it, before threads are waited for too: the executors of the standard library clean up there
with suppress(RuntimeError):  # it is ending already
    getattr(threading, "_register_atexit", atexit.register)(_leave_in_peace)
