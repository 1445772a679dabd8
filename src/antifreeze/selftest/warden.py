"""Runs one program after another, each in a fresh process, and sees what they leave behind. A process of its own: `python -m …warden`.

     runner ──{"fault": …, "loader": …, "variant": …, "limit_s": …, "grace_s": …}──> stdin
     runner <──────────────── the record, one line ──────────────── stdout

1. torch is imported once, here; a program is a fork of this process before it ever used a loader (`fresh`: a new interpreter instead).
2. This process is a subreaper: whatever a program's processes leave becomes a child of ours, so nothing can hide.
3. Only processes that descend from this one are ever signalled.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antifreeze.selftest.fault import Variant, all_faults
from antifreeze.selftest.record import Record
from antifreeze.selftest.trial import Trial, children_of, command_of

_SET_CHILD_SUBREAPER = 36
_TEXT_KEPT = 20_000


def main() -> None:
    """Serve requests until stdin ends; in a forked program, be that program instead."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    all_faults()
    with contextlib.suppress(ImportError):
        import antifreeze  # noqa: F401
    gc.collect()
    gc.freeze()  # what torch brought along is not the programs' to search
    answers = os.dup(1)  # a number and no file: a forked program closes it, and no object may close its number a second time
    os.dup2(2, 1)
    for line in sys.stdin:
        program = _serve(json.loads(line))
        if isinstance(program, Trial):
            program.run()
            return
        _answer(answers, program)


def _answer(answers: int, record: Record) -> None:
    data = json.dumps(record.as_json()).encode() + b"\n"
    while data:
        data = data[os.write(answers, data) :]


def _serve(request: dict[str, Any]) -> Record | Trial:
    folder = Path(tempfile.mkdtemp(prefix="antifreeze-fault-", dir="/tmp" if os.path.isdir("/tmp") else None))
    (folder / "tmp").mkdir()
    reading, writing = os.pipe()
    started_s = time.monotonic()
    pid = os.fork()
    if pid == 0:
        return _become_program(request, folder, writing)
    os.close(writing)
    record = Record(request["fault"], request["loader"], request["variant"])
    try:
        _watch(record, pid, reading, started_s, request["limit_s"])
        if record.exit_code is not None:
            record.orphans = _orphans(request["grace_s"])
    finally:
        os.close(reading)
        _kill_all_children()
    record.stdout, record.stderr = _text(folder / "stdout"), _text(folder / "stderr")
    if record.exit_code is not None:
        record.files_left = sorted(os.listdir(folder / "tmp"))
    shutil.rmtree(folder, ignore_errors=True)
    return record


# -- the program's side -------------------------------------------------------------------------------------------------
def _become_program(request: dict[str, Any], folder: Path, writing: int) -> Trial:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is born deaf to Ctrl-C
    os.chdir(folder)
    os.environ["TMPDIR"] = str(folder / "tmp")
    tempfile.tempdir = None
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.set_inheritable(writing, True)
    os.closerange(3, writing)
    os.closerange(writing + 1, 1024)
    if request.get("fresh"):
        arguments = [request["fault"], request["loader"], request["variant"], str(folder), str(writing)]
        os.execv(sys.executable, [sys.executable, "-m", "antifreeze.selftest.program", *arguments])
    return make_trial(request["fault"], request["loader"], request["variant"], folder, writing)


def make_trial(fault: str, loader: str, variant: str, folder: Path, records: int) -> Trial:
    return Trial(all_faults()[fault], loader, Variant(variant), folder, records)


# -- the warden's side --------------------------------------------------------------------------------------------------
def _watch(record: Record, pid: int, reading: int, started_s: float, limit_s: float) -> None:
    ending = os.pidfd_open(pid)
    ended_s: float | None = None
    signals: list[tuple[float, int, int]] = []
    unread = b""
    poll = select.poll()
    poll.register(ending, select.POLLIN)
    poll.register(reading, select.POLLIN)
    while True:
        now_s = time.monotonic()
        for due in [one for one in signals if one[0] <= now_s]:
            signals.remove(due)
            with contextlib.suppress(ProcessLookupError):
                (os.kill if due[1] > 0 else _kill_group)(abs(due[1]), due[2])
        until_s = min([started_s + limit_s, *(one[0] for one in signals)])
        ready = {number for number, _ in poll.poll(max(0.0, until_s - now_s) * 1000)}
        if reading in ready:
            data = os.read(reading, 65536)
            if not data:
                poll.unregister(reading)
            unread += data
            for line in _lines(unread):
                record.take(line)
                ended_s = ended_s or (time.monotonic() if record.ended else None)
                if "signal" in line:
                    signals.append((time.monotonic() + line["after_s"], -pid if line["group"] else pid, line["signal"]))
            unread = unread[unread.rfind(b"\n") + 1 :]
        elif ending in ready:
            record.exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            break
        elif time.monotonic() >= started_s + limit_s:
            break
    gone_s = time.monotonic()
    os.close(ending)
    record.seconds = gone_s - started_s
    record.exit_s = gone_s - ended_s if ended_s else 0.0


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        yield json.loads(line)


def _kill_group(group: int, number: int) -> None:
    os.killpg(group, number)


def _orphans(grace_s: float) -> list[str]:
    """Who is still there so long after the program's end."""
    deadline_s = time.monotonic() + grace_s
    while True:
        _reap()
        alive = children_of(os.getpid())
        if not alive or time.monotonic() > deadline_s:
            return [command_of(pid) or f"process {pid}" for pid in alive]
        time.sleep(0.02)


def _kill_all_children() -> None:
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        family = children_of(os.getpid())
        for pid in family:
            family.extend(children_of(pid))
        if not family:
            break
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        _reap()
    _reap()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-_TEXT_KEPT:]
    except OSError:
        return ""


if __name__ == "__main__":
    main()
