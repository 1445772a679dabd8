"""The report of every loader of a process: at its end, and when a signal asks for it.

1. The end is where Python runs its exit functions: after the script, also after an exception, sys.exit or Ctrl-C; not after os._exit or a
   signal that kills, which end the process as they would without us.
2. A process that was forked has its own roll; it never prints its parent's.
3. A signal's report is written past Python's buffers, which may be in use at that moment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import util
from types import FrameType
from typing import Any

from antifreeze.delivery.ledger import Ledger
from antifreeze.loader import DataLoader
from antifreeze.report import Report
from antifreeze.running.settings import FIRST

MOST = 100
SHOWN = 20
_LATE = -100  # after multiprocessing has ended and joined what it started


@dataclass(frozen=True)
class Entry:
    """Holds the loader's ledger, not the loader, nor its iterators: they may die when they like."""

    made_at: str
    over: str
    ledger: Ledger
    loader: weakref.ref[Any]
    iterators: weakref.WeakSet[Any]
    without_loader: Callable[[], Report]

    def report(self) -> Report:
        loader = self.loader()
        return self.without_loader() if loader is None else loader.report()

    def waiting_now(self) -> list[str]:
        told = [iterator.waiting_now() for iterator in list(self.iterators)]
        return [f"  {line}" for text in told if text for line in text.splitlines()]

    def worth_telling(self) -> bool:
        timing = self.ledger.timing
        return timing.batches > 0 or timing.waited_ns > 0 or timing.waiting_since_ns is not None or bool(self.ledger.bad_samples)


class Roll:
    """All loaders of this process."""

    def __init__(self, to: str) -> None:
        self._to = to
        self._entries: list[Entry] = []
        self._uncounted = 0
        self._pid = 0

    def begin(self) -> None:
        """In each process by itself, a forked one too."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._entries, self._uncounted = [], 0
            if self._to != "none":
                util.Finalize(None, self._at_end, exitpriority=_LATE)

    def note(self, loader: Any) -> None:
        self.begin()
        if len(self._entries) >= MOST:
            self._entries = [entry for entry in self._entries if entry.worth_telling()]
        if len(self._entries) >= MOST:
            self._uncounted += 1
            return
        over = type(loader.dataset).__name__
        self._entries.append(Entry(_made_at(loader), over, loader._ledger, weakref.ref(loader), loader._open_iterators, loader._reporter()))

    def told(self) -> list[Entry]:
        return [entry for entry in self._entries if self._pid == os.getpid() and entry.worth_telling()]

    def text(self, when: str) -> str:
        told, rank = self.told(), who(os.environ, os.getpid())
        lines = [f"antifreeze: {rank}{when}: no loader of antifreeze has delivered anything"] if not told else []
        for number, entry in enumerate(told[:SHOWN], 1):
            which = f"loader {number} of {len(told)}" if len(told) > 1 else "the loader"
            lines.append(f"antifreeze: {rank}{when}: {which}, made at {entry.made_at}, over {entry.over}")
            lines += str(entry.report()).splitlines()[1:]
            lines += entry.waiting_now()
        left_out = len(told) - SHOWN + self._uncounted
        if left_out > 0:
            lines.append(f"antifreeze: … and {left_out} loaders more")
        lines += [f"antifreeze: {line}" for line in with_own_iterator()]
        return "\n".join(lines) + "\n"

    def _at_end(self) -> None:
        if self._pid != os.getpid() or not (self.told() or (self._to == "text" and with_own_iterator())):
            return
        try:
            if self._to == "text":
                print(self.text("at the end"), end="", file=sys.stderr, flush=True)
            else:
                self._append(self._to)
        except (OSError, ValueError, AttributeError) as error:  # no stderr, a full disk, a folder that is gone
            _write_plainly(f"antifreeze: the report could not be written: {error}\n")

    def _append(self, path: str) -> None:
        """One write for all lines, so that ranks do not mix theirs."""
        lines = [
            json.dumps(
                {"pid": os.getpid(), "rank": os.environ.get("RANK"), "made_at": entry.made_at, "over": entry.over}
                | entry.report().as_dict()
            )
            + "\n"
            for entry in self.told()
        ]
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        with open(descriptor, "wb", buffering=0) as file:
            file.write("".join(lines).encode())


def report_on_signal(roll: Roll, number: int) -> None:
    """Unless the script uses the signal: its handler, set before or after ours, stands."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is not signal.SIG_DFL:
        return

    def handle(_: int, __: FrameType | None) -> None:
        _write_plainly(roll.text("so far"))

    signal.signal(number, handle)
    signal.siginterrupt(number, False)


def _write_plainly(text: str) -> None:
    try:
        os.write(2, text.encode(errors="replace"))
    except OSError:
        pass  # nobody is there to read it


def who(environment: Mapping[str, str], pid: int) -> str:
    """Which of the processes that report at the same time; nothing where there is only the one."""
    for variable, name in (("RANK", "rank"), ("LOCAL_RANK", "local rank")):
        if variable in environment:
            return f"{name} {environment[variable]}, "
    return "" if environment.get(FIRST, str(pid)) == str(pid) else f"process {pid}, "


def with_own_iterator() -> list[str]:
    """A framework's loader that brings its own iterator: ours does not run for it, and the report says so."""
    return [
        f"{kind.__module__}.{kind.__qualname__} brings its own iterator (it overrides _get_iterator): its loaders are not antifreeze's"
        for kind in _derived(DataLoader)
        if kind._get_iterator is not DataLoader._get_iterator
    ]


def _derived(kind: type[Any]) -> list[type[Any]]:
    return [each for child in kind.__subclasses__() for each in (child, *_derived(child))]


def _made_at(loader: Any) -> str:
    """The line that made the loader: the nearest one that is neither ours, nor torch's, nor in a constructor of its own class."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        str(frame.f_globals.get("__name__", "")).split(".")[0] in ("antifreeze", "torch")
        or (frame.f_code.co_name == "__init__" and frame.f_locals.get(frame.f_code.co_varnames[0]) is loader)
    ):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{_shown_file(frame.f_code.co_filename)}:{frame.f_lineno}"


def _shown_file(path: str) -> str:
    """A cell of a notebook is known by its number: its file is a temporary one."""
    find_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    label_of = getattr(getattr(find_shell(), "compile", None), "format_code_name", None) if find_shell is not None else None
    label = label_of(path) if label_of is not None else None
    return " ".join(label) if label else os.path.basename(path)
