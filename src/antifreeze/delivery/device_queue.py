"""Batches that were sent to the device before the loop asks for them.

    next() ──▶ the one that was sent last time ──▶ the user
         └───▶ the one after it is sent now, where it is loaded: its copy is under way while the loop computes

1. `state_dict` speaks of what the loop has got, so each batch that was sent carries the position after it.
2. What goes wrong with a batch that is drawn ahead (an error, the end of the epoch, a device without room) is raised when its turn
   comes: the batch before it is not lost. But what a signal's handler raises is the user's, now: nothing more is drawn.
3. An error that waits here for its turn has no frames: they lead to the loop's own, and so to its batches and back to us. Left to the
   garbage collector, which may come first in a forked child, where a CUDA tensor that dies ends the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from antifreeze.delivery.device import AHEAD, DeviceFeed, Sent
from antifreeze.delivery.position import Cursor
from antifreeze.errors import with_causes
from antifreeze.signals import raise_if_of_signal


@dataclass(frozen=True)
class _Raised:
    """In the place of a batch that was drawn ahead: its error, raised when its turn comes."""

    error: Exception


class DeviceQueue:
    def __init__(self, feed: DeviceFeed, cursor: Cursor) -> None:
        self.feed = feed
        self._cursor = cursor
        self._ahead: deque[Sent] = deque()

    def new_epoch(self) -> None:
        self._ahead.clear()

    def close(self) -> None:
        """May be called twice."""
        self._ahead.clear()
        self.feed.close()

    def next(self, next_on_host: Callable[[], Any], is_ready: Callable[[], bool]) -> Any:
        """`is_ready`: whether the next batch on the host is there already."""
        sent = self._ahead.popleft() if self._ahead else self._send(next_on_host)
        while len(self._ahead) < AHEAD and is_ready():
            self._ahead.append(_without_frames(self._send(next_on_host)))
        self._cursor.shown = sent.position
        if isinstance(sent.batch, _Raised):
            raise sent.batch.error
        return self.feed.hand_out(sent)

    def _send(self, next_on_host: Callable[[], Any]) -> Sent:
        try:
            batch = next_on_host()
            return self.feed.send(batch, self._cursor.place())
        except Exception as error:
            raise_if_of_signal(error)
            return Sent(_Raised(error), None, self._cursor.place())


def _without_frames(sent: Sent) -> Sent:
    """An error drawn ahead is a worker's, or the epoch's end: the frames are all ours."""
    if isinstance(sent.batch, _Raised):
        for one in with_causes(sent.batch.error):
            one.__traceback__ = None
    return sent
