"""A real browser, driven by its debugging protocol over two pipes: no driver, no network, no package.

test ── {"id": 1, "method": "Page.navigate", …}\\0 ──▶ descriptor 3 of chromium
test ◀── {"id": 1, "result": …}\\0 or an event ────── descriptor 4
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIMIT_S = 30.0
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe")
ERRORS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")


def find_browser() -> str | None:
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


class Browser:
    def __init__(self, write_end: int, read_end: int) -> None:
        self._write_end, self._read_end = write_end, read_end
        self._number, self._unread, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []

    def start(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": parameters, **session}
        os.write(self._write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        deadline_s = time.monotonic() + LIMIT_S
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._read_end], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, f"the browser did not answer for {LIMIT_S:g} s"
            self._unread += os.read(self._read_end, 1 << 20)
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def wait_for(self, event: str) -> None:
        while not any(message["method"] == event for message in self.events):
            self._receive()

    def open(self, page: Path, *, width: int, height: int, dark: bool) -> None:
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self, file: Path) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[dict[str, Any]]:
        return [message for message in self.events if message["method"] in ERRORS]

    def requests(self) -> list[str]:
        sent = [message for message in self.events if message["method"] == "Network.requestWillBeSent"]
        return [message["params"]["request"]["url"] for message in sent]


def _high_pipe() -> tuple[int, int]:
    """Away from 3 and 4, which the browser needs."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in low)
    for end in low:
        os.close(end)
    return high[0], high[1]


@contextmanager
def browser() -> Iterator[Browser]:
    executable = find_browser()
    assert executable is not None
    (command_read, command_write), (answer_read, answer_write) = _high_pipe(), _high_pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = _spawn([executable, *FLAGS, f"--user-data-dir={profile}"], command_read, answer_write)
        os.close(command_read)
        os.close(answer_write)
        found = Browser(command_write, answer_read)
        try:
            found.start()
            yield found
        finally:
            os.close(command_write)
            os.close(answer_read)
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            time.sleep(0.2)  # its helpers still write into the profile that is removed next


def _spawn(command: list[str], read_end: int, write_end: int) -> int:
    """In a session of its own, with the two pipes at the descriptors where the browser looks for them."""
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    pipes = [(os.POSIX_SPAWN_DUP2, read_end, 3), (os.POSIX_SPAWN_DUP2, write_end, 4)]
    return os.posix_spawn(command[0], command, os.environ, file_actions=[*silent, *pipes], setsid=True)
