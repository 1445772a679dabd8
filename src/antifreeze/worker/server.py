"""The clean server: one fresh single-threaded process that forks workers for a parent whose own forks are not safe.

    parent ── Start(spec in an anonymous file, the worker's end) ──▶ server ── fork ──▶ worker
           ◀── Started(pid) with a pidfd ─────────────────────────┘  └── waits for it ──▶ Exited(pid, code) to the parent

1. The data set is unpickled once, here; each worker has it by the fork, so a replacement costs milliseconds.
2. No thread of the parent's ever lived here: there is no lock that could have been inherited.
3. It ends with its parent: the lifeline, as for workers.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import traceback
from typing import Any


def main(descriptor: int) -> None:
    """The body of the server process."""
    settings = json.loads(os.environ.pop("ANTIFREEZE_SERVER"))
    sys.path[:] = settings["path"]
    sys.argv[:] = settings["argv"]
    import antifreeze.worker.main  # noqa: F401 - what workers need is there before the first of them is forked
    from antifreeze.worker.settling import die_with_parent

    line = socket.socket(fileno=descriptor)
    die_with_parent(settings["lifeline"])
    _Server(line).run()


class Mother:
    """A process that forks workers and tells the parent how they ended."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Until the parent hangs up."""
        selector = selectors.DefaultSelector()
        selector.register(self._line, selectors.EVENT_READ)
        selector.register(self._wake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == self._wake:
                    os.read(self._wake, 4096)
                    self._reap()
                elif not self._serve():
                    return

    def _serve(self) -> bool:
        """One request of the parent's; False when it has hung up."""
        return bool(self._line.recv(1))

    def _born(self, pid: int, more: dict[str, int], *descriptors: int) -> None:
        pidfd = os.pidfd_open(pid)
        try:
            socket.send_fds(self._line, [json.dumps({"started": pid, **more}).encode()], [pidfd, *descriptors])
        finally:
            os.close(pidfd)

    def _leave_to_child(self) -> None:
        """In the child: what is the mother's alone."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._line.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = {"exited": pid, "code": os.waitstatus_to_exitcode(status), "peak_bytes": usage.ru_maxrss * 1024}
            self._line.send(json.dumps(ended).encode())


class _Server(Mother):
    def __init__(self, line: socket.socket) -> None:
        super().__init__(line)
        self._spec_key: str | None = None
        self._spec: Any = None

    def _serve(self) -> bool:
        from antifreeze.torch_private import load

        packet, descriptors, _, _ = socket.recv_fds(self._line, 4096, 2)
        if not packet:
            return False
        request = json.loads(packet)
        spec_file, worker_end = descriptors
        try:
            if request["key"] != self._spec_key:
                with open(spec_file, "rb", closefd=False) as content:
                    content.seek(0)
                    self._spec = load(content)
                self._spec_key = request["key"]
            self._start(request["worker"], worker_end)
        except BaseException:
            self._line.send(json.dumps({"failed": traceback.format_exc()}).encode()[:60_000])
        finally:
            os.close(spec_file)
            os.close(worker_end)
        return True

    def _start(self, number: int, worker_end: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_worker(number, worker_end)
        self._born(pid, {})

    def _become_worker(self, number: int, worker_end: int) -> None:
        from antifreeze.worker.main import run_worker

        code = 1
        try:
            self._leave_to_child()
            run_worker(self._spec.of(number), socket.socket(fileno=os.dup(worker_end)))
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
