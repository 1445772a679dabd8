"""`antifreeze doctor PID` as a user meets it: exit codes, sentences for bad input, and a patient that is left as it was."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ward import Patient, running

from antifreeze.doctor import command
from antifreeze.doctor.facts import examine, stacks, threads
from antifreeze.doctor.facts.proc import is_dead, read_status
from waiting import wait_until

SRC = Path(__file__).parents[2] / "src"
STUCK = Patient("lock_inherited_by_fork", readies=2)
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
named_workers = pytest.mark.skipif(TORCH < (2, 6), reason="torch before 2.6 does not name its workers: only stacks tell who is one")


def doctor(*words: object) -> int:
    parser = argparse.ArgumentParser(prog="antifreeze doctor")
    command.configure(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture(scope="module")
def stuck() -> Iterator[tuple[int, int]]:
    """(the loop, one of its stuck workers)"""
    with running(STUCK) as (pid, said):
        for worker in said:
            wait_until(lambda pid=worker["pid"]: "futex" in Path(f"/proc/{pid}/wchan").read_text())
        wait_until(lambda: "poll" in Path(f"/proc/{pid}/wchan").read_text())
        yield pid, said[0]["pid"]


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "100"]) as process:
        wait_until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes() != b"")  # execve is through
        yield process.pid
        process.kill()


def test_a_disease_is_exit_code_1(stuck: tuple[int, int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert doctor(stuck[0], "--seconds", 1, "--html", page) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("worker ")
    assert "which was locked when the worker was forked" in out[0]
    assert "<svg" in page.read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_json_can_be_read_back(stuck: tuple[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(stuck[0], "--seconds", 1, "--json") == 1
    read = json.loads(capsys.readouterr().out)
    assert read["code"] == "lock-inherited-by-fork"
    assert read["facts"]["patient"] == stuck[0]


def test_a_worker_is_examined_with_its_parent(stuck: tuple[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(stuck[1], "--seconds", 1) == 1
    assert f"asked about {stuck[1]}" in capsys.readouterr().out


def test_native_frames_on_request(stuck: tuple[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(stuck[0], "--seconds", 1, "--native", "--stacks") == 1
    assert "libc.so" in capsys.readouterr().out


def test_the_patient_is_left_as_it_was(stuck: tuple[int, int]) -> None:
    """A stuck worker did not run once while it was examined: not even woken."""
    before = read_status(stuck[1])
    examine.examine(stuck[0], 1.0)
    after = read_status(stuck[1])
    assert before is not None and after is not None
    assert replace(after, memory=before.memory) == before  # pages the kernel may take, or put together, as it likes


@named_workers
def test_without_py_spy_it_goes_on_and_names_the_extra(
    stuck: tuple[int, int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "find_py_spy", lambda: None)
    code = doctor(stuck[0], "--seconds", 1)
    out = capsys.readouterr().out
    assert code == 1, out
    assert "waits for a lock" in out.splitlines()[0]
    assert "pip install 'antifreeze[doctor]'" in out


REFUSING = """#!/bin/sh
echo 'Error: Permission Denied: Try running again with elevated permissions by going sudo env "PATH=$PATH" !!' >&2
exit 1
"""


@named_workers
def test_where_tracing_is_refused_it_says_what_to_allow(
    stuck: tuple[int, int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As under kernel.yama.ptrace_scope=1: py-spy may not read, system calls and memory are not shown, the rest of /proc is."""
    refusing = tmp_path / "py-spy"
    refusing.write_text(REFUSING)
    refusing.chmod(0o755)
    monkeypatch.setattr(examine, "find_py_spy", lambda: str(refusing))
    monkeypatch.setattr(threads, "decode_call", lambda *_: None)
    assert doctor(stuck[0], "--seconds", 1) == 1
    out = capsys.readouterr().out
    assert "waits for a lock" in out.splitlines()[0]
    assert "not seen: the Python stacks" in out
    assert re.search("to allow it: .*(sudo|SYS_PTRACE)", out)


def test_no_such_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(2**22 + 17) == 2
    assert capsys.readouterr().err.startswith(f"antifreeze doctor: there is no process {2**22 + 17}")


def test_a_dead_process_that_nobody_reaped(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["true"]) as process:
        wait_until(lambda: is_dead(process.pid))
        assert doctor(process.pid) == 2
    assert f"process {process.pid} is dead, and its parent {os.getpid()} has not reaped it" in capsys.readouterr().err


def test_a_program_that_just_begins_is_not_dead() -> None:
    """For a moment before execve is through it has no command line: seen in one of a hundred."""
    for _ in range(300):
        with subprocess.Popen(["sleep", "100"]) as process:
            assert not is_dead(process.pid)
            process.kill()


def test_not_a_python_process(sleeper: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(sleeper) == 2
    assert capsys.readouterr().err == f"antifreeze doctor: process {sleeper} is not a Python process, and has none below it: sleep 100\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_another_users_process(stuck: tuple[int, int], more: list[str]) -> None:
    """Somebody else's training, with loader and workers: no half of a report, and no stack trace."""
    nobody, pid = pwd.getpwnam("nobody"), stuck[0]
    words = f"import os, sys; sys.path.insert(0, {str(SRC)!r}); from antifreeze.doctor import command; import argparse, locale; "
    words += f"os.setgroups([]); os.setgid({nobody.pw_gid}); os.setuid({nobody.pw_uid}); "
    words += "parser = argparse.ArgumentParser(); command.configure(parser); sys.exit(command.run(parser.parse_args(sys.argv[1:])))"
    done = subprocess.run([sys.executable, "-c", words, str(pid), *more], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"antifreeze doctor: process {pid} belongs to root (uid 0) and you are nobody")
    assert f"sudo antifreeze doctor {pid}" in done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_examines_another_users_process(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = pwd.getpwnam("nobody")
    words = f"import os, time; os.setgroups([]); os.setgid({nobody.pw_gid}); os.setuid({nobody.pw_uid}); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", words]) as process:
        wait_until(lambda: (status := read_status(process.pid)) is not None and status.user == nobody.pw_uid)
        assert doctor(process.pid, "--seconds", 0.5) == 0
        process.kill()
    assert f"no DataLoader is at work in process {process.pid}" in capsys.readouterr().out


def test_a_process_that_ends_while_it_is_examined(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        wait_for_python(process.pid)
        visit = examine.begin_visit(process.pid)
        process.kill()
        process.wait()
        with pytest.raises(examine.PatientEnded, match=f"process {process.pid} ended while it was examined, after"):
            visit.examine(0.1)


def wait_for_python(pid: int) -> None:
    """Until it reads its standard input."""
    wait_until(lambda: "pipe" in Path(f"/proc/{pid}/wchan").read_text())


def test_a_python_program_without_a_loader(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        wait_for_python(process.pid)
        assert doctor(process.pid, "--seconds", 0.2) == 0
        process.kill()
    assert capsys.readouterr().out.startswith(f"no DataLoader is at work in process {process.pid}")


def test_watching_goes_on_until_the_patient_ends(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        wait_for_python(process.pid)
        pauses: list[float] = []

        def pause() -> None:
            pauses.append(1.0)
            if len(pauses) == 2:
                process.kill()
                process.wait()

        monkeypatch.setattr(command, "_pause", pause)
        assert doctor(process.pid, "--watch", "--json", "--seconds", 0.2) == 0
    said = capsys.readouterr()
    assert [json.loads(line)["code"] for line in said.out.splitlines()] == ["no-loader", "no-loader"]
    assert said.err == f"antifreeze doctor: process {process.pid} has ended\n"


@pytest.mark.parametrize("words", [["abc"], ["-5"], ["0"], ["12", "--seconds", "0"], ["12", "--seconds", "x"], []])
def test_wrong_usage_is_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        doctor(*words)
    assert left.value.code == 2


def test_a_page_that_cannot_be_written(stuck: tuple[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(stuck[0], "--seconds", 0.5, "--html", "/no/such/folder/page.html") == 2
    told = capsys.readouterr()
    assert "could not be written to /no/such/folder/page.html: there is no folder /no/such/folder" in told.err and not told.out


def test_a_slow_py_spy_does_not_hold_the_doctor_up(stuck: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(stacks, "LIMIT_S", 0.3)
    monkeypatch.setattr(examine, "find_py_spy", lambda: str(slow))
    found = examine.examine(stuck[0], 0.5)
    assert any("timed out" in each.why for each in found.blindness)
