"""Ctrl-C is one traceback, the user's: while workers are ended, and while the interpreter ends because of it.

1. While workers are ended, a first one waits for that; a second changes nothing.
2. Once one has ended the program and the interpreter is on its way out, a second changes nothing either: it would be one more
   traceback of whoever cleans up just then (torch's libraries, say). A third ends the process at once, so that nobody who hangs in
   there has it for ever.
"""

from __future__ import annotations

import atexit
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from antifreeze.linux import interrupt_soon


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
