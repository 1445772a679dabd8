"""Runs patients (the programs in diseases/), several at a time, lets the doctor examine each, and ends them.

start ──▶ "ready {…}" on its standard output ──▶ examine ──▶ kill the whole process group ──▶ Visited
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from antifreeze.doctor.command import LONGER_S
from antifreeze.doctor.facts.examine import begin_visit
from antifreeze.doctor.facts.model import Examination
from antifreeze.doctor.findings.diagnose import diagnose
from antifreeze.doctor.findings.model import Diagnosis, Finding

DISEASES = Path(__file__).parent / "diseases"
WINDOW_S = 2.0
READY_LIMIT_S = 100.0
"""Generous, because many of them import torch at the same time on few cores."""
AT_ONCE = 5
REST_S, REST_LIMIT_S = 0.4, 40.0
PIDS = ("pid", "holder", "helper", "waiter", "victim", "partner", "walker")
"""What patients call the processes they name."""


@dataclass(frozen=True)
class Patient:
    program: str
    arguments: tuple[str, ...] = ()
    code: str = ""
    """What the doctor must say."""
    whom: str = "pid"
    """The key of the ready line that holds the pid to be named; "loop" is the patient itself."""
    line: str | None = "here"
    """The comment that marks the line to be named; None where no line is to blame."""
    says: tuple[str, ...] = ()
    """What verdict and evidence must mention; {key} is taken from the ready line."""
    disease: bool = True
    readies: int = 1
    rests: bool = True
    """In its disease nothing of it runs any more: the visit begins when that is so."""
    quick: bool = False
    """One of the few that every ./check visits."""
    room: Callable[[], Any] | None = None
    """A context manager that gives the patient what it needs: a command prefix and arguments (see rooms.py)."""
    then: Callable[[dict[str, Any]], Any] | None = None
    """A context manager: what is done to it when it is ready, and undone before it is ended; given what it said."""

    @property
    def name(self) -> str:
        return " ".join((self.program, *self.arguments))

    @property
    def file(self) -> Path:
        return DISEASES / f"{self.program}.py"

    def marked_lines(self) -> list[int]:
        text = self.file.read_text(encoding="utf-8").splitlines()
        return [number for number, line in enumerate(text, 1) if self.line is not None and line.rstrip().endswith(f"# <- {self.line}")]


@dataclass(frozen=True)
class Visited:
    """What the doctor said about a patient, and what the patient itself had said."""

    exam: Examination
    diagnosis: Diagnosis
    took_s: float
    loop_pid: int
    said: list[dict[str, Any]] = field(default_factory=list)

    @property
    def verdict(self) -> Finding:
        return self.diagnosis.verdict

    def value(self, key: str) -> Any:
        return self.loop_pid if key == "loop" else next(each[key] for each in self.said if key in each)

    def pids(self, key: str) -> list[int]:
        return [self.loop_pid] if key == "loop" else [each[key] for each in self.said if key in each]


@contextmanager
def running(patient: Patient) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The patient in its disease: (its pid, what it said). Its process group is killed at the end, whatever happens."""
    with tempfile.TemporaryFile() as errors, _room(patient) as (prefix, extra):
        command = [*prefix, sys.executable, "-B", str(patient.file), *patient.arguments, *extra]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            cwd=DISEASES,
            env=_environment(),
        )
        try:
            said = _wait_ready(process, patient, errors)
            with patient.then(said[0]) if patient.then else nullcontext():
                yield process.pid, said
        finally:
            end_group(process)


@contextmanager
def _room(patient: Patient) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    if patient.room is None:
        yield (), ()
    else:
        with patient.room() as found:
            yield found


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}


def _wait_ready(process: subprocess.Popen[bytes], patient: Patient, errors: Any) -> list[dict[str, Any]]:
    assert process.stdout is not None
    said: list[dict[str, Any]] = []
    deadline_s, unread = time.monotonic() + READY_LIMIT_S, b""
    while len(said) < patient.readies:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline_s - time.monotonic()))
        content = os.read(process.stdout.fileno(), 65536) if ready else b""
        if not content:
            errors.seek(0)
            raise AssertionError(f"{patient.name} did not get ready: {errors.read().decode(errors='replace')[-2000:]}")
        *lines, unread = (unread + content).split(b"\n")
        said += [json.loads(line[6:]) for line in lines if line.startswith(b"ready ")]
    return said


def end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if process.stdout is not None:
        process.stdout.close()
    process.wait()


def wait_at_rest(pid: int, said: Sequence[dict[str, Any]]) -> None:
    """Until no thread of the patient has run for a while: on a busy machine it says that it is ready long before it is where it says.
    Whatever does not come to rest is visited all the same, and the test says what it thinks of that."""
    limit_s, before = time.monotonic() + REST_LIMIT_S, None
    while time.monotonic() < limit_s:
        now = _threads_of({pid, *(each[key] for each in said for key in PIDS if key in each)})
        if now == before and not any(state in "RD" for state, *_ in now.values()):
            return
        before = now
        time.sleep(REST_S)


def _threads_of(roots: set[int]) -> dict[int, tuple[str, ...]]:
    """State and counts of context switches, by thread."""
    found = {}
    for root in roots:
        try:
            family = [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
        except psutil.NoSuchProcess:
            continue
        for status in (path for pid in family for path in Path(f"/proc/{pid}/task").glob("*/status")):
            try:
                lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            except OSError:
                continue
            found[int(lines["Pid"])] = (lines["State"][0], lines["voluntary_ctxt_switches"], lines["nonvoluntary_ctxt_switches"])
    return found


def visit(patient: Patient) -> Visited:
    with running(patient) as (pid, said):
        if patient.rests and patient.disease:
            wait_at_rest(pid, said)
        started_s = time.monotonic()
        first = begin_visit(pid)
        exam = first.examine(WINDOW_S)
        diagnosis = diagnose(exam)
        if diagnosis.is_undecided:
            exam = first.examine(LONGER_S)
            diagnosis = diagnose(exam)
        return Visited(exam, diagnosis, time.monotonic() - started_s, pid, said)


def visit_all(patients: Sequence[Patient]) -> dict[str, Visited | BaseException]:
    """Each patient's visit, or why there was none."""

    def careful(patient: Patient) -> Visited | BaseException:
        try:
            return visit(patient)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip((patient.name for patient in patients), pool.map(careful, patients), strict=True))


def without_pids(text: str) -> str:
    return re.sub(r"(pids?|process|thread) \d+", r"\1 …", text)
