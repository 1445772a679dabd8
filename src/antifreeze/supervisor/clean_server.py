"""The parent's side of the clean server: started when it is first needed, one per process, ended with it."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import time
import uuid
from typing import Any

from antifreeze.descriptors import Held
from antifreeze.errors import WorkerStartFailed
from antifreeze.supervisor.mother_line import MotherLine
from antifreeze.supervisor.process import KILL_S, Exit
from antifreeze.worker.main import WorkerSpec

START_S = 60.0
_server: CleanServer | None = None


class CleanServer(MotherLine):
    def __init__(self) -> None:
        super().__init__()
        theirs = self._theirs
        lifeline, _ = self._held.open_pipe()
        settings = json.dumps({"path": sys.path, "argv": sys.argv, "lifeline": lifeline})
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from antifreeze.worker.server import main; main({theirs.fileno()})"],
            pass_fds=(theirs.fileno(), lifeline),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "ANTIFREEZE_SERVER": settings, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()
        self._held.close(lifeline)

    def start_worker(self, spec: PickledSpec, number: int, worker_end: int, held: Held) -> tuple[int, int]:
        """(pid, pidfd) of a new worker."""
        with self._lock:
            return self._start_worker(spec, number, worker_end, held)

    def _start_worker(self, spec: PickledSpec, number: int, worker_end: int, held: Held) -> tuple[int, int]:
        holder = held.open(os.memfd_create, "antifreeze-spec")
        with open(holder, "wb", closefd=False) as file:
            file.write(spec.content)
        request = json.dumps({"key": spec.key, "worker": number}).encode()
        socket.send_fds(self._line, [request], [holder, worker_end])
        held.close(holder)
        answer, descriptors = self._answer(time.monotonic() + START_S)
        if "failed" in answer:
            raise WorkerStartFailed(f"the data set could not be unpickled in a fresh process:\n{answer['failed']}")
        return int(answer["started"]), held.open(int, descriptors[0])

    def _hear(self) -> bool:
        return bool(self._receive()[0])

    def end(self) -> None:
        self._line.close()
        self._held.close()
        if self.owner_pid == os.getpid():
            self._process.kill()
            self._process.wait(5)

    def is_usable(self) -> bool:
        return self.owner_pid == os.getpid() and self._process.poll() is None

    def _answer(self, deadline: float) -> tuple[dict[str, Any], list[int]]:
        while self._wait(deadline):
            message, descriptors = self._receive()
            if not message:
                break
            if "exited" not in message:
                return message, descriptors
        raise WorkerStartFailed(f"the clean server did not start a worker within {START_S:g} s")


class PickledSpec:
    """What all workers are told, pickled once per epoch."""

    def __init__(self, spec: Any) -> None:
        self.key = uuid.uuid4().hex
        with spec.as_found.hidden():
            self.content = cloudpickle_dumps(spec)


class ByServer:
    """Forked by the clean server, which never had a thread of ours."""

    pid, pidfd = 0, -1
    is_from_server = True

    def __init__(self, spec: PickledSpec) -> None:
        self._spec = spec

    def start(self, spec: WorkerSpec, worker_end: socket.socket, held: Held) -> None:
        self._server = clean_server()
        self.pid, self.pidfd = self._server.start_worker(self._spec, spec.worker_id, worker_end.fileno(), held)

    def exit(self) -> Exit:
        return Exit(*self._server.exit_of(self.pid, KILL_S))

    def undo(self) -> None:
        """Its line is closed: it ends by itself, and the server reaps it."""

    def disown(self) -> bool:
        return False

    def mend(self) -> None:
        pass  # all it has is held


def cloudpickle_dumps(value: Any) -> bytes:
    """Classes of __main__, notebooks and functions go by value; imported only when it is needed."""
    import cloudpickle  # type: ignore[import-untyped]

    content: bytes = cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return content


def clean_server() -> CleanServer:
    """This process's server."""
    global _server
    if _server is None or not _server.is_usable():
        _server = CleanServer()
    return _server


def end_clean_server() -> None:
    """At exit, and wherever nothing may be left running."""
    global _server
    if _server is not None:
        server, _server = _server, None
        if server.owner_pid == os.getpid():
            server.end()
