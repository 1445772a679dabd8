"""One worker's process, from before its start until it is reaped: whoever starts it (by_context.py, clean_server.py, nursery.py), it is
ended here.

    parent ── socket ── worker         one pair each; the parent keeps the worker's end too, to take back what was not read
    parent ── lifeline ─▶ worker       a pipe; when the parent's end closes, the kernel kills the worker
    pidfd of the worker ─▶ parent      readable when the worker has ended, whatever the way

1. `end_all` ends any number of workers in parallel within ASK_S + TERM_S + KILL_S: asked, then SIGTERM, then SIGKILL.
2. After a fork, the child lets go of every descriptor of its parent's workers, but for the end of the line that is its own.
3. One that even SIGKILL does not end is left behind; when it has ended after all, it is reaped by whatever loader of this process is
   begun, waits or is closed next (or by the system, when this process ends).
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from antifreeze.channel.channel import Channel, channel_pair
from antifreeze.channel.messages import Message, Stop, Welcome
from antifreeze.descriptors import Held, Seen, wait_readable
from antifreeze.errors import WorkerStartFailed
from antifreeze.linux import on_fork, resource
from antifreeze.living import living
from antifreeze.supervisor.observe import catches, kept_from, process_state
from antifreeze.worker.main import STACK_SIGNAL, WorkerSpec

ASK_S = 0.5
TERM_S = 0.5
KILL_S = 1.0
STEP_S = 0.05
STACKS_S, STACKS_STARVED_S = 0.3, 2.0
"""What a worker has to write its stacks; and where it stands in the queue for a core."""

_ours: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()
_left_behind: set[int] = set()
_kept_by_child: socket.socket | None = None


@dataclass(frozen=True)
class Exit:
    """How a worker ended: `code` as multiprocessing tells it (negative: a signal), None where nobody can tell."""

    code: int | None
    peak_bytes: int | None = None  # resident, with what it shared; None where nobody can tell

    def describe(self) -> str:
        if self.code is None:
            return "ended (somebody else took its exit code)"
        if self.code >= 0:
            return f"ended by itself with exit code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"was ended by {name}"


class Born(Protocol):
    """A process that is started, by whatever way: by_context.py, clean_server.py and nursery.py have one each."""

    pid: int
    pidfd: int
    is_from_server: bool

    def start(self, spec: WorkerSpec, worker_end: socket.socket, held: Held) -> None:
        """It uses that end of the line; its pidfd is held."""

    def exit(self) -> Exit:
        """How it ended; its pidfd has said that it has."""

    def undo(self) -> None:
        """The start was broken off: what there is of it ends."""

    def disown(self) -> bool:
        """Nobody shall wait for it any more; whether it is this process's own child, which nobody else reaps."""

    def mend(self) -> None:
        """Lets go of what somebody else has closed."""


@contextmanager
def start_failures(name: str) -> Iterator[None]:
    """What the system refuses says so, with the limits that it may be about."""
    try:
        yield
    except OSError as error:
        raise WorkerStartFailed(f"{name} could not be started: {error}; {_limits()}") from error


def _limits() -> str:
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"this process may have {files} open files (ulimit -n) and its user {processes} processes (ulimit -u)"


class WorkerProcess:
    """One worker, from before its start until it is reaped. `key` is its own."""

    fate = "so the worker was ended"
    patience_s = 5.0  # after SIGKILL; then the kernel waits for a device, and nothing helps

    channel: Channel
    _ends: tuple[socket.socket, ...] = ()
    _stacks = -1
    pid, pidfd = 0, -1

    def __init__(self, way: Callable[[], Born], number: int, key: int) -> None:
        self.key = key
        self.number = number
        self.owner_pid = os.getpid()
        self.outbox: deque[Message] = deque()
        self.ready = False
        self._held = Held()
        self._born = way()

    def start(self, spec: WorkerSpec, shared: tuple[int, int], workers: int) -> None:
        """`workers`: how many there are with it. Where that fails or is broken off, `undo` leaves nothing of it. The spec is not kept: it
        is the user's, and may lead to the loader with which this worker ends."""
        held = self._held
        with start_failures(f"worker {self.number}"):
            self._ends = channel_pair()
            self._seen = Seen(*(end.fileno() for end in self._ends))
            lifeline, _ = held.open_pipe()
            self._stacks = held.open(os.memfd_create, "antifreeze-stacks")
        parent_end, worker_end = self._ends
        self.channel, self._unread = Channel(parent_end), Channel(worker_end)
        _ours.add(self)
        self._born.start(spec, worker_end, held)
        self.pid, self.pidfd = self._born.pid, self._born.pidfd
        self.channel.send(Welcome(self.number, workers), (*shared, lifeline, self._stacks))
        held.close(lifeline)

    def undo(self) -> None:
        self.let_go()
        self._born.undo()

    def is_whole(self) -> bool:
        """Whether nobody else has closed one of its descriptors."""
        return self.is_let_go or (self._held.is_whole() and self._seen.is_whole())

    def mend(self) -> None:
        """What somebody else has closed is let go of; its end can be seen all the same. (Without its lifeline it ends by itself.)"""
        if self.is_whole():
            return
        for end in self._ends:
            if end.fileno() >= 0 and not self._seen.is_same(end.fileno()):
                end.detach()
        self._held.close()
        self._held, self._stacks = Held(), -1
        try:
            self.pidfd = self._held.open(os.pidfd_open, self.pid)
        except ProcessLookupError:  # the clean server has reaped it: what always has something to read says that it is gone
            self.pidfd = self._held.open(os.memfd_create, "antifreeze-gone")
        self._born.mend()

    @property
    def is_let_go(self) -> bool:
        return self._held.is_empty()

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.number} pid {self.pid}>"

    @property
    def who(self) -> str:
        return f"pid {self.pid}"

    def try_send(self, message: Message) -> bool:
        """False when its queue is full."""
        return self.channel.try_send(message)

    def disown(self) -> None:
        """It cannot be ended: nobody shall wait for it, not even multiprocessing at exit."""
        if self._born.disown():
            _left_behind.add(self.pid)

    @property
    def is_from_server(self) -> bool:
        return self._born.is_from_server

    def take_back(self) -> list[Message]:
        """The packets that the worker has not read; the kernel gives each to one reader only. Before it is ready, none: the
        first packet brings its descriptors and is its own."""
        if not self.ready:
            return []
        messages: list[Message] = []
        while (message := self._unread.try_receive()) is not None:
            messages.append(message)
        messages += self.outbox
        self.outbox.clear()
        return messages

    def is_gone(self) -> bool:
        return wait_readable(self.pidfd, 0)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def ask_to_end(self) -> None:
        if not self.ready:
            self.terminate()
            return
        try:
            self.take_back()
            self.channel.try_send(Stop(0))
        except OSError:
            self.terminate()  # it has ended already, or its line is closed

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def reap(self) -> Exit:
        """After is_gone(); what it had started and left behind goes too."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        return self._born.exit()

    def let_go(self, keep_worker_end: bool = False) -> None:
        """Closes everything; a worker that still lives is killed by its lifeline. May be called twice."""
        for end in self._ends[: 1 if keep_worker_end else 2]:
            end.close()
        self._held.close()
        self.pidfd = self._stacks = -1

    def stacks(self) -> str:
        """The Python stacks of all its threads, written by a signal handler in C: it needs neither the worker's help nor its GIL.
        Empty where the process cannot run at all, or is not yet as far as to have that handler. One that could run and has no core is
        waited for a while longer."""
        if not catches(self.pid, STACK_SIGNAL):
            return ""
        os.ftruncate(self._stacks, 0)
        os.lseek(self._stacks, 0, os.SEEK_SET)
        never = kept_from(self.pid, STACK_SIGNAL)
        self._signal(STACK_SIGNAL)
        began_s = grown_s = time.monotonic()
        text = b""
        while True:
            time.sleep(0.01)
            now_s, written = time.monotonic(), kept_from(self.pid, STACK_SIGNAL) <= never
            size = os.fstat(self._stacks).st_size
            if size > len(text):
                text, grown_s = os.pread(self._stacks, size, 0), now_s
            if text and written:
                break
            starved = not text and process_state(self.pid) == "R"
            if now_s - grown_s > (STACKS_STARVED_S if starved else STACKS_S) or now_s - began_s > STACKS_STARVED_S:
                break
        return text.decode(errors="replace")

    def _signal(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.EBADF):  # it has ended
                raise


def end_all(workers: Sequence[WorkerProcess]) -> list[WorkerProcess]:
    """Ends all of them in parallel, within ASK_S + TERM_S + KILL_S; returns those that even SIGKILL did not end in time."""
    see_off_left_behind()
    workers = [worker for worker in workers if not worker.is_let_go]
    left = list(workers)
    try:
        left = _end_kindly(left)
    finally:
        for worker in left:
            worker.kill()
        left = _wait_gone(left, KILL_S)
        for worker in workers:
            if worker in left:
                worker.disown()
            else:
                worker.reap()
            worker.let_go()
    return left


def see_off_left_behind() -> None:
    """Those that have ended after all; the others are not waited for."""
    for pid in list(_left_behind):
        try:
            ended = os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            ended = True  # of another parent, which reaps it
        if ended:
            _left_behind.discard(pid)


def _end_kindly(left: list[WorkerProcess]) -> list[WorkerProcess]:
    for worker in left:
        worker.ask_to_end()
    left = _wait_gone(left, ASK_S)
    for worker in left:
        worker.terminate()
    return _wait_gone(left, TERM_S)


def _wait_gone(workers: list[WorkerProcess], limit_s: float) -> list[WorkerProcess]:
    """Who is still there. Where the whole job was suspended meanwhile, its workers were too: of that time one step counts."""
    poll = select.poll()
    by_descriptor = {worker.pidfd: worker for worker in workers}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    left_s, now_s = limit_s, time.monotonic()
    while by_descriptor and left_s > 0:
        for descriptor, _ in poll.poll(min(left_s, STEP_S) * 1000):
            poll.unregister(descriptor)
            del by_descriptor[descriptor]
        before_s, now_s = now_s, time.monotonic()
        left_s -= min(now_s - before_s, STEP_S)
    return list(by_descriptor.values())


def keep_in_child(end: socket.socket | None) -> None:
    """Said by whoever forks, one at a time: the end of a line that the child uses itself."""
    global _kept_by_child
    _kept_by_child = end


def _after_fork_in_child() -> None:
    _left_behind.clear()
    for worker in living(_ours):
        worker.let_go(keep_worker_end=_kept_by_child in worker._ends)
    _ours.clear()


on_fork(child=_after_fork_in_child)
