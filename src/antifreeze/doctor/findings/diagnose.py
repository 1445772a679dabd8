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
from antifreeze.doctor.findings.case import Case
from antifreeze.doctor.findings.cast import build_case
from antifreeze.doctor.findings.model import Diagnosis, Finding, Severity

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
    reads.full_pipe,
    reads.event_loop,
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
)
"""In the order in which they explain each other: a full /dev/shm explains a lost result, and not the other way round."""

RISKS: tuple[Rule, ...] = (machine.machine_overloaded, machine.memory_nearly_full, machine.inherited_handles)
"""Worth knowing, but not what stops the program now."""

STATES: tuple[Rule, ...] = (loop.starting_workers, loop.slow_but_progressing, loop.healthy, loop.no_loader, loop.unclear)
"""What is said when no cause is found; the first that applies is the verdict."""

EXPLAINS = {
    "shared-memory-full": ("result-lost",),
    "descriptors-exhausted": ("result-lost",),
    "pin-thread-dead": ("result-lost",),
    "gil-held": ("loop-is-slow", "loop-blocked"),
    "out-of-memory-kill": ("loop-blocked", "loop-is-slow"),
    "worker-dead": ("loop-blocked",),
    "cpu-throttled": ("too-many-workers",),
    "swapping": ("memory-nearly-full",),
}
"""A consequence is not said beside its cause."""

WEIGHT = {Severity.DISEASE: 0, Severity.SLOW: 1, Severity.NOTE: 2, Severity.HEALTHY: 2}


def diagnose(exam: Examination) -> Diagnosis:
    case = build_case(exam)
    paused = {process.pid for process in exam.processes if process.frozen_by}  # what they were at tells nothing, and looks like much
    found = [found for rule in CAUSES for found in rule(case) if found.code == "frozen-cgroup" or found.pid not in paused]
    causes = _without_consequences(_merged(found))
    own = [found for found in causes if found.severity is not Severity.NOTE or found.code != "orphans"]
    beside = [found for found in causes if found not in own]
    risks = _unexplained([found for rule in RISKS for found in rule(case)], causes)
    return Diagnosis((*sorted(own or _state(case), key=lambda found: WEIGHT[found.severity]), *beside, *risks))


def _state(case: Case) -> list[Finding]:
    return next((found for rule in STATES if (found := list(rule(case)))), [])


def _without_consequences(findings: list[Finding]) -> list[Finding]:
    return _unexplained(findings, findings)


def _unexplained(findings: list[Finding], causes: list[Finding]) -> list[Finding]:
    explained = {code for found in causes if found.severity is Severity.DISEASE for code in EXPLAINS.get(found.code, ())}
    return [found for found in findings if found.code not in explained]


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
