"""A worker whose samples are coroutines: it takes further tasks while those at hand wait.

    parent ── Work, Work, … ──▶ begin as long as there is room ──▶ [ the loop ] ──▶ a task is whole ──▶ RowsDone | ParcelDone | …

1. A task is read when there is room for its samples, or soon will be, not before: what was not read can be taken back by the parent.
2. Results leave as they are whole, in any order.
3. Whatever is no such task (a new epoch, the end) is left until all at hand is done, and nothing is read after it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from antifreeze.channel.messages import Message, Work
from antifreeze.worker.awaiting import AsyncMapFetcher
from antifreeze.worker.task import Outcome, Task

Answer = Callable[[Work, Callable[[], Outcome]], None]


class Listened(Protocol):
    def try_receive(self) -> Message | None: ...

    def listen(self, loop: Any, heard: Callable[[], None]) -> None: ...

    def unlisten(self, loop: Any) -> None: ...


class Serving:
    """Of one stretch: from a task that finds the worker idle until it is idle again."""

    def __init__(self, fetcher: AsyncMapFetcher, line: Listened, begin: Callable[[Work], Task], answer: Answer) -> None:
        self._fetcher = fetcher
        self._line = line
        self._begin_task = begin
        self._answer = answer
        self._at_hand = 0
        self._left: Message | None = None
        self._hears = True

    def serve(self, work: Work, task: Task) -> Message | None:
        """Returns what was read and is to be done next, if anything."""
        self._start(work, task)
        self._fetcher.run(self._until_idle())
        return self._left

    async def _until_idle(self) -> None:
        while self._at_hand:
            if self._hears and self._fetcher.takes_more():
                message = self._line.try_receive()
                if message is not None:
                    self._take(message)
                    continue
                await self._wait_and_listen()
            else:
                await self._fetcher.pulse.wait()

    async def _wait_and_listen(self) -> None:
        loop, heard = self._fetcher.loop, _Heard(self._fetcher.pulse.beat)
        self._line.listen(loop, heard)
        try:
            message = self._line.try_receive()  # said since the last look
            if message is None:
                await self._fetcher.pulse.wait()
                message = self._line.try_receive()
                self._hears = message is not None or not heard.rang  # else the other end is gone
        finally:
            self._line.unlisten(loop)
        if message is not None:
            self._take(message)

    def _take(self, message: Message) -> None:
        if isinstance(message, Work):
            task = self._begin_task(message)
            if self._fetcher.is_together(task):
                self._start(message, task)
                return
        self._left, self._hears = message, False

    def _start(self, work: Work, task: Task) -> None:
        self._at_hand += 1
        self._fetcher.begin(task, partial(self._ended, work))

    def _ended(self, work: Work, make: Callable[[], Outcome]) -> None:
        self._at_hand -= 1
        self._answer(work, make)


class _Heard:
    """Rings the pulse, and remembers that it did."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self.rang = False

    def __call__(self) -> None:
        self.rang = True
        self._beat()
