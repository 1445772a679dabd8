"""Facts in, findings out: all rules are asked, and the one that explains most comes first. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from antifreeze.doctor.facts.model import Examination
from antifreeze.doctor.findings import rules_deaths as deaths
from antifreeze.doctor.findings import rules_gil as gil
from antifreeze.doctor.findings import rules_locks as locks
from antifreeze.doctor.findings import rules_loop as loop
from antifreeze.doctor.findings import rules_machine as machine
from antifreeze.doctor.findings import rules_reads as reads
from antifreeze.doctor.findings import rules_sample as sample
from antifreeze.doctor.findings import rules_transport as transport
from antifreeze.doctor.findings.case import Case, build_case
from antifreeze.doctor.findings.model import Confidence, Diagnosis, Finding, Severity

Rule = Callable[[Case], Iterator[Finding]]

CAUSES: tuple[Rule, ...] = (
    machine.frozen_cgroup,
    deaths.stopped,
    deaths.out_of_memory,
    transport.shared_memory_full,
    transport.descriptors_exhausted,
    deaths.worker_dead,
    gil.gil_held,
    locks.lock_taken_twice,
    locks.lock_inherited_by_fork,
    locks.lock_in_process,
    locks.lock_of_another_worker,
    locks.file_lock,
    reads.fifo,
    reads.network_filesystem,
    reads.socket,
    reads.pipe,
    reads.child_process,
    reads.terminal,
    sample.infinite_loop,
    reads.disk,
    sample.sleeping,
    reads.elsewhere,
    transport.pin_thread_dead,
    transport.pin_thread_stuck,
    transport.result_lost,
    deaths.orphans,
    machine.few_cores,
    machine.cpu_throttled,
    machine.swapping,
    loop.loop_blocked,
    loop.loop_in_collective,
    loop.loop_is_slow,
    machine.too_many_workers,
    machine.memory_nearly_full,
    machine.inherited_handles,
)
"""In the order in which they explain each other: a full /dev/shm explains a lost result, and not the other way round."""

STATES: tuple[Rule, ...] = (loop.slow_start, loop.slow_but_progressing, loop.healthy, loop.no_loader, loop.unclear)
"""What is said when no cause is found; the first that applies is the verdict."""

WEIGHT = {Severity.DISEASE: 0, Severity.SLOW: 1, Severity.HEALTHY: 2, Severity.NOTE: 3}
SURENESS = {Confidence.CERTAIN: 0, Confidence.LIKELY: 1, Confidence.POSSIBLE: 2}


def diagnose(exam: Examination) -> Diagnosis:
    case = build_case(exam)
    causes = _merged([found for rule in CAUSES for found in rule(case)])
    findings = causes if any(each.severity in (Severity.DISEASE, Severity.SLOW) for each in causes) else [*causes, *_state(case)]
    order = {rule_found.code: position for position, rule_found in enumerate(causes)}
    return Diagnosis(tuple(sorted(findings, key=lambda each: (WEIGHT[each.severity], order.get(each.code, 0), SURENESS[each.confidence]))))


def _state(case: Case) -> list[Finding]:
    for rule in STATES:
        found = list(rule(case))
        if found:
            return found
    return []


def _merged(findings: list[Finding]) -> list[Finding]:
    """The same cause at the same place in several workers is one finding."""
    kept: list[Finding] = []
    for each in findings:
        twin = next((position for position, other in enumerate(kept) if _same_cause(each, other)), None)
        if twin is None:
            kept.append(each)
        else:
            kept[twin] = replace(kept[twin], evidence=(*kept[twin].evidence, f"the same: {each.verdict}"))
    return kept


def _same_cause(one: Finding, other: Finding) -> bool:
    return one.worker is not None and one.pid != other.pid and (one.code, one.file, one.line) == (other.code, other.file, other.line)
