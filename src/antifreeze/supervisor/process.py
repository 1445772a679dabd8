"""Starting and ending worker processes: the only file that does either (the clean server itself aside).

    parent ── socket ── worker         one pair each; the parent keeps the worker's end too, to take back what was not read
    parent ── lifeline ─▶ worker       a pipe; when the parent's end closes, the kernel kills the worker
    pidfd of the worker ─▶ parent      readable when the worker has ended, whatever the way

1. A worker is not daemonic, so it may have workers of its own; it ends with its parent all the same.
2. `end_all` ends any number of workers in parallel within ASK_S + TERM_S + KILL_S: asked, then SIGTERM, then SIGKILL.
3. After a fork, the child lets go of every descriptor of its parent's workers.
4. One that even SIGKILL does not end is left behind; when it has ended after all, it is reaped by whatever loader of this process is
   begun, waits or is closed next (or by the system, when this process ends).
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import select
import signal
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from antifreeze.channel.channel import Channel, channel_pair
from antifreeze.channel.messages import Message, Stop, Welcome
from antifreeze.descriptors import Held, Seen
from antifreeze.errors import WorkerStartFailed
from antifreeze.linux import on_fork, resource
from antifreeze.living import living
from antifreeze.slots.ring import mark_own_fork
from antifreeze.supervisor.clean_server import PickledSpec, clean_server, cloudpickle_dumps
from antifreeze.supervisor.observe import catches, kept_from, process_state
from antifreeze.supervisor.unpicklable import name_culprit
from antifreeze.worker.main import STACK_SIGNAL, WorkerSpec, run_worker

ASK_S = 0.5
TERM_S = 0.5
KILL_S = 1.0
STEP_S = 0.05
STACKS_S, STACKS_STARVED_S = 0.3, 2.0
"""What a worker has to write its stacks; and where it stands in the queue for a core."""

_ours: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()
_started: weakref.WeakSet[Any] = weakref.WeakSet()
_starting = threading.Lock()
_left_behind: set[int] = set()


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
    """A process that is started, by whatever way."""

    pid: int
    pidfd: int

    def start(self, spec: WorkerSpec, worker_end: socket.socket, held: Held) -> None:
        """It uses that end of the line; its pidfd is held."""

    def exit(self) -> Exit:
        """How it ended; its pidfd has said that it has."""

    def undo(self) -> None:
        """The start was broken off: what there is of it ends."""

    def mend(self) -> None:
        """Lets go of what somebody else has closed."""


class ByContext:
    """Started by a multiprocessing context: fork, spawn, forkserver, or the user's own."""

    pid, pidfd = 0, -1

    def __init__(self, context: Any) -> None:
        self._context = context
        self._processes: list[Any] = []  # one, or none if its start failed

    def start(self, spec: WorkerSpec, worker_end: socket.socket, held: Held) -> None:
        with nullcontext() if self._context.get_start_method() == "fork" else spec.as_found.hidden():
            self._start_somehow(spec, worker_end)
        self.pid = int(self._process.pid)
        self._seen = Seen(self._process.sentinel)
        with start_failures(f"worker {spec.worker_id}"):
            self.pidfd = held.open(os.pidfd_open, self.pid)

    def _start_somehow(self, spec: WorkerSpec, worker_end: socket.socket) -> None:
        try:
            self._start(spec, spec, worker_end)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            # lambdas, and classes of functions and notebooks, go by value
            try:
                by_value = cloudpickle_dumps(spec)
            except Exception:
                raise name_culprit(error, spec.picklable_parts(), dumps=ForkingPickler.dumps) from error
            self._start(spec, by_value, worker_end)

    @property
    def _process(self) -> Any:
        return self._processes[-1]

    def undo(self) -> None:
        for process in self._processes:
            if process._popen is not None:
                process.kill()
                process.join(KILL_S)
                forget_process(process)

    def mend(self) -> None:
        popen = self._process._popen
        if popen is not None and not self._seen.is_whole():
            popen.finalizer.cancel()  # it would close numbers that may be somebody else's by now

    def _peak_bytes(self) -> int | None:
        popen = self._process._popen
        if popen is None or popen.returncode is not None:
            return None
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:
            return None  # of a fork server
        if pid == 0:
            return None
        popen.returncode = os.waitstatus_to_exitcode(status)  # as multiprocessing would have noted it
        return usage.ru_maxrss * 1024

    def exit(self) -> Exit:
        peak_bytes = self._peak_bytes()
        self._process.join(timeout=0.05)
        code: int | None = self._process.exitcode
        self.forget()
        return Exit(code, peak_bytes)

    def forget(self) -> None:
        forget_process(self._process)

    def _start(self, spec: WorkerSpec, sent: WorkerSpec | bytes, worker_end: socket.socket) -> None:
        name = f"worker {spec.worker_id}"
        start_process(self._processes, self._context, run_worker, (sent, worker_end), name, worker_end)


def start_process(
    owner: list[Any], context: Any, target: Callable[..., None], args: tuple[Any, ...], name: str, kept: socket.socket | None = None
) -> None:
    """A child that is no daemon, and belongs to its owner before it is there; where it is forked, it lets go of all that belongs to the
    parent's workers but for `kept`."""
    global _kept_by_child
    see_off_left_behind()
    process = context.Process(target=target, args=args, name=f"antifreeze-{name.replace(' ', '-')}")
    owner.append(process)
    process.daemon = False
    _started.add(process)
    current = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    with _starting:
        _kept_by_child = kept
        # multiprocessing refuses children to daemonic processes because they might outlive them; ours cannot
        daemonic = current.pop("daemon", None)
        mark_own_fork(True)
        # a Ctrl-C just now is the parent's; the child lets it through again once it ignores it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with start_failures(name):
                _see_that_there_is_room()
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            mark_own_fork(False)
            _kept_by_child = None
            if daemonic is not None:
                current["daemon"] = daemonic


def _see_that_there_is_room() -> None:
    """multiprocessing makes two pipes, and leaves the first one open for ever where there is no room for the second."""
    room = Held()
    try:
        room.open_pipe()
        room.open_pipe()
    finally:
        room.close()


@contextmanager
def start_failures(name: str) -> Iterator[None]:
    """What the system refuses says so, with the limits that it may be about."""
    try:
        yield
    except OSError as error:
        raise WorkerStartFailed(f"{name} could not be started: {error}; {_limits()}") from error


def forget_process(process: Any) -> None:
    """Of multiprocessing's: it has ended, or nobody shall wait for it."""
    popen = process._popen
    if popen is not None:
        popen.close()  # its sentinel is a descriptor, which would wait for the garbage collector
    multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]


def _limits() -> str:
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"this process may have {files} open files (ulimit -n) and its user {processes} processes (ulimit -u)"


class ByServer:
    """Forked by the clean server, which never had a thread of ours."""

    pid, pidfd = 0, -1

    def __init__(self, spec: PickledSpec) -> None:
        self._spec = spec

    def start(self, spec: WorkerSpec, worker_end: socket.socket, held: Held) -> None:
        self._server = clean_server()
        self.pid, self.pidfd = self._server.start_worker(self._spec, spec.worker_id, worker_end.fileno(), held)

    def exit(self) -> Exit:
        return Exit(*self._server.exit_of(self.pid, KILL_S))

    def undo(self) -> None:
        """Its line is closed: it ends by itself, and the server reaps it."""

    def mend(self) -> None:
        pass  # all it has is held


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
        if isinstance(self._born, ByContext):
            self._born.forget()
            _left_behind.add(self.pid)

    @property
    def is_from_server(self) -> bool:
        return isinstance(self._born, ByServer)

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
        return bool(select.select([self.pidfd], [], [], 0)[0])

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


_kept_by_child: socket.socket | None = None


def _after_fork_in_child() -> None:
    """Every descriptor of the parent's workers goes, but for the end that the new worker itself uses."""
    global _starting
    _starting = threading.Lock()  # it was held by the thread that forked, which is not here
    _left_behind.clear()
    # a plain fork inherits multiprocessing's list of children, and would wait for what are not its own at its exit
    multiprocessing.process._children.difference_update(_started)  # type: ignore[attr-defined]
    for worker in living(_ours):
        worker.let_go(keep_worker_end=_kept_by_child in worker._ends)
    _ours.clear()


on_fork(child=_after_fork_in_child)
