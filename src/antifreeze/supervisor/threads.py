"""Workers that are threads: to the pool they are what processes are, but a thread cannot be ended from outside.

    parent ── line ── thread          what it says comes with the pool's bell; its end is a word of its own: Ended

1. To kill one is to raise ThreadEnded in it: Python code ends by that, whatever it loops over or awaits; a call that does not return
   ends when it returns. One that is still there after `patience_s` is given up: its line is cut, it finds nothing of ours to write to,
   and it is a daemon, so no exit waits for it. It is still there, and still has what it holds: the report says so.
2. Nothing of the process is changed: no signal handler, no thread count, no allocator setting, no name, no random state.
3. `end_threads` asks all of them, raises in those that do not end, and gives up the rest, within ASK_S + KILL_S.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence

from antifreeze.channel.line import Bell, Line
from antifreeze.channel.messages import Ended, Message, Stop
from antifreeze.errors import WorkerStartFailed
from antifreeze.gate import Gate
from antifreeze.slots.arena import Arena
from antifreeze.supervisor.process import ASK_S, KILL_S, Exit
from antifreeze.worker.failure import ThreadEnded
from antifreeze.worker.journal import ROW_WORDS, JournalRow
from antifreeze.worker.main import WorkerSpec
from antifreeze.worker.thread import ThreadWorker
from antifreeze.worker.turns import Turns


class ThreadExit(Exit):
    """How a thread ended, in words."""

    def __init__(self, how: str) -> None:
        super().__init__(None)
        object.__setattr__(self, "how", how)

    def describe(self) -> str:
        return str(self.__dict__["how"])


class WorkerThread:
    """One worker, from its start until it has ended or is given up; the interface is WorkerProcess's."""

    patience_s = 1.0
    is_from_server = False

    def __init__(self, spec: WorkerSpec, arena: Arena, journal: JournalRow, bell: Bell, turns: Turns, key: int) -> None:
        self.key = key
        self.number = spec.worker_id
        self.owner_pid = os.getpid()
        self.line = Line(bell, spec.worker_id)
        self.outbox: deque[Message] = deque()
        self.ready = False
        self._turns = turns
        self._journal = journal
        self._how = "ended as it was told to"
        self._has_ended = False
        self._end = Gate()
        self._body = ThreadWorker(spec, self.line, arena, journal, turns)
        self._thread = threading.Thread(target=self._run, name=f"antifreeze-worker-{spec.worker_id}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise WorkerStartFailed(f"worker {spec.worker_id} could not be started: {error}; `ulimit -u` limits threads too") from error
        self.pid = self._thread.native_id or 0

    def __repr__(self) -> str:
        return f"<WorkerThread {self.number} thread {self.pid}>"

    def _run(self) -> None:
        try:
            self._body.run_in_thread()
        except ThreadEnded:
            self._how = "was ended"
        except BaseException as error:  # what no task can be blamed for: SystemExit in worker_init_fn, or a fault of ours
            self._how = f"ended by {type(error).__name__}: {error}"
        finally:
            try:
                self.line.send(Ended(0))
            finally:
                self._has_ended = True
                self._end.open()

    fate = (
        "so its thread was told to end and another one took its place (what does not return cannot be ended in a thread: "
        'workers="process" can)'
    )

    @property
    def who(self) -> str:
        return f"thread {self.pid}"

    def try_send(self, message: Message) -> bool:
        self.line.put(message)
        return True

    def take_back(self) -> list[Message]:
        messages = self.line.take_back()
        messages += self.outbox
        self.outbox.clear()
        return messages

    def is_gone(self) -> bool:
        """Not what is_alive() says: in Python before 3.13 it is False for good once a join() was broken off by a signal's handler."""
        return self._has_ended or os.getpid() != self.owner_pid

    def wait_gone(self, deadline_s: float) -> bool:
        if self._thread is threading.current_thread():  # a finalizer may run in any thread
            return self.is_gone()
        if not self.is_gone():
            self._end.wait(deadline_s - time.monotonic())
        if self.is_gone():
            self._thread.join(max(0.0, deadline_s - time.monotonic()))  # its last instructions
        return self.is_gone()

    def kill(self) -> None:
        self.line.put(Stop(0))
        if self._thread.ident is not None and not self.is_gone():
            self._turns.end(self._body.thread_seeds.turn)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(ThreadEnded))
            self._body.wake()

    def ask_to_end(self) -> None:
        self.take_back()
        self.line.put(Stop(0))

    def await_no_floor(self) -> None:
        """Its samples are nobody's any more, and the loop, which gives turns only while it waits for them, will not wait again."""
        self._turns.end(self._body.thread_seeds.turn)

    def reap(self) -> Exit:
        self._turns.give_up(self._body.thread_seeds.turn)
        return ThreadExit(self._how)

    def disown(self) -> None:
        """It does not come back: what it says is not heard, what it notes about itself goes nowhere, and the random generators are
        not its own any more."""
        self.line.cut()
        self._journal.words = [0] * ROW_WORDS
        self._turns.give_up(self._body.thread_seeds.turn)

    def let_go(self) -> None:
        self.line.cut()

    def stacks(self) -> str:
        """As faulthandler writes them: innermost frame first."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        lines = [f"Thread {self._thread.name} (most recent call first):"]
        while frame is not None:
            lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
            frame = frame.f_back
        return "\n".join(lines)


def end_threads(workers: Sequence[WorkerThread]) -> list[WorkerThread]:
    """Ends all of them within ASK_S + KILL_S; returns those that are left."""
    left = list(workers)
    try:
        for worker in left:
            worker.ask_to_end()
            worker.await_no_floor()
        left = _wait_gone(left, ASK_S)
    finally:
        for worker in left:
            worker.kill()
        left = _wait_gone(left, KILL_S)
        for worker in workers:
            worker.disown() if worker in left else worker.reap()
            worker.let_go()
    return left


def _wait_gone(workers: list[WorkerThread], limit_s: float) -> list[WorkerThread]:
    deadline_s = time.monotonic() + limit_s
    return [worker for worker in workers if not worker.wait_gone(deadline_s)]
