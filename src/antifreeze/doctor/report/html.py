"""The whole picture as one page: no script, no network, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from antifreeze.doctor.facts.model import Blindness, Cgroup, Examination, Process, Thread
from antifreeze.doctor.findings.cast import build_case
from antifreeze.doctor.findings.frames import own_part, shown
from antifreeze.doctor.findings.model import Diagnosis, Finding
from antifreeze.doctor.findings.waits import wait_of
from antifreeze.doctor.findings.words import bytes_text, percent, plural, seconds_text
from antifreeze.doctor.report.charts import Bar, Chart, svg
from antifreeze.doctor.report.page import finding_section, folded_finding, listed_items, page_foot, page_head, prose, tags
from antifreeze.doctor.report.rows import ProcessRow, process_rows, title, waiting_text


def html_page(exam: Examination, diagnosis: Diagnosis) -> str:
    rows = process_rows(build_case(exam))
    return "\n".join(
        (
            *page_head(f"antifreeze doctor: {title(exam)}"),
            *_verdict(exam, diagnosis.verdict),
            *(folded_finding(finding) for finding in diagnosis.findings[1:]),
            *(_blind(blindness) for blindness in exam.blindness),
            f"<section><h2>Processes</h2>{_table(rows)}</section>",
            f'<section class="charts">{_cpu_chart(rows)}{_memory_chart(rows)}{_rest_chart(rows)}</section>',
            f"<section><h2>Room that is left</h2>{listed_items(_room(exam))}</section>",
            f"<section><h2>Stacks</h2>{''.join(_stacks(exam))}</section>",
            page_foot("antifreeze doctor"),
        )
    )


def _verdict(exam: Examination, finding: Finding) -> Iterator[str]:
    yield f'<header class="{finding.severity.value}"><h1>{prose(finding.verdict)}</h1><p>{tags(finding)}'
    yield f"{escape(title(exam))}, watched for {seconds_text(exam.window_s)}, {escape(exam.taken_at)}</p></header>"
    yield finding_section(finding)


def _blind(blindness: Blindness) -> str:
    words = f"<p>{prose(blindness.why)}. To allow it: {prose(blindness.allow)}</p>"
    return f'<section class="blind"><h2>Not seen: {escape(blindness.what)}</h2>{words}</section>'


def _table(rows: list[ProcessRow]) -> str:
    names = (("pid", ""), ("who", ""), ("CPU", "number"), ("private", "number"), ("shared", "number"), ("what it does", ""))
    head = "".join(f'<th class="{kind}">{name}</th>' for name, kind in names)
    return f"<table><tr>{head}</tr>{''.join(_table_row(row) for row in rows)}</table>"


def _table_row(row: ProcessRow) -> str:
    numbers = "".join(f'<td class="number">{text}</td>' for text in (percent(row.cpu_share), *row.sizes))
    doing = f"{escape(row.doing)}<br><small>{escape(row.where)}</small>" if row.where else escape(row.doing)
    return f"<tr><td>{row.pid}</td><td>{escape(row.who)}</td>{numbers}<td>{doing}</td></tr>"


def _label(row: ProcessRow) -> str:
    return f"{row.who} ({row.pid})"


def _cpu_chart(rows: list[ProcessRow]) -> str:
    bars = tuple(Bar(_label(row), (100 * row.cpu_share, 100 * row.delayed_share), percent(row.cpu_share)) for row in rows)
    legend = ("ran", "wanted to run, no core was free")
    return svg(Chart("CPU", "percent of one core, while it was watched", bars, legend, at_least=100.0), lambda value: f"{value:.0f} %")


def _memory_chart(rows: list[ProcessRow]) -> str:
    bars = tuple(
        Bar(_label(row), ((row.private or 0) / 1e6, (row.shared or 0) / 1e6), bytes_text(row.memory)) for row in rows if not row.is_thread
    )
    legend = ("private", "its part of what is shared (PSS)")
    return svg(Chart("Memory", "megabytes (MB)", bars, legend, at_least=100.0), lambda value: f"{value:,.0f}")


def _rest_chart(rows: list[ProcessRow]) -> str:
    known = [row for row in rows if row.asleep_s is not None]
    bars = tuple(Bar(_label(row), (row.asleep_s or 0.0,), seconds_text(row.asleep_s)) for row in known)
    return svg(Chart("Rest", "seconds since its main thread last ran", bars, (), at_least=10.0), lambda value: f"{value:g}") if bars else ""


def _room(exam: Examination) -> Iterator[str]:
    patient, machine = exam.process(exam.patient), exam.machine
    memory = f"{bytes_text(machine.memory_available)} of {bytes_text(machine.memory_total)} memory available"
    yield f"machine: {plural(machine.cores, 'core')}, load {machine.load:.1f}, {memory}"
    if patient and patient.shm:
        yield f"/dev/shm: {bytes_text(patient.shm.free)} of {bytes_text(patient.shm.total)} free"
    if patient and patient.descriptor_limit:
        yield f"open files of the loop: {patient.descriptor_count} of {patient.descriptor_limit}"
    for cgroup in exam.cgroups:
        yield f"cgroup {cgroup.path}: {_cgroup(cgroup)}"


def _cgroup(cgroup: Cgroup) -> str:
    throttled = f"throttled in {cgroup.throttled_periods} of {cgroup.periods} periods"
    cpu = f"{cgroup.cpu_quota_cores:.2g} cores, {throttled}" if cgroup.cpu_quota_cores else "no CPU limit"
    memory = f"{bytes_text(cgroup.memory_used)} of {bytes_text(cgroup.memory_limit)} memory" if cgroup.memory_limit else "no memory limit"
    return f"{cpu}; {memory}; {plural(cgroup.oom_kills, 'out-of-memory kill')}"


def _stacks(exam: Examination) -> Iterator[str]:
    for process in (*exam.processes, *exam.orphans):
        threads = [thread for thread in process.threads if thread.last]
        if threads:
            inner = "".join(_stack(process, thread) for thread in threads)
            yield f"<details><summary>{process.pid} {escape(process.name)}: {plural(len(threads), 'thread')}</summary>{inner}</details>"


def _stack(process: Process, thread: Thread) -> str:
    sample = thread.last
    assert sample is not None
    frames = "\n".join(escape(shown(frame)) for frame in own_part(sample.native or sample.frames)) or "no Python stack"
    native = f"\n{escape('native: ' + ', '.join(sample.libraries))}" if sample.libraries else ""
    asleep = f", last ran {seconds_text(sample.asleep_s)} ago" if sample.asleep_s else ""
    name = escape(thread.python_name or thread.name)
    return f"<h3>{thread.tid} {name}</h3><p>{escape(waiting_text(wait_of(process, thread)))}{asleep}</p><pre>{frames}{native}</pre>"
