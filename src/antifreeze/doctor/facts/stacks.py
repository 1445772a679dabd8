"""Python's stacks, read by py-spy from outside.

py-spy reads the patient's memory and does not stop it (`--nonblocking`): stopping would wake sleeping threads, and so destroy what the
kernel knows about how long each of them has slept. A thread that runs may then be seen half-way between two frames, so a look that
fails is repeated. `native=True` stops the patient for some milliseconds, and is only done when the user asks for it.

Of the local variables only those are kept that name the work at hand: indices of samples and batches, the number of the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from antifreeze.doctor.facts.model import Frame

TRIES = 3
LIMIT_S = 10.0
KEPT_IN_TORCH = frozenset(("worker_id", "num_workers", "idx", "index", "possibly_batched_index", "persistent_workers", "batch_id"))
PLAIN = re.compile(r"-?\d+|\[[-\d, .]*\]|\([-\d, .]*\)|'[^']{0,200}'|\"[^\"]{0,200}\"|True|False|None")
SAMPLE_METHODS = ("__getitem__", "__getitems__")


@dataclass(frozen=True)
class PythonThread:
    tid: int | None
    pthread: int
    """Python's own name for the thread, an address in its stack's neighbourhood."""
    name: str
    frames: tuple[Frame, ...]
    owns_gil: bool


@dataclass(frozen=True)
class Stacks:
    threads: tuple[PythonThread, ...] = ()
    problem: str = ""


def find_py_spy() -> str | None:
    """Beside our own interpreter first: `antifreeze[doctor]` installs it there."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def read_stacks(py_spy: str, pid: int, *, native: bool = False) -> Stacks:
    command = [py_spy, "dump", "--json", "--pid", str(pid), *(("--native",) if native else ("--nonblocking", "--locals"))]
    problem = ""
    for _ in range(TRIES):
        answer = _run(command)
        if answer is None:
            return Stacks(problem=f"py-spy timed out after {LIMIT_S:g} s")
        code, said, complaint = answer
        if code == 0:
            try:
                return Stacks(parse_dump(said))
            except ValueError:
                problem = "py-spy's answer could not be read"
        else:
            problem = first_causes(complaint.decode(errors="replace"))
        if not os.path.exists(f"/proc/{pid}"):
            break
    return Stacks(problem=problem or "py-spy failed")


def _run(command: list[str]) -> tuple[int, bytes, bytes] | None:
    """(exit code, output, complaints), or None at the limit. Where the patient's files lie on a dead file system py-spy itself may hang,
    and not even end when killed: then it is left to itself."""
    try:
        with contextlib.ExitStack() as stack:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            stack.callback(_close, process)
            said, complaint = process.communicate(timeout=LIMIT_S)
            return process.returncode, said, complaint
    except OSError as error:
        return 1, b"", str(error).encode()
    except subprocess.TimeoutExpired:
        return None


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def first_causes(text: str) -> str:
    """py-spy's error without its own stack trace."""
    lines = [line.strip() for line in text.partition("Stack backtrace:")[0].splitlines()]
    kept = [re.sub(r"^(Error:|\d+:)\s*", "", line) for line in lines if line and line not in ("Caused by:",)]
    return "; ".join(dict.fromkeys(kept))


def parse_dump(content: bytes) -> tuple[PythonThread, ...]:
    return tuple(_thread(each) for each in json.loads(content))


def _thread(said: dict[str, Any]) -> PythonThread:
    return PythonThread(
        tid=said.get("os_thread_id"),
        pthread=int(said.get("thread_id") or 0),
        name=said.get("thread_name") or "",
        frames=tuple(_frame(each) for each in said.get("frames") or ()),
        owns_gil=bool(said.get("owns_gil")),
    )


def _frame(said: dict[str, Any]) -> Frame:
    file, function = said.get("filename") or "?", said.get("name") or "?"
    return Frame(function, file, int(said.get("line") or 0), _kept_values(file, function, said.get("locals") or ()))


def _kept_values(file: str, function: str, values: Any) -> tuple[tuple[str, str], ...]:
    name = function.rsplit(".", 1)[-1]
    if "torch/utils/data/" in file or "/antifreeze/" in file:
        kept = [(each["name"], each["repr"]) for each in values if each["name"] in KEPT_IN_TORCH]
    elif name in SAMPLE_METHODS:
        arguments = [each for each in values if each.get("arg") and each["name"] != "self"]
        kept = [("index", each["repr"]) for each in arguments[:1]]
    else:
        return ()
    return tuple((name, text) for name, text in kept if text is not None and PLAIN.fullmatch(text))
