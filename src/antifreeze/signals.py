"""Exceptions that a signal's handler raises (Ctrl-C, an alarm) fall into whatever is being done, and may leave it half done: here they
are told from others, so that none is taken for the user's own."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

_CAUSES = 4


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


def raise_if_of_signal(error: Exception) -> None:
    """For whoever passes over what the user's code raises: this is not his to pass over."""
    if came_from_signal(error):
        raise error


def _code_of(handler: Any) -> Any:
    while isinstance(handler, partial):
        handler = handler.func
    if not callable(handler) or handler is signal.default_int_handler:
        return None
    handler = handler if hasattr(handler, "__code__") or hasattr(handler, "__func__") else type(handler).__call__
    return getattr(handler, "__code__", None)
