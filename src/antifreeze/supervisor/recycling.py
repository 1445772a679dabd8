"""When a worker has done its share, or has grown too large: recycle_worker_after.

1. What counts is memory that the worker alone has: a data set that it shares with its parent since the fork does not make it large.
2. That costs a walk over the worker's pages, so it is looked at only where it can be too much, and (unless the worker has become larger
   by a tenth of the limit since) so seldom that it takes less than a hundredth of the time.
3. Where a worker is too large after its very first task, each of its successors will be: said once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from antifreeze.events import Happening
from antifreeze.supervisor.crew import AnyWorker
from antifreeze.supervisor.observe import memory_of, resident_bytes
from antifreeze.supervisor.workshop import Workshop

_SHARE_OF_TIME = 100


@dataclass
class _Seen:
    key: int
    next_look_s: float = 0.0
    resident_bytes: int = 0  # at the last look
    tasks: int = 0


class Recycling:
    def __init__(self, shop: Workshop) -> None:
        self._journal = shop.crew.journal
        self._voice = shop.voice
        self._samples, self._bytes = shop.options.recycle_after_samples, shop.options.recycle_after_bytes
        self._seen: dict[int, _Seen] = {}
        self._said = False

    @property
    def asked(self) -> bool:
        return self._samples is not None or self._bytes is not None

    def is_due(self, number: int, worker: AnyWorker) -> bool:
        """Asked after each task of a worker."""
        if self._samples is not None:
            return self._journal.row(number).read().samples >= self._samples
        return self._bytes is not None and self._is_large(number, worker, self._bytes)

    def _is_large(self, number: int, worker: AnyWorker, limit_bytes: int) -> bool:
        seen = self._seen.get(number)
        if seen is None or seen.key != worker.key:
            seen = self._seen[number] = _Seen(worker.key)
        seen.tasks += 1
        resident = resident_bytes(worker.pid)
        grown = resident - seen.resident_bytes > limit_bytes // 10
        if resident < limit_bytes or not (grown or time.monotonic() >= seen.next_look_s):
            return False
        seen.resident_bytes, began_s = resident, time.thread_time()
        memory = memory_of(worker.pid)
        seen.next_look_s = time.monotonic() + _SHARE_OF_TIME * (time.thread_time() - began_s)
        if memory is None or memory.private_bytes < limit_bytes:
            return False
        if seen.tasks == 1 and not self._said:
            self._said = True
            text = (
                f"worker {number} ({worker.who}) had {memory.private_bytes:,} bytes of its own after its first task: more than "
                f"recycle_worker_after allows ({limit_bytes:,}), so every worker is replaced after each task; allow more"
            )
            self._voice.say(Happening.WORKER_ENDED, text)
        return True
