"""A line between the parent and a worker that lives in the same process: whole messages, nothing packed, no descriptor per worker.

    parent ── inbox, one per worker ──▶ worker        worker ── one queue for all ──▶ parent, woken by the bell

1. A message goes to one reader: what the worker has not taken can be taken back.
2. The bell (an eventfd, one per pool) is rung for the first message that the parent has not looked for yet, not for each.
3. A line that was cut delivers nothing any more, whatever its worker still says.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from queue import Empty, SimpleQueue

from antifreeze.channel.messages import Message


class Bell:
    """Wakes the parent, and holds what is to be told to it."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._said: deque[tuple[Line, Message]] = deque()
        self._rung = False
        self._lock = threading.Lock()  # a descriptor that is closed may be somebody else's in the next moment

    def __repr__(self) -> str:
        return f"<Bell {self._descriptor}, {len(self._said)} messages>"

    def fileno(self) -> int:
        return self._descriptor

    def say(self, line: Line, message: Message) -> None:
        self._said.append((line, message))
        if not self._rung:
            self._rung = True
            with self._lock:
                if self._descriptor >= 0:
                    os.eventfd_write(self._descriptor, 1)

    def heard(self, rings: bool = True) -> list[tuple[Line, Message]]:
        """What was said since the last time, of lines that are not cut; by the parent, which may have seen that it `rings`: perhaps for
        what was heard already, by whoever came to it late. Else it would ring on, and keep the parent from sleeping."""
        if rings or self._rung:
            try:
                os.eventfd_read(self._descriptor)
            except BlockingIOError:
                pass  # whoever rings has not come to it yet
            self._rung = False  # before the queue is emptied: what is said from now on rings again
        said, count = self._said, len(self._said)
        taken = [said.popleft() for _ in range(count)]
        return [(line, message) for line, message in taken if not line.is_cut]

    def disown(self) -> None:
        """In a forked child: the parent's workers are not here, and one of them may have been ringing at that moment."""
        self._lock = threading.Lock()
        self.close()

    def close(self) -> None:
        """May be called twice."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


class Line:
    """Both ends: the worker's `receive` and `send`, the parent's `put` and `take_back`."""

    def __init__(self, bell: Bell, worker: int) -> None:
        self.worker = worker
        self.is_cut = False
        self._bell = bell
        self._inbox: SimpleQueue[Message | None] = SimpleQueue()

    def __repr__(self) -> str:
        return f"<Line to worker {self.worker}{', cut' if self.is_cut else ''}>"

    def receive(self) -> Message | None:
        """Waits for the next message; None when there will be none."""
        return None if self.is_cut else self._inbox.get()

    def check(self) -> None:
        """Raises OSError where nobody hears what is said."""
        if self.is_cut:
            raise BrokenPipeError("the line to the parent is cut")

    def send(self, message: Message) -> None:
        if not self.is_cut:
            self._bell.say(self, message)

    def put(self, message: Message) -> None:
        self._inbox.put(message)

    def take_back(self) -> list[Message]:
        messages: list[Message] = []
        try:
            while True:
                message = self._inbox.get_nowait()
                if message is not None:
                    messages.append(message)
        except Empty:
            return messages

    def cut(self) -> None:
        """The worker's wait ends, and nothing it says is heard."""
        self.is_cut = True
        self._inbox.put(None)
