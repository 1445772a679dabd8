"""What of a pool must be ended: its processes, its descriptors, and nothing of the user's.

A finalizer holds the crew, not the pool: a pool holds the data set, and a data set may hold (through an exception's traceback, say)
the very iterator whose end the finalizer waits for.

A child of multiprocessing runs no finalizer but multiprocessing's own, and then waits for its children: so what still lives is ended there.
"""

from __future__ import annotations

import os
import select
import weakref
from multiprocessing import util
from typing import Any

from antifreeze.channel.line import Bell
from antifreeze.descriptors import Seen
from antifreeze.linux import on_fork
from antifreeze.living import living
from antifreeze.slots.ring import Ring
from antifreeze.supervisor.clean_server import end_clean_server
from antifreeze.supervisor.interrupts import interrupts_held_back
from antifreeze.supervisor.nursery import Nursery
from antifreeze.supervisor.process import WorkerProcess, end_all
from antifreeze.supervisor.threads import WorkerThread, end_threads
from antifreeze.worker.journal import Journal

AnyWorker = WorkerProcess | WorkerThread

_crews: weakref.WeakSet[Crew] = weakref.WeakSet()
_never_closed: list[select.epoll] = []


class Crew:
    def __init__(self, size: int, ring: Ring, use_server: bool, threads: bool = False) -> None:
        self.owner_pid = os.getpid()
        self.ring = ring
        self.use_server = use_server
        self.served = False  # a worker came from the clean server
        self.journal = Journal.create(size)
        self.poll = select.epoll()
        self._seen = Seen(self.poll.fileno())
        self.bell = Bell() if threads else None
        self.workers: list[AnyWorker | None] = [None] * size
        self.abandoned: list[AnyWorker] = []
        self.nursery: Nursery | None = None
        _crews.add(self)
        _end_before_children_are_waited_for()

    def __repr__(self) -> str:
        return f"<Crew: {sum(worker is not None for worker in self.workers)} of {len(self.workers)} workers live>"

    @property
    def closed(self) -> bool:
        return bool(self.poll.closed)

    def closed_by_others(self) -> list[str]:
        """What somebody else has closed of it (os.closerange, say), in words."""
        if self.closed or self.owner_pid != os.getpid():
            return []
        parts: list[tuple[str, Any]] = [("shared memory", self.ring.arena), ("journal", self.journal), ("epoll", self._seen)]
        parts += [(f"line to worker {worker.number}", worker) for worker in self.workers if isinstance(worker, WorkerProcess)]
        return [name for name, part in parts if not part.is_whole()]

    def close(self, unheard: bool = False) -> None:
        """Within a fixed bound; may be called twice; in a forked child it only lets go. `unheard`: nobody hears an exception of it."""
        if not self.closed:
            with interrupts_held_back(unheard):
                try:
                    self._close()
                except BaseException:
                    self._close()  # a signal's handler broke it off: all that is left is ended now
                    raise

    def _close(self) -> None:
        """May be begun again, wherever it was broken off."""
        self._mend()
        workers = [worker for worker in self.workers if worker is not None]
        try:
            if self.owner_pid == os.getpid():
                self.abandoned += end_all([worker for worker in workers if isinstance(worker, WorkerProcess)])
                self.abandoned += end_threads([worker for worker in workers if isinstance(worker, WorkerThread)])
                for worker in workers:
                    self.ring.release_quarantine(worker.key)
                self.workers = [None] * len(self.workers)
                if self.nursery is not None:
                    self.nursery.end()
                    for key in self.nursery.keys.values():
                        self.ring.release_quarantine(key)
                self.ring.recall_filling(usable=not self.abandoned)
        finally:
            self._close_descriptors()
            if self.served and not any(crew.served and not crew.closed for crew in living(_crews)):
                end_clean_server()

    def _mend(self) -> None:
        """What somebody else has closed may be his file by now: it is let go of, and the workers can be seen to end all the same."""
        if self.owner_pid != os.getpid() or not self.closed_by_others():
            return
        for worker in self.workers:
            if isinstance(worker, WorkerProcess):
                worker.mend()
        if not self._seen.is_whole():
            _never_closed.append(self.poll)  # an epoll closes its number when it goes
            self.poll = select.epoll()
            self._seen = Seen(self.poll.fileno())

    def disown(self) -> None:
        """In a forked child: the workers are the parent's."""
        self.workers = [None] * len(self.workers)
        if self.bell is not None:
            self.bell.disown()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        self.poll.close()
        self.journal.close()


_ending: util.Finalize | None = None


def _end_before_children_are_waited_for() -> None:
    """Once per process: multiprocessing forgets in a child what its parent had to end."""
    global _ending
    if _ending is None or not _ending.still_active() or _ending._pid != os.getpid():  # type: ignore[attr-defined]
        _ending = util.Finalize(None, _end_crews, exitpriority=100)


def _end_crews() -> None:
    for crew in living(_crews):
        crew.close(unheard=True)


def _after_fork_in_child() -> None:
    for crew in living(_crews):
        crew.disown()
    _crews.clear()


on_fork(child=_after_fork_in_child)
