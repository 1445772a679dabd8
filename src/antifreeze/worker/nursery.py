"""The nursery: a child of the parent's that forks further workers while the first ones load already.

    parent ── fork ──▶ nursery ── fork ──▶ worker 2, 3, 4 …     each waits at its cradle, a socket whose other end goes to the parent
           ◀── started(pid, number) with a pidfd and that end ──┘
           ── the worker's end of its line ──▶ cradle ──▶ worker

1. A fork costs what the parent's memory is worth in page tables, and a process can do one at a time: among many workers the first batch
   would wait for the last fork.
2. It is a fork of the parent at the moment the epoch began, so its children see the data set as it was then, whatever the loop does since.
3. It stays, because only a process's own parent is told how it ended; it holds nothing but what it inherited.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
from typing import Any

from antifreeze.worker.main import WorkerSpec, run_worker
from antifreeze.worker.server import Mother
from antifreeze.worker.settling import die_with_parent, name_process, part_descriptors


def run_nursery(context: Any, specs: list[WorkerSpec], line: socket.socket, lifeline: int) -> None:
    """The body of the nursery's process."""
    gc.disable()  # a collection would touch, and so copy, every page that was inherited
    try:
        os.setpgid(0, 0)
    except PermissionError:
        pass  # a session leader has its own group already
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    part_descriptors()
    name_process("af_nursery")
    die_with_parent(lifeline)
    nursery = _Nursery(line)
    try:
        for spec in specs:
            nursery.bear(context, spec)
        nursery.run()
    except ConnectionError:
        pass  # the parent has hung up
    finally:
        nursery.see_off()
        os._exit(0)  # multiprocessing would look after the workers in its own way


class _Nursery(Mother):
    def bear(self, context: Any, spec: WorkerSpec) -> None:
        cradle, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with cradle, given:
            process = context.Process(target=self._grow_up, args=(spec, cradle, given), name=f"antifreeze-worker-{spec.worker_id}")
            process.start()
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
            self._born(process.pid, {"worker": spec.worker_id}, given.fileno())

    def see_off(self) -> None:
        """The parent has hung up: all have ended or are about to, and none shall be left to the system's first process."""
        self._line.close()
        try:
            while True:
                os.wait()
        except ChildProcessError:
            pass

    def _grow_up(self, spec: WorkerSpec, cradle: socket.socket, given: socket.socket) -> None:
        self._leave_to_child()
        given.close()
        _, descriptors, _, _ = socket.recv_fds(cradle, 1, 1)
        cradle.close()
        if descriptors:  # else the parent has no use for one more
            run_worker(spec, socket.socket(fileno=descriptors[0]))
