"""Starts one measurement as a process of its own, looks at its memory if asked, and leaves nothing running."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure import Request, Result
from process_tree import Memory, in_session, memory_of

HERE = Path(__file__).resolve().parent
SOURCE_TREE = HERE.parent / "src"
MEASUREMENT_LIMIT_S = 300.0
MEMORY_EVERY_S = 0.02
WRAPPER_LIMIT_S = 1800.0
"""How long a wrapper may hold a measurement back."""
WRAPPER_TRIES = 5


@dataclass(frozen=True)
class Outcome:
    result: Result | None
    """None if it failed; `error` then says how."""
    error: str = ""
    peak_pss_bytes: int | None = None
    """Of the whole process tree, data set included; None if nobody looked."""
    peak_held_bytes: int | None = None
    """The same with shared memory that is held but not mapped."""
    added_bytes: int | None = None
    """How much of that came after the data set was built."""
    left_behind: int = 0
    """Processes that were still there after the measurement had ended."""


@dataclass(frozen=True)
class Ended:
    """A measuring process that is over."""

    lines: list[str]
    """Its output after "ready"; empty if it failed, and `error` then says how."""
    error: str
    seen: list[Memory]
    left_behind: int


def run(request: Request, memory: bool) -> Outcome:
    ended = run_process([sys.executable, str(HERE / "measure.py"), json.dumps(asdict(request))], measuring_environment(), memory)
    if not ended.lines:
        return Outcome(None, ended.error, left_behind=ended.left_behind)
    result = Result(**json.loads(ended.lines[-1]))
    if not ended.seen:
        return Outcome(result, left_behind=ended.left_behind)
    peak_held_bytes = max(each.held_bytes for each in ended.seen)
    return Outcome(
        result,
        peak_pss_bytes=max(each.pss_bytes for each in ended.seen),
        peak_held_bytes=peak_held_bytes,
        added_bytes=peak_held_bytes - ended.seen[0].held_bytes,
        left_behind=ended.left_behind,
    )


def run_process(
    command: Sequence[str], environment: dict[str, str], memory: bool, limit_s: float = MEASUREMENT_LIMIT_S, wrap: Sequence[str] = ()
) -> Ended:
    """Runs it to its end, or to the limit, in a session of its own; nothing of that session is left.

    With `wrap` it runs as `WRAP... COMMAND`, for a wrapper that waits until the machine is free: the limit counts from when it lets go.
    """
    if not wrap:
        return _run_once(command, environment, memory, limit_s, wrapped=False)
    for _ in range(WRAPPER_TRIES):
        ended = _run_once([*wrap, sys.executable, str(HERE / "begin.py"), *command], environment, memory, limit_s, wrapped=True)
        if ended is not _HELD_BACK:
            return ended
    return Ended([], f"{' '.join(wrap)} never let it begin", [], 0)


def _run_once(command: Sequence[str], environment: dict[str, str], memory: bool, limit_s: float, wrapped: bool) -> Ended:
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, start_new_session=True, env=environment)
        watched = _Watched(None if wrapped else process.pid)
        try:
            watched.follow(process, memory, limit_s)
            left_behind = _left_behind(watched.session or process.pid)
        finally:
            _end_session(process, watched.session)
        complaints.seek(0)
        last_words = complaints.read().decode(errors="replace").strip().splitlines()
    if watched.session is None:
        return _HELD_BACK
    if process.returncode == 0 and watched.lines:
        return Ended(watched.lines, "", watched.seen, left_behind)
    return Ended([], last_words[-1] if last_words else f"exit code {process.returncode}", watched.seen, left_behind)


_HELD_BACK = Ended([], "held back", [], 0)


def measuring_environment() -> dict[str, str]:
    """Ours with the source tree of this repository in front, so that it need not be installed."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCE_TREE), os.environ.get("PYTHONPATH", "")]))}


def in_own_process(script: str, request: list[Any], limit_s: float) -> dict[str, Any] | str:
    """What `script --child REQUEST` measured and printed last, as JSON; or why there is nothing."""
    command = [sys.executable, script, "--child", json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, env=measuring_environment(), timeout=limit_s, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


class _Watched:
    """Output of a process until it ends or its time is over, and its memory again and again between "ready", its first line, and the next.

    `session` is None until a wrapper has let go of it.
    """

    def __init__(self, session: int | None) -> None:
        self.session = session
        self.seen: list[Memory] = []
        self._output = b""

    @property
    def lines(self) -> list[str]:
        """Those after "ready"."""
        return self._output.decode().splitlines()[1:]

    def follow(self, process: subprocess.Popen[bytes], memory: bool, limit_s: float) -> None:
        assert process.stdout is not None
        deadline_s = time.monotonic() + (limit_s if self.session else WRAPPER_LIMIT_S)
        while time.monotonic() < deadline_s:
            ended = process.poll() is not None  # before looking: what it wrote last is there then
            readable, _, _ = select.select([process.stdout], [], [], MEMORY_EVERY_S if memory else 0.2)
            if readable:
                piece = os.read(process.stdout.fileno(), 65536)
                self._output += piece
                if not piece:
                    process.wait(timeout=10)
                    return
            elif ended:  # a process that it left behind has its output open
                return
            if self.session is None and b"\n" in self._output:
                begun, _, self._output = self._output.partition(b"\n")
                self.session = int(begun.split()[1])
                deadline_s = time.monotonic() + limit_s
            if memory and self.session and self._output.count(b"\n") == 1:
                self.seen.append(memory_of(self.session))


def _left_behind(session: int) -> int:
    """A second is enough for whoever was asked to go."""
    for _ in range(20):
        remaining = len(in_session(session))
        if remaining == 0:
            break
        time.sleep(0.05)
    return remaining


def _end_session(process: subprocess.Popen[bytes], session: int | None) -> None:
    for pid in {*in_session(process.pid), *(in_session(session) if session else ())}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(timeout=10)
    assert process.stdout is not None
    process.stdout.close()
