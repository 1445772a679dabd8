"""What is said on stderr while loading: a help, never a reason to end or to hold up anybody's loop.

1. A stream that is not there, closed or broken is passed over; all that matters is in the story and the report too.
2. A pipe that nobody reads, or a terminal that was halted, is waited for PATIENCE_S at most: what finds no room is not said.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator
from typing import Any

PATIENCE_S = 1.0
_PIECE = 4096
"""Bytes that a pipe takes at once where it takes any (PIPE_BUF)."""


def say(text: str) -> None:
    """On stderr, with our name before it."""
    stream: Any = sys.stderr
    try:
        for piece in _pieces(f"antifreeze: {text}\n"):
            if not _has_room(stream):
                return
            stream.write(piece)
            stream.flush()
    except Exception:
        pass  # whoever hears it: gone, closed, broken, or somebody's own that fails


def _pieces(text: str) -> Iterator[str]:
    """Of whole lines, as few as can be: what is written at once stays together among several ranks."""
    piece = ""
    for line in text.splitlines(keepends=True):
        if piece and len((piece + line).encode(errors="replace")) > _PIECE:
            yield piece
            piece = ""
        piece += line
    yield piece


def _has_room(stream: Any) -> bool:
    try:
        descriptor = stream.fileno()
    except Exception:
        return True  # a notebook's, or a buffer
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(PATIENCE_S * 1000))
