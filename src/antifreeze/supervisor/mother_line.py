"""The parent's end of the line to a process that forks workers for it: the clean server, or a nursery.

Only a process's own parent learns how it ended; that one tells it here.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import Any

from antifreeze.descriptors import Held, wait_readable


class MotherLine:
    """The parent's end of the line to a process that forks workers and tells how they ended."""

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        self._held = Held()
        self._line, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._exits: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()  # loaders of several threads ask one at a time

    def exit_of(self, pid: int, limit_s: float) -> tuple[int | None, int | None]:
        """(exit code, peak memory in bytes) of a worker whose pidfd says that it has ended; nothing of either where nobody tells."""
        deadline = time.monotonic() + limit_s
        with self._lock:
            while pid not in self._exits and self._line.fileno() >= 0 and self._wait(deadline):
                if not self._hear():
                    break
            return self._exits.pop(pid, (None, None))

    def _hear(self) -> bool:
        """What has come; False when there is nobody any more."""
        raise NotImplementedError

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        """One message with its descriptors; an empty one when there is nobody any more."""
        packet, descriptors, _, _ = socket.recv_fds(self._line, 65536, 2)
        message = json.loads(packet) if packet else {}
        if "exited" in message:
            self._exits[message["exited"]] = (message["code"], message["peak_bytes"])
        return message, list(descriptors)

    def _wait(self, deadline: float) -> bool:
        return wait_readable(self._line.fileno(), deadline - time.monotonic())
