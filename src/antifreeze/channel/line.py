"""A line between the parent and a worker that lives in the same process: whole messages, nothing packed, no descriptor.

    parent ── inbox, one per worker ──▶ worker        worker ── one queue for all ──▶ parent, woken by the bell

1. A message goes to one reader: what the worker has not taken can be taken back.
2. The bell is rung where the parent sleeps and must act: for whatever is no plain result, by a worker that has nothing more to do, and
   when as many results have gathered as the parent said it would sleep through. (Each time it wakes, it and all threads wait for the
   GIL: with hundreds of them that costs more than all else.)
3. A line that was cut delivers nothing any more, whatever its worker still says.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from antifreeze.channel.messages import Collated, Message, RowsDone

_RESULTS = (RowsDone, Collated)


class Bell:
    """Wakes the parent, and holds what is to be told to it."""

    def __init__(self) -> None:
        self._hang()

    def _hang(self) -> None:
        self._said: deque[tuple[Line, Message]] = deque()
        self._sleeps = False  # the parent, or it is about to
        self._sleeps_through = 0
        self._string = threading.Lock()  # taken while nobody has rung
        self._string.acquire()

    def __repr__(self) -> str:
        return f"<Bell, {len(self._said)} messages>"

    def say(self, line: Line, message: Message, *, urgent: bool) -> None:
        self._said.append((line, message))
        if self._sleeps and (urgent or len(self._said) > self._sleeps_through):
            self._sleeps = False
            try:
                self._string.release()
            except RuntimeError:
                pass  # another one was faster

    def wait(self, limit_s: float, through: int = 0) -> None:
        """By the parent: until something is said, but so many plain results alone; or limit_s is over."""
        self._sleeps_through = through
        self._sleeps = True  # before the look: what is said from now on rings
        if len(self._said) <= through and self._string.acquire(timeout=limit_s):
            return
        self._sleeps = False
        self._string.acquire(blocking=False)  # whoever has just rung; one who comes to it later wakes the parent once for nothing

    def heard(self) -> list[tuple[Line, Message]]:
        """What was said since the last time, of lines that are not cut."""
        said = self._said
        taken = [said.popleft() for _ in range(len(said))]
        return [(line, message) for line, message in taken if not line.is_cut]

    def disown(self) -> None:
        """In a forked child: the parent's workers are not here."""
        self._hang()


class Line:
    """Both ends: the worker's `receive` and `send`, the parent's `put` and `take_back`."""

    def __init__(self, bell: Bell, worker: int) -> None:
        self.worker = worker
        self.is_cut = False
        self._bell = bell
        self._inbox: SimpleQueue[Message | None] = SimpleQueue()
        self._listener: Callable[[], object] | None = None  # of an event loop in the worker's thread

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
            self._bell.say(self, message, urgent=type(message) not in _RESULTS or self._inbox.empty())

    def try_receive(self) -> Message | None:
        """The next message if one is there; where the line was cut there is none."""
        try:
            return None if self.is_cut else self._inbox.get_nowait()
        except Empty:
            return None

    def listen(self, loop: Any, heard: Callable[[], None]) -> None:
        """`heard` is called in the event loop when something was put in, or the line cut."""
        self._listener = partial(loop.call_soon_threadsafe, heard)

    def unlisten(self, loop: Any) -> None:
        self._listener = None

    def put(self, message: Message | None) -> None:
        self._inbox.put(message)
        listener = self._listener
        if listener is not None:
            try:
                listener()
            except RuntimeError:
                pass  # the loop is closed: its worker has ended

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
        self.put(None)
