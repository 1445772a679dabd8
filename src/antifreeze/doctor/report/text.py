"""The findings as lines of text: the verdict first, then the evidence, then what to do. In colour where rich is installed."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from antifreeze.doctor.facts.model import Examination, Process, Thread
from antifreeze.doctor.findings.cast import build_case, users_threads
from antifreeze.doctor.findings.frames import own_part, shown
from antifreeze.doctor.findings.model import Diagnosis, Finding, Severity
from antifreeze.doctor.findings.waits import wait_of
from antifreeze.doctor.findings.words import percent, seconds_text
from antifreeze.doctor.report.rows import ProcessRow, process_rows, title, waiting_text

Line = tuple[str, str]
"""(style, text)"""

MOST_BESIDE = 4
"""Threads with the user's own code, beside the main one."""
COLOURS = {Severity.DISEASE: "bold red", Severity.SLOW: "bold yellow", Severity.NOTE: "bold cyan", Severity.HEALTHY: "bold green"}


def text_lines(exam: Examination, diagnosis: Diagnosis, *, all_stacks: bool = False) -> Iterator[Line]:
    yield from finding_lines(diagnosis.verdict)
    for other in diagnosis.findings[1:]:
        yield "", ""
        yield from finding_lines(other, "also: ")
    for blind in exam.blindness:
        yield "", ""
        yield "bold", f"not seen: {blind.what}, because {blind.why}"
        yield "", f"  to allow it: {blind.allow}"
    yield "", ""
    yield "bold", f"{title(exam)}, watched for {seconds_text(exam.window_s)}"
    yield from _table(process_rows(build_case(exam)))
    yield from _stacks(exam, diagnosis, all_stacks)


def finding_lines(finding: Finding, before: str = "") -> Iterator[Line]:
    yield COLOURS[finding.severity], f"{before}{finding.verdict}"
    yield "dim", f"  {finding.code} ({finding.severity.value}, {finding.confidence.value})"
    if finding.evidence:
        yield "bold", "  evidence"
        yield from (("", f"    - {line}") for line in finding.evidence)
    if finding.advice:
        yield "bold", "  what to do"
        yield from (("", f"    - {line}") for line in finding.advice)


def _table(rows: list[ProcessRow]) -> Iterator[Line]:
    cells = [("pid", "who", "CPU", "private", "shared", "what it does")]
    for row in rows:
        where = f", {row.where}" if row.where else ""
        cells.append((str(row.pid), row.who, percent(row.cpu_share), *row.sizes, f"{row.doing}{where}"))
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    for number, line in enumerate(cells):
        left = f"  {line[0]:>{widths[0]}}  {line[1]:<{widths[1]}}"
        yield "dim" if number == 0 else "", f"{left}  {line[2]:>{widths[2]}}  {line[3]:>{widths[3]}}  {line[4]:>{widths[4]}}  {line[5]}"


def _stacks(exam: Examination, diagnosis: Diagnosis, all_stacks: bool) -> Iterator[Line]:
    concerned = {finding.pid for finding in diagnosis.findings} | {exam.patient}
    for process in (*exam.processes, *exam.orphans):
        if all_stacks or process.pid in concerned:
            beside = users_threads(process)
            for thread in process.threads:
                if thread.last and thread.last.frames and (all_stacks or thread.tid == process.pid or thread in beside[:MOST_BESIDE]):
                    yield "", ""
                    yield from _stack(process, thread)
    if not all_stacks and any(thread.last and thread.last.frames for process in exam.processes for thread in process.threads):
        yield "", ""
        yield "dim", "  --stacks shows every thread of every process, --html FILE the whole picture"


def _stack(process: Process, thread: Thread) -> Iterator[Line]:
    sample = thread.last
    assert sample is not None
    yield "bold", f"  {process.pid} thread {thread.tid} {thread.python_name or thread.name}: {waiting_text(wait_of(process, thread))}"
    yield from (("", f"    {shown(frame)}") for frame in own_part(sample.native or sample.frames))
    if sample.libraries:
        yield "dim", f"    native: {', '.join(sample.libraries)}"


def plain_text(exam: Examination, diagnosis: Diagnosis, *, all_stacks: bool = False) -> str:
    return "\n".join(text for _style, text in text_lines(exam, diagnosis, all_stacks=all_stacks)) + "\n"


def print_text(exam: Examination, diagnosis: Diagnosis, *, all_stacks: bool = False, file: TextIO | None = None) -> None:
    print_lines(text_lines(exam, diagnosis, all_stacks=all_stacks), file)


def print_lines(lines: Iterable[Line], file: TextIO | None = None) -> None:
    """In colour on a terminal that has rich; the same words everywhere."""
    out = file or sys.stdout
    console = _rich_console(out)
    width = shutil.get_terminal_size().columns if out.isatty() else None
    for style, text in lines:
        for part in wrapped(text, width):
            if console is None:
                out.write(f"{part}\n")
            else:
                console.print(part, style=style or None, markup=False, highlight=False, soft_wrap=True)


def wrapped(text: str, width: int | None) -> list[str]:
    """Pure: between words, and further in than the line began: a terminal would cut words in two."""
    if width is None or len(text) <= width:
        return [text]
    inwards = " " * (len(text) - len(text.lstrip(" -")) + 2)
    return textwrap.wrap(text, max(40, width), subsequent_indent=inwards, break_long_words=False, break_on_hyphens=False)


def _rich_console(out: TextIO) -> Any:
    if not out.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=out)
