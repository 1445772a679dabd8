"""Processes that a multiprocessing context starts: fork, spawn, forkserver, or the user's own.

1. A child is no daemon, so it may have children of its own; it ends with its parent all the same.
2. Where a fresh interpreter needs a pickle, what does not pickle by name goes by value.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.reduction import ForkingPickler
from typing import Any

from antifreeze.descriptors import Held, Seen
from antifreeze.linux import on_fork
from antifreeze.slots.ring import mark_own_fork
from antifreeze.supervisor.clean_server import cloudpickle_dumps
from antifreeze.supervisor.process import KILL_S, Exit, keep_in_child, see_off_left_behind, start_failures
from antifreeze.supervisor.unpicklable import name_culprit
from antifreeze.worker.main import WorkerSpec, run_worker

_started: weakref.WeakSet[Any] = weakref.WeakSet()
_starting = threading.Lock()


class ByContext:
    """A worker's process."""

    pid, pidfd = 0, -1
    is_from_server = False

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
        forget_process(self._process)
        return Exit(code, peak_bytes)

    def disown(self) -> bool:
        forget_process(self._process)
        return True

    def _start(self, spec: WorkerSpec, sent: WorkerSpec | bytes, worker_end: socket.socket) -> None:
        name = f"worker {spec.worker_id}"
        start_process(self._processes, self._context, run_worker, (sent, worker_end), name, worker_end)


def start_process(
    owner: list[Any], context: Any, target: Callable[..., None], args: tuple[Any, ...], name: str, kept: socket.socket | None = None
) -> None:
    """A child that is no daemon, and belongs to its owner before it is there; where it is forked, it lets go of all that belongs to the
    parent's workers but for `kept`."""
    see_off_left_behind()
    process = context.Process(target=target, args=args, name=f"antifreeze-{name.replace(' ', '-')}")
    owner.append(process)
    process.daemon = False
    _started.add(process)
    current = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    with _starting:
        keep_in_child(kept)
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
            keep_in_child(None)
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


def forget_process(process: Any) -> None:
    """Of multiprocessing's: it has ended, or nobody shall wait for it."""
    popen = process._popen
    if popen is not None:
        popen.close()  # its sentinel is a descriptor, which would wait for the garbage collector
    multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]


def _after_fork_in_child() -> None:
    global _starting
    _starting = threading.Lock()  # it was held by the thread that forked, which is not here
    # a plain fork inherits multiprocessing's list of children, and would wait for what are not its own at its exit
    multiprocessing.process._children.difference_update(_started)  # type: ignore[attr-defined]


on_fork(child=_after_fork_in_child)
