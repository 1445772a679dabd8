"""`antifreeze doctor PID`: why is this process frozen, or slow, now?

Exit codes: 0 nothing is wrong, or it is only slow · 1 a disease was found · 2 the process cannot be examined, and the last line says why
"""

from __future__ import annotations

import argparse
import sys
import time

from antifreeze.doctor.errors import NoSuchProcess, PatientEnded, PatientError
from antifreeze.doctor.facts.examine import begin_visit
from antifreeze.doctor.facts.model import Examination
from antifreeze.doctor.findings.diagnose import diagnose
from antifreeze.doctor.findings.model import Diagnosis
from antifreeze.doctor.report.as_json import json_text
from antifreeze.doctor.report.html import html_page
from antifreeze.doctor.report.page import why_not_writable, write_whole
from antifreeze.doctor.report.text import print_text

WINDOW_S, LONGER_S, PAUSE_S = 3.0, 7.5, 5.0
HEALTHY, DISEASE, WRONG_USAGE = 0, 1, 2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", type=_pid, help="the training process, one of its parents (torchrun, a shell), or one of its workers")
    parser.add_argument(
        "--seconds", type=_seconds, metavar="S", help=f"time between the two looks (default {WINDOW_S:g}; longer if unsure)"
    )
    parser.add_argument("--watch", action="store_true", help="examine it again and again, until it ends or Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print findings and facts as JSON (with --watch: one line per examination)")
    parser.add_argument("--html", metavar="FILE", help="also write the whole picture as a page that needs no network")
    parser.add_argument("--native", action="store_true", help="native frames too; stops each process for some milliseconds")
    parser.add_argument("--stacks", action="store_true", help="print the stack of every thread of every process")


def _pid(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a process id: give the number that `ps` or `nvidia-smi` shows")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds from 0.1 to 3600")
    return seconds


def run(args: argparse.Namespace) -> int:
    try:
        reason = why_not_writable(args.html) if args.html else None
        if reason is not None:  # now, and not after seconds of watching
            raise PatientError(f"the page could not be written to {args.html}: {reason}")
        return _watch(args) if args.watch else _once(args)
    except PatientError as error:
        print(f"antifreeze doctor: {error}", file=sys.stderr)
        return WRONG_USAGE


def _once(args: argparse.Namespace) -> int:
    exam, diagnosis = examine_and_diagnose(args.pid, args.seconds, native=args.native)
    _show(exam, diagnosis, args)
    return DISEASE if diagnosis.is_disease else HEALTHY


def examine_and_diagnose(pid: int, seconds: float | None = None, *, native: bool = False) -> tuple[Examination, Diagnosis]:
    """Watches longer by itself where the first window does not decide, unless told how long."""
    visit = begin_visit(pid)
    exam = visit.examine(seconds or WINDOW_S, native=native)
    diagnosis = diagnose(exam)
    if diagnosis.is_undecided and seconds is None:
        exam = visit.examine(LONGER_S, native=native)
        diagnosis = diagnose(exam)
    return exam, diagnosis


def _watch(args: argparse.Namespace) -> int:
    """Until the process ends or Ctrl-C; the exit code is that of the last examination."""
    code = _once(args)
    try:
        while True:
            _pause()
            if not args.json:
                print("\n" + "-" * 80 + f"\n{time.strftime('%H:%M:%S')}\n")
            code = _once(args)
    except (NoSuchProcess, PatientEnded):
        print(f"antifreeze doctor: process {args.pid} has ended", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        return code


def _pause() -> None:
    time.sleep(PAUSE_S)


def _show(exam: Examination, diagnosis: Diagnosis, args: argparse.Namespace) -> None:
    if args.json:
        print(json_text(exam, diagnosis, one_line=args.watch), flush=True)
    else:
        print_text(exam, diagnosis, all_stacks=args.stacks)
        sys.stdout.flush()
    if args.html:
        _write(args.html, html_page(exam, diagnosis))


def _write(path: str, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise PatientError(f"the page could not be written to {path}: {error.strerror}") from None
    print(f"page written to {path}", file=sys.stderr)
