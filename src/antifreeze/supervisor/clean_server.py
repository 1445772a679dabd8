"""The parent's side of the clean server: started when it is first needed, one per process, ended with it."""

from __future__ import annotations

import json
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
import uuid
from typing import Any

from antifreeze.errors import WorkerStartFailed

START_S = 60.0
_server: CleanServer | None = None


class CleanServer:
    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lifeline, self._lifeline = os.pipe()
        settings = json.dumps({"path": sys.path, "argv": sys.argv, "lifeline": lifeline})
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from antifreeze.worker.server import main; main({theirs.fileno()})"],
            pass_fds=(theirs.fileno(), lifeline),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "ANTIFREEZE_SERVER": settings, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()
        os.close(lifeline)
        self._exits: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()  # loaders of several threads ask one at a time

    def start_worker(self, specs: PickledSpecs, number: int, worker_end: int) -> tuple[int, int]:
        """(pid, pidfd) of a new worker."""
        holder = os.memfd_create("antifreeze-specs")
        with self._lock:
            return self._start_worker(specs, number, worker_end, holder)

    def _start_worker(self, specs: PickledSpecs, number: int, worker_end: int, holder: int) -> tuple[int, int]:
        try:
            with os.fdopen(os.dup(holder), "wb") as file:
                file.write(specs.content)
            request = json.dumps({"key": specs.key, "worker": number}).encode()
            socket.send_fds(self._line, [request], [holder, worker_end])
        finally:
            os.close(holder)
        answer, descriptors = self._answer(time.monotonic() + START_S)
        if "failed" in answer:
            raise WorkerStartFailed(f"the data set could not be unpickled in a fresh process:\n{answer['failed']}")
        return int(answer["started"]), descriptors[0]

    def exit_of(self, pid: int, limit_s: float) -> tuple[int | None, int | None]:
        """(exit code, peak memory in bytes) of a worker whose pidfd says that it has ended."""
        deadline = time.monotonic() + limit_s
        with self._lock:
            while pid not in self._exits and self._wait(deadline):
                self._note(json.loads(self._line.recv(65536)))
            return self._exits.pop(pid, (None, None))

    def end(self) -> None:
        self._line.close()
        os.close(self._lifeline)
        if self.owner_pid == os.getpid():
            self._process.kill()
            self._process.wait(5)

    def is_usable(self) -> bool:
        return self.owner_pid == os.getpid() and self._process.poll() is None

    def _answer(self, deadline: float) -> tuple[dict[str, Any], list[int]]:
        while self._wait(deadline):
            packet, descriptors, _, _ = socket.recv_fds(self._line, 65536, 1)
            if not packet:
                break
            message = json.loads(packet)
            if "exited" not in message:
                return message, list(descriptors)
            self._note(message)
        raise WorkerStartFailed(f"the clean server did not start a worker within {START_S:g} s")

    def _wait(self, deadline: float) -> bool:
        return bool(select.select([self._line], [], [], max(0.0, deadline - time.monotonic()))[0])

    def _note(self, message: dict[str, Any]) -> None:
        self._exits[message["exited"]] = (message["code"], message["peak_bytes"])


class PickledSpecs:
    """The workers' specs as one pickle, made once per pool."""

    def __init__(self, specs: list[Any]) -> None:
        self.key = uuid.uuid4().hex
        self.content = cloudpickle_dumps(specs)


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
