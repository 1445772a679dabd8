"""Workers that are dead, killed for memory, stopped, or alive without their parent."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.doctor.facts.model import Cgroup, Process
from antifreeze.doctor.findings.case import Case, Doing, LoaderCase, Loop
from antifreeze.doctor.findings.frames import place, short
from antifreeze.doctor.findings.model import Confidence, Finding, Severity, finding
from antifreeze.doctor.findings.stalls import loop_line
from antifreeze.doctor.findings.waits import WaitKind, wait_of
from antifreeze.doctor.findings.words import bytes_text, command_text, exit_text, listed, plural

SIGKILL = 9


def stopped(case: Case) -> Iterator[Finding]:
    for process in case.exam.processes:
        if process.state not in ("T", "t"):
            continue
        worker = case.worker(process.pid)
        loader = case.loader_of(worker) if worker else None
        where = worker.place if worker else place(process.main.last.frames if process.main and process.main.last else ())
        traced = process.tracer != 0
        by = f"held by a debugger or tracer (pid {process.tracer})" if traced else "stopped by a signal (SIGSTOP, SIGTSTP or Ctrl-Z)"
        yield finding(
            "stopped",
            f"{case.name_of(process.pid)} is {by} and cannot run{f', at {short(where)}' if where else ''}",
            evidence=[f"its state is {process.state}", loop_line(loader) if loader else None],
            advice=[f"end the tracer, process {process.tracer}" if traced else f"let it run again: kill -CONT {process.pid}"],
            where=where,
            pid=process.pid,
            worker=worker.number if worker else None,
        )


def missing_workers(loader: LoaderCase) -> list[int]:
    """Numbers that no living worker has."""
    present = {worker.number for worker in loader.workers}
    if loader.expected_workers is None or None in present:
        return []
    return [number for number in range(loader.expected_workers) if number not in present]


def deaths(loader: LoaderCase) -> tuple[list[Process], list[int]]:
    """(the dead, the numbers that are missing). Workers of an iterable data set end by themselves, with code 0, when they are through:
    those count only where nobody is at work any more."""
    over = not loader.moved and all(worker.doing is Doing.IDLE for worker in loader.workers)
    dead = [process for process in loader.dead if process.exit_status or over]
    return dead, missing_workers(loader) if dead or over else []


def worker_dead(case: Case) -> Iterator[Finding]:
    """Zombies that the loop did not reap, and numbers that are missing among the living."""
    for loader in case.loaders:
        dead, missing = deaths(loader)
        if not (dead or missing) or loader.loop in (Loop.STARTING, Loop.CLOSING) or killed_for_memory(loader, case) is not None:
            continue
        numbers = f"worker {listed(missing)} of {loader.expected_workers} is gone" if missing else f"{plural(len(dead), 'worker')} died"
        who = f" ({listed(f'pid {process.pid}, {exit_text(process.exit_status)}' for process in dead)})" if dead else ""
        state = "waits for a batch that it never sent" if loader.loop is Loop.WAITING else loader.loop.value
        yield finding(
            "worker-dead",
            f"{numbers}{who}, and {loader.name} {state}",
            evidence=[*_death_evidence(loader), loop_line(loader)],
            advice=[
                "find who killed it: the kernel for memory (`dmesg | grep -i kill`), a batch system, a crash in native code",
                "do not catch torch's `worker exited unexpectedly` and go on with the same iterator: its batches and locks are lost",
                "antifreeze.DataLoader restarts a dead worker and loads its batch again",
            ],
            confidence=Confidence.CERTAIN if dead else Confidence.LIKELY,
            where=loader.place,
            pid=dead[0].pid if dead else loader.process.pid,
            worker=missing[0] if missing else None,
            stalled_s=loader.waited_s,
        )


def _death_evidence(loader: LoaderCase) -> Iterator[str]:
    for process in loader.dead:
        yield f"process {process.pid} is dead ({exit_text(process.exit_status)}) and was not reaped"
    if loader.loop is Loop.WAITING and loader.wait.kind is WaitKind.PIPE and loader.wait.call == "read":
        yield "the loop is inside read() on the result pipe: half a batch is in there, and the other half died with its worker"
    silenced = [worker.name for worker in loader.workers if _waits_for_queue_lock(worker.process)]
    if silenced:
        yield f"{listed(silenced)} cannot send: the lock of the queue went with the dead worker"


def _waits_for_queue_lock(process: Process) -> bool:
    feeders = [thread for thread in process.threads if thread.last and thread.last.frames and thread.last.frames[0].name == "_feed"]
    return any(wait_of(process, thread).kind is WaitKind.SHARED_LOCK for thread in feeders)


def out_of_memory(case: Case) -> Iterator[Finding]:
    for loader in case.loaders:
        killed = killed_for_memory(loader, case)
        if killed is None:
            continue
        pid, text = killed
        cgroup = cgroup_of(loader.process, case)
        yield finding(
            "out-of-memory-kill",
            f"memory ran out: the kernel killed a worker{f' (pid {pid})' if pid else ''}, and {loader.name} {loader.loop.value} without it",
            evidence=[
                text,
                _memory_line(cgroup) if cgroup else None,
                *(f"{worker.name} holds {_held(worker.process)}" for worker in loader.workers[:4]),
                loop_line(loader),
            ],
            advice=[
                "fewer workers, smaller prefetch_factor or batch; lists and dicts of objects grow in every worker (use numpy, Arrow)",
                "give the container more memory (`docker run -m`, Kubernetes resources.limits.memory, Slurm --mem)",
                "antifreeze.DataLoader(…, memory_budget='4GiB') keeps what is loaded ahead inside a limit",
            ],
            confidence=Confidence.CERTAIN if text else Confidence.LIKELY,
            where=loader.place,
            pid=pid or loader.process.pid,
        )


def killed_for_memory(loader: LoaderCase, case: Case) -> tuple[int, str] | None:
    """(pid, the kernel's own words); its log may be out of reach, then the cgroup's counter and a SIGKILL have to do."""
    dead = {process.pid for process in loader.dead}
    logged = [kill for kill in case.exam.machine.oom_kills if kill.pid in dead]
    if logged:
        return logged[-1].pid, logged[-1].text
    cgroup = cgroup_of(loader.process, case)
    if cgroup is None or not cgroup.oom_kills:
        return None
    killed = [process.pid for process in loader.dead if (process.exit_status or 0) & 0x7F == SIGKILL]
    if killed:
        return killed[0], ""
    if not deaths(loader)[1]:
        return None
    # Reaped already: the last kill of the log that was a worker, neither of another job nor another program in the same cgroup.
    here = [kill for kill in case.exam.machine.oom_kills if kill.was_in(cgroup.path)]
    workers = [kill for kill in here if f"({loader.workers[0].process.name})" in kill.text] if loader.workers else []
    return (workers[-1].pid, workers[-1].text) if workers else (0, "")


def cgroup_of(process: Process, case: Case) -> Cgroup | None:
    return next((each for each in case.exam.cgroups if each.path == process.cgroup), None)


def _memory_line(cgroup: Cgroup) -> str:
    limit = f" of {bytes_text(cgroup.memory_limit)}" if cgroup.memory_limit else ""
    kills = plural(cgroup.oom_kills, "out-of-memory kill")
    return f"the cgroup {cgroup.path} counts {kills} so far, and uses {bytes_text(cgroup.memory_used)}{limit} now"


def _held(process: Process) -> str:
    memory = process.last.memory if process.last else None
    return f"{bytes_text(memory.private if memory.private is not None else memory.anonymous)} of its own" if memory else "an unknown amount"


def orphans(case: Case) -> Iterator[Finding]:
    """Those of the patient are a disease, those of others on the same machine a note."""
    own = [each for each in case.orphans if case.exam.patient in (each.pid, each.group, each.session)]
    chosen = own or list(case.orphans)
    if not chosen:
        return
    one = len(chosen) == 1
    held = sum(each.last.memory.pss or each.last.memory.rss for each in chosen if each.last and each.last.memory)
    gpus = [each.pid for each in chosen if any(descriptor.target.startswith("/dev/nvidia") for descriptor in each.descriptors)]
    yield finding(
        "orphans",
        f"{plural(len(chosen), 'worker')} ({listed(f'pid {each.pid}' for each in chosen)}) outlived the loop that started "
        f"{'it' if one else 'them'}, and still {'holds' if one else 'hold'} {bytes_text(held)} of memory",
        evidence=[
            *(f"pid {each.pid} ({command_text(each.command, 50)}) {_orphan_state(each)}" for each in chosen[:6]),
            f"the GPU is kept open by {listed(gpus)}" if gpus else None,
        ],
        advice=[
            f"end {'it' if one else 'them'}: kill -9 {' '.join(str(each.pid) for each in chosen)}",
            "antifreeze's workers end with their parent, within a second",
        ],
        severity=Severity.DISEASE if own else Severity.NOTE,
        pid=chosen[0].pid,
    )


def _orphan_state(process: Process) -> str:
    if any(wait_of(process, thread).kind is WaitKind.FULL_PIPE for thread in process.threads):
        return "writes into a pipe that nobody reads, and keeps the reading end open itself"
    wait = wait_of(process, process.main)
    return "computes" if wait.kind is WaitKind.NOTHING else f"waits for {wait.kind.value}"
