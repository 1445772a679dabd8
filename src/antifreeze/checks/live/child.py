"""A question to a forked copy of this process, which may freeze or crash over it: the only file of the checks that starts a process.

1. The answer comes within the limit, or "it did not answer": the child is killed, and whatever it started with it.
2. Where it was when it crashed, or when it was killed, is told as a line of the user's: what Python's faulthandler saw.
3. The child ends with this process (the lifeline), and never returns into its code.
4. Files that are open for reading get a position of their own in the child: asking does not move the parent's.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import re
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from antifreeze.descriptors import wait_readable
from antifreeze.doctor.facts.names import is_library
from antifreeze.supervisor.observe import kept_from
from antifreeze.worker.settling import die_with_parent, part_descriptors

Answer_co = TypeVar("Answer_co", covariant=True)
_HEAD = 8
_REAP_S = 10.0
_TELL_S = 2.0
_MOST_TOLD = 1 << 16
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)


@dataclass(frozen=True)
class Asked(Generic[Answer_co]):
    answer: Answer_co | None
    trouble: str = ""
    """Why there is no answer: it took too long, it died, it raised."""


def ask_child(question: Callable[[], Any], limit_s: float) -> Asked[Any]:
    answer_read, answer_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    stack = os.memfd_create("antifreeze stack", os.MFD_CLOEXEC)
    with warnings.catch_warnings():  # Python warns of forks beside threads; this child has a limit
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _be_the_child(question, (answer_read, lifeline_write), answer_write, lifeline_read, stack)
    os.close(answer_write)
    os.close(lifeline_read)
    ended: int | None = None
    try:
        content = _receive(answer_read, limit_s)
        if content is None:
            _let_it_tell(pid, stack)
    finally:  # also on Ctrl-C
        ended = _end(pid)
        at = place_of(os.pread(stack, _MOST_TOLD, 0).decode(errors="replace"))
        for descriptor in (answer_read, lifeline_write, stack):
            os.close(descriptor)
    if content is None:
        return Asked(None, f"it did not answer within {limit_s:g} s{at}")
    if not content:
        return Asked(None, f"it died ({_how(ended)}){at}")
    kind, value = pickle.loads(content)
    return Asked(value) if kind == "answer" else Asked(None, value)


def place_of(dump: str) -> str:
    """Pure: where faulthandler saw it: the innermost line of the user's own, of the thread at work rather than of others; or ""."""
    threads = sorted(dump.split("\n\n"), key=lambda thread: not thread.startswith("Current thread"))
    for frame in (frame for thread in threads for frame in _FRAME.finditer(thread)):
        if not is_library(frame["file"]):
            return f", at {frame['file']}:{frame['line']} in {frame['name']}"
    return ""


def _let_it_tell(pid: int, stack: int) -> None:
    """Its stack, written by a signal handler in C: also where it holds the GIL."""
    never = kept_from(pid, signal.SIGUSR2)
    os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + _TELL_S
    while not (os.fstat(stack).st_size and kept_from(pid, signal.SIGUSR2) <= never) and time.monotonic() < deadline:
        time.sleep(0.01)


def _be_the_child(question: Callable[[], Any], not_ours: tuple[int, int], answer: int, lifeline: int, stack: int) -> NoReturn:
    try:
        for descriptor in not_ours:
            os.close(descriptor)
        os.setpgid(0, 0)
        die_with_parent(lifeline)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.enable(stack, all_threads=True)  # a crash is an answer, and not to be printed
        faulthandler.register(signal.SIGUSR2, stack, all_threads=True)
        silence = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(silence, number)
        part_descriptors()
        try:
            content = pickle.dumps(("answer", question()))
        except BaseException as error:
            content = pickle.dumps(("trouble", f"{type(error).__name__}: {error}"))
        content = len(content).to_bytes(_HEAD, "little") + content
        while content:
            content = content[os.write(answer, content) :]
    finally:
        os._exit(0)


def _receive(descriptor: int, limit_s: float) -> bytes | None:
    """The whole answer; empty where the child died before it, None where it took too long."""
    deadline, content = time.monotonic() + limit_s, b""
    while len(content) < _HEAD or len(content) < _HEAD + int.from_bytes(content[:_HEAD], "little"):
        if not wait_readable(descriptor, deadline - time.monotonic()):
            return None
        piece = os.read(descriptor, 1 << 20)
        if not piece:
            return b""
        content += piece
    return content[_HEAD:]


def _end(pid: int) -> int | None:
    """Kills it and its group, and takes its status; None where even that does not end it in time."""
    deadline = time.monotonic() + _REAP_S
    first, status = os.waitpid(pid, os.WNOHANG)
    for target in (-pid, pid):
        try:
            if target < 0 or not first:
                os.kill(target, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    while not first and time.monotonic() < deadline:
        first, status = os.waitpid(pid, os.WNOHANG)
        if not first:
            time.sleep(0.001)
    return status if first else None


def _how(status: int | None) -> str:
    if status is None:
        return "its end is not known"
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
