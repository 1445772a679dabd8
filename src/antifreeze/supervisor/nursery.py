"""The parent's side of the nursery (worker/nursery.py): among many workers, those after the first come from a child that forks them while
the first ones load already.

1. What it has borne waits to be taken in, or is refused; either way its end is told here.
2. One that is gone, or has borne nobody for PATIENCE_S, is ended, and who is still missing is started the plain way.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from antifreeze.descriptors import Held
from antifreeze.linux import on_fork
from antifreeze.living import living
from antifreeze.supervisor.by_context import forget_process, start_process
from antifreeze.supervisor.mother_line import MotherLine
from antifreeze.supervisor.process import ASK_S, KILL_S, Exit
from antifreeze.worker.main import WorkerSpec
from antifreeze.worker.nursery import run_nursery

PATIENCE_S = 5.0
FORKED_HERE = 2
"""Workers that the parent forks itself: they load the first batch."""

_nurseries: weakref.WeakSet[Nursery] = weakref.WeakSet()


def pays_for(workers: int) -> bool:
    """It costs a fork itself."""
    return workers > FORKED_HERE + 2


@dataclass
class Newborn:
    """A worker that waits for its end of the line."""

    worker: int
    pid: int
    pidfd: int
    cradle: int
    is_taken: bool = False  # its descriptors are somebody else's

    def refuse(self) -> None:
        """It ends by itself."""
        if not self.is_taken:
            self.is_taken = True
            os.close(self.cradle)
            os.close(self.pidfd)


class Nursery(MotherLine):
    def __init__(self, context: Any, specs: list[WorkerSpec], keys: dict[int, int]) -> None:
        """`keys`: of the workers to be, by their numbers; what is lent now may be seen by them."""
        super().__init__()
        self.keys = keys
        self.missing = [spec.worker_id for spec in specs]
        self.is_over = False
        self.is_ended = False
        self._lifeline = -1
        self._newborns: list[Newborn] = []
        self._processes: list[Any] = []
        try:
            lifeline, self._lifeline = self._held.open_pipe()
            _nurseries.add(self)
            start_process(self._processes, context, run_nursery, (context, specs, self._theirs, lifeline), "nursery")
            self._theirs.close()
            self._held.close(lifeline)
        except BaseException:
            self._theirs.close()
            self.end()
            raise
        self.heard_s = time.monotonic()

    @property
    def _process(self) -> Any:
        return self._processes[0]

    def __repr__(self) -> str:
        return f"<Nursery pid {self._process.pid}, {len(self.missing)} to come>"

    def fileno(self) -> int:
        return self._line.fileno()

    def take(self) -> list[Newborn]:
        """Those that were born since the last time."""
        with self._lock:
            while not self.is_over and self._wait(0.0):
                self._hear()
            taken, self._newborns = self._newborns, []
        for newborn in taken:
            self.missing.remove(newborn.worker)
        return taken

    def is_late(self) -> bool:
        return bool(self.missing) and time.monotonic() - self.heard_s > PATIENCE_S

    def end(self) -> None:
        """After its workers; within ASK_S + KILL_S. May be called twice, and only lets go in a process that forked."""
        for newborn in self._newborns:
            newborn.refuse()
        self._newborns = []
        if self._processes and self._process._popen is not None and not self.is_ended and self.owner_pid == os.getpid():
            self._line.close()
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)  # somebody may have stopped it
            self._process.join(ASK_S)
            if self._process.exitcode is None:
                self._process.kill()
                self._reap(time.monotonic() + KILL_S)
            forget_process(self._process)
        self.is_ended = True
        self.is_over = True
        self.let_go()
        self._held.close()

    def _reap(self, deadline_s: float) -> None:
        """multiprocessing's join() would wait for its children, too: they have inherited what it listens to."""
        while self._process.exitcode is None and time.monotonic() < deadline_s:
            time.sleep(0.005)

    def let_go(self) -> None:
        self._line.close()
        self._held.close(self._lifeline)  # in a child of the fork that made it, the other end is the child's

    def _hear(self) -> bool:
        try:
            message, descriptors = self._receive()
        except OSError:
            message, descriptors = {}, []
        lost = "started" in message and len(descriptors) < 2  # there was no room for them: it ends by itself, and is missing
        if "started" in message and not lost:
            self.heard_s = time.monotonic()
            pidfd, cradle = descriptors
            self._newborns.append(Newborn(message["worker"], message["started"], pidfd, cradle))
        if lost:
            for descriptor in descriptors:
                os.close(descriptor)
        self.is_over = lost or not message
        return not self.is_over


class ByNursery:
    """A worker that waited in its cradle."""

    is_from_server = False

    def __init__(self, nursery: Nursery, newborn: Newborn) -> None:
        self._nursery = nursery
        self._newborn = newborn
        self.pid, self.pidfd = newborn.pid, newborn.pidfd

    def start(self, spec: WorkerSpec, worker_end: socket.socket, held: Held) -> None:
        self._newborn.is_taken = True
        held.open(int, self.pidfd)  # it is this worker's now
        with socket.socket(fileno=self._newborn.cradle) as cradle:
            try:
                socket.send_fds(cradle, [b"."], [worker_end.fileno()])
            except OSError:
                pass  # it has ended in its cradle: its pidfd says so

    def exit(self) -> Exit:
        return Exit(*self._nursery.exit_of(self.pid, KILL_S))

    def undo(self) -> None:
        """Its line is closed: it ends by itself, and the nursery reaps it."""
        self._newborn.refuse()

    def disown(self) -> bool:
        return False

    def mend(self) -> None:
        pass  # all it has is held


def _after_fork_in_child() -> None:
    for nursery in living(_nurseries):
        nursery.let_go()
        nursery.is_over = True
    _nurseries.clear()


on_fork(child=_after_fork_in_child)
