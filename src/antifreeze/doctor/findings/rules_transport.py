"""What goes wrong between a worker and the loop: a worker that is dead or stopped, a batch that was lost, no room to put it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from antifreeze.doctor.facts.model import Process
from antifreeze.doctor.findings.case import Case, Doing, LoaderCase, Loop
from antifreeze.doctor.findings.frames import above, is_users, place, short, trace
from antifreeze.doctor.findings.model import Confidence, Finding, Severity
from antifreeze.doctor.findings.stalls import loop_line
from antifreeze.doctor.findings.waits import WaitKind, wait_of
from antifreeze.doctor.findings.words import bytes_text, command_text, exit_text, listed, plural, seconds_text

FULL_SHARE, FULL_BYTES = 0.02, 4_000_000
LOST_ERROR = re.compile(r"^.*(?:[Pp]ickl|Too many open files|No space left|shared memory|Bus error|ancdata).*$", re.MULTILINE)


def loader_finding(code: str, verdict: str, loader: LoaderCase, confidence: Confidence, evidence: list[str], advice: list[str]) -> Finding:
    """About the loop's own process, at the user's own line."""
    where = loader.place
    return Finding(
        code,
        verdict,
        Severity.DISEASE,
        confidence,
        tuple(evidence),
        tuple(advice),
        pid=loader.process.pid,
        file=where.file if where else None,
        line=where.line if where else None,
        stalled_s=loader.waited_s,
    )


def stopped(case: Case) -> Iterator[Finding]:
    for process in case.exam.processes:
        if process.state not in ("T", "t"):
            continue
        worker = next((each for each in case.workers if each.process.pid == process.pid), None)
        name = worker.name if worker else f"process {process.pid}"
        tracer = case.exam.process(process.tracer)
        by = (
            f"held by a debugger or tracer (pid {process.tracer})" if process.tracer else "stopped by a signal (SIGSTOP, SIGTSTP or Ctrl-Z)"
        )
        where = worker.place if worker else place(process.main.last.frames if process.main and process.main.last else ())
        loader = case.loader_of(worker) if worker else None
        yield Finding(
            "stopped",
            f"{name} is {by} and cannot run{f', at {short(where)}' if where else ''}",
            Severity.DISEASE,
            Confidence.CERTAIN,
            (
                f"its state is {process.state}" + (f", its tracer is {command_text(tracer.command)}" if tracer else ""),
                *([loop_line(loader)] if loader else []),
            ),
            (f"end the tracer {process.tracer}",) if process.tracer else (f"let it run again: kill -CONT {process.pid}",),
            pid=process.pid,
            worker=worker.number if worker else None,
            file=where.file if where else None,
            line=where.line if where else None,
        )


def worker_dead(case: Case) -> Iterator[Finding]:
    """Zombies that the loop did not reap, and numbers that are missing among the living."""
    for loader in case.loaders:
        missing = _missing_workers(loader)
        if not (loader.dead or missing) or loader.loop in (Loop.STARTING, Loop.CLOSING) or loader.moved:
            continue
        oom = [kill for kill in case.exam.machine.oom_kills if kill.pid in {process.pid for process in loader.dead}]
        if oom or _killed_for_memory(loader, case):
            continue  # out_of_memory says it better
        who = listed(f"pid {process.pid}, {exit_text(process.exit_status)}" for process in loader.dead) or ""
        numbers = (
            f"worker {listed(missing)} of {loader.expected_workers} is gone" if missing else f"{plural(len(loader.dead), 'worker')} died"
        )
        state = "waits for a batch that it never sent" if loader.loop is Loop.WAITING else loader.loop.value
        yield Finding(
            "worker-dead",
            f"{numbers}{f' ({who})' if loader.dead else ''}, and {loader.name} {state}",
            Severity.DISEASE,
            Confidence.CERTAIN if loader.dead else Confidence.LIKELY,
            tuple(_dead_evidence(loader)),
            (
                "find who killed it: the kernel for memory (`dmesg | grep -i kill`), a batch system, a crash in native code (exit by SIGSEGV, SIGBUS)",
                "do not catch torch's `worker exited unexpectedly` and go on with the same iterator: its batches and its locks are lost",
                "antifreeze.DataLoader restarts a dead worker and loads its batch again",
            ),
            pid=loader.dead[0].pid if loader.dead else loader.process.pid,
            worker=missing[0] if missing else None,
            file=loader.place.file if loader.place else None,
            line=loader.place.line if loader.place else None,
            stalled_s=loader.waited_s,
        )


def _missing_workers(loader: LoaderCase) -> list[int]:
    present = {worker.number for worker in loader.workers}
    return [] if loader.expected_workers is None or None in present else sorted(set(range(loader.expected_workers)) - present)  # type: ignore[arg-type]


def _dead_evidence(loader: LoaderCase) -> list[str]:
    lines = [f"process {process.pid} is dead ({exit_text(process.exit_status)}) and was not reaped" for process in loader.dead]
    if loader.loop is Loop.WAITING and loader.wait.kind is WaitKind.PIPE and loader.wait.call == "read":
        lines.append("the loop is inside read() on the result pipe: half a batch is in there, and the other half died with its worker")
    blocked = [worker for worker in loader.workers if any(_waits_for_queue_lock(worker.process, tid.tid) for tid in worker.process.threads)]
    if blocked:
        lines.append(f"{listed(worker.name for worker in blocked)} cannot send: the queue's lock went with the dead worker")
    return [*lines, loop_line(loader)]


def _waits_for_queue_lock(process: Process, tid: int) -> bool:
    thread = next(each for each in process.threads if each.tid == tid)
    frames = thread.last.frames if thread.last else ()
    return bool(frames) and frames[0].name == "_feed" and wait_of(process, thread).kind is WaitKind.SHARED_LOCK


def out_of_memory(case: Case) -> Iterator[Finding]:
    for loader in case.loaders:
        killed = _killed_for_memory(loader, case)
        if killed is None:
            continue
        pid, text = killed
        cgroup = next((each for each in case.exam.cgroups if each.path == loader.process.cgroup), None)
        limit = cgroup.memory_limit if cgroup else None
        evidence = [text] if text else []
        if cgroup and cgroup.oom_kills:
            evidence.append(
                f"the cgroup {cgroup.path} counts {plural(cgroup.oom_kills, 'out-of-memory kill')}; {_memory_text(limit, cgroup.memory_used)}"
            )
        evidence += [f"{worker.name} holds {_held(worker.process)}" for worker in loader.workers[:4]]
        yield Finding(
            "out-of-memory-kill",
            f"the kernel killed a worker{f' (pid {pid})' if pid else ''} because memory ran out, and {loader.name} {loader.loop.value} without it",
            Severity.DISEASE,
            Confidence.CERTAIN if text else Confidence.LIKELY,
            (*evidence, loop_line(loader)),
            (
                "fewer workers, a smaller prefetch_factor or batch; lists and dicts of Python objects grow in every worker (use numpy or Arrow)",
                "give the container more memory (`docker run -m`, Kubernetes resources.limits.memory, Slurm --mem)",
                "antifreeze.DataLoader(…, memory_budget='4GiB') keeps what is loaded ahead inside a limit",
            ),
            pid=pid or loader.process.pid,
            file=loader.place.file if loader.place else None,
            line=loader.place.line if loader.place else None,
        )


def _killed_for_memory(loader: LoaderCase, case: Case) -> tuple[int, str] | None:
    """(pid, the kernel's own line); the log may be out of reach, then the cgroup's counter and a SIGKILL have to do."""
    tree = {process.pid for process in loader.dead}
    for kill in reversed(case.exam.machine.oom_kills):
        if kill.pid in tree:
            return kill.pid, kill.text
    missing = bool(_missing_workers(loader))
    cgroup = next((each for each in case.exam.cgroups if each.path == loader.process.cgroup), None)
    if not cgroup or not cgroup.oom_kills or loader.process.cgroup in ("", "/"):
        return None
    named = [
        kill
        for kill in case.exam.machine.oom_kills
        if f"task_memcg={loader.process.cgroup}" in kill.text or "(pt_data_worker)" in kill.text
    ]
    killed = [process for process in loader.dead if (process.exit_status or 0) & 0x7F == 9]
    if killed:
        return killed[0].pid, ""
    return (named[-1].pid if named else 0, named[-1].text if named else "") if missing else None


def _memory_text(limit: int | None, used: int | None) -> str:
    return f"it uses {bytes_text(used)} of {bytes_text(limit)}" if limit else f"it uses {bytes_text(used)}, without a limit"


def _held(process: Process) -> str:
    memory = process.last.memory if process.last else None
    return f"{bytes_text(memory.private if memory.private is not None else memory.anonymous)} of its own" if memory else "an unknown amount"


def result_lost(case: Case) -> Iterator[Finding]:
    """Everybody waits for the other: the loop for a batch, all workers for work. So a finished batch never arrived."""
    for loader in case.loaders:
        if not _everybody_waits(loader) or loader.dead or _missing_workers(loader):
            continue
        error = last_error(loader)
        lost_by = [worker for worker in loader.workers if worker.number == loader.awaited]
        yield loader_finding(
            "result-lost",
            f"{loader.name} waits for a batch that {lost_by[0].name if lost_by else 'a worker'} finished but could not send: it was lost on the way",
            loader,
            Confidence.CERTAIN if error else Confidence.LIKELY,
            [
                *(
                    [f"on its standard error: {error}"]
                    if error
                    else ["the error was printed on the workers' standard error: look there for a traceback"]
                ),
                f"all {plural(len(loader.workers), 'worker')} wait for work, while the loop waits for a batch: nothing is under way any more",
                "torch pickles a batch in a thread of its own, where an error ends the batch and nothing else (pytorch#142884)",
                loop_line(loader),
            ],
            [
                "make the batch picklable: no locks, file handles, generators, lambdas or open readers in what the data set or collate_fn returns",
                "check it: pickle.dumps(collate_fn([dataset[0]]))",
                "antifreeze.DataLoader raises BatchNotPicklable and names the part",
            ],
        )


def _everybody_waits(loader: LoaderCase) -> bool:
    return (
        bool(loader.workers)
        and loader.loop is Loop.WAITING
        and not loader.moved
        and all(worker.doing is Doing.IDLE for worker in loader.workers)
    )


def last_error(loader: LoaderCase) -> str | None:
    """The last line about a batch that could not be sent, where standard error is a file."""
    tails = [worker.process.stderr_tail for worker in loader.workers] + [loader.process.stderr_tail]
    found = [match for tail in tails for match in LOST_ERROR.findall(tail) if "Error" in match]
    return found[-1].strip()[:200] if found else None


def shared_memory_full(case: Case) -> Iterator[Finding]:
    for loader in case.loaders:
        shm = loader.process.shm
        if shm is None or not shm.total or (shm.free > FULL_SHARE * shm.total and shm.free > FULL_BYTES):
            continue
        error = last_error(loader)
        if shm.total > 10 * FULL_BYTES and shm.free > FULL_SHARE * shm.total and not error:
            continue
        held = sum(1 for each in loader.process.descriptors if each.kind == "shared memory")
        waits = ", and a batch could not be sent" if _everybody_waits(loader) else ""
        yield loader_finding(
            "shared-memory-full",
            f"/dev/shm is full ({bytes_text(shm.free)} of {bytes_text(shm.total)} free){waits}: {loader.name} {loader.loop.value}",
            loader,
            Confidence.CERTAIN if error or _everybody_waits(loader) else Confidence.LIKELY,
            [
                *([f"on standard error: {error}"] if error else []),
                f"the loop's process holds {held} pieces of shared memory open",
                loop_line(loader),
            ],
            [
                f"give it more: `docker run --shm-size={max(1, round(8 * shm.total / 1e9))}g …` or `--ipc=host`; Kubernetes: an emptyDir with medium: Memory "
                "at /dev/shm",
                "do not keep batches in a list; lower prefetch_factor, num_workers or the batch size",
                "antifreeze.DataLoader does not use /dev/shm",
            ],
        )


def descriptors_exhausted(case: Case) -> Iterator[Finding]:
    for process in case.exam.processes:
        limit = process.descriptor_limit
        if not limit or process.descriptor_count < min(limit - 3, round(0.98 * limit)):
            continue
        worker = next((each for each in case.workers if each.process.pid == process.pid), None)
        loader = case.loader_of(worker) if worker else next((each for each in case.loaders if each.process.pid == process.pid), None)
        kinds = sorted(
            {each.kind for each in process.descriptors}, key=lambda kind: -sum(each.kind == kind for each in process.descriptors)
        )
        counts = listed(f"{sum(each.kind == kind for each in process.descriptors)} {kind}" for kind in kinds)
        error = last_error(loader) if loader else None
        yield Finding(
            "descriptors-exhausted",
            f"{worker.name if worker else f'process {process.pid}'} has {process.descriptor_count} of {limit} files open and can open no more",
            Severity.DISEASE,
            Confidence.CERTAIN,
            (f"they are: {counts}", *([f"on standard error: {error}"] if error else []), *([loop_line(loader)] if loader else [])),
            (
                "raise the limit: `ulimit -n 65536` before the start (docker: --ulimit nofile=65536)",
                "torch sends one descriptor per tensor: return one stacked tensor and not a list of many, and do not keep batches",
                "torch.multiprocessing.set_sharing_strategy('file_system') uses none, but leaks names in /dev/shm when a process is killed",
            ),
            pid=process.pid,
            worker=worker.number if worker else None,
            file=loader.place.file if loader and loader.place else None,
            line=loader.place.line if loader and loader.place else None,
        )


def pin_thread(case: Case) -> Iterator[Finding]:
    """The thread between the workers and the loop: stuck in something of its own, or gone."""
    for loader in case.loaders:
        thread = loader.pin_thread
        if thread is None or thread.first is None or thread.last is None or loader.loop is not Loop.WAITING:
            continue
        inner = above(thread.last.frames, "do_one_step", "pin_memory.py")
        fetching = not inner or inner[0].name in ("select", "wait", "_poll", "poll", "get") and not any(is_users(frame) for frame in inner)
        if fetching or thread.first.switches != thread.last.switches:
            continue
        where = next((frame for frame in inner if is_users(frame)), inner[0])
        wait = wait_of(loader.process, thread)
        yield Finding(
            "pin-thread-stuck",
            f"the pin-memory thread of {loader.name} does not come back from pinning a batch, at {short(where)}",
            Severity.DISEASE,
            Confidence.CERTAIN if loader.loop is Loop.WAITING else Confidence.LIKELY,
            (
                f"stack: {trace(inner)}",
                f"it waits for {wait.kind.value}{f' in {wait.call}()' if wait.call else ''}, for {seconds_text(thread.last.asleep_s)} now",
                loop_line(loader),
            ),
            ("pin_memory=False tells whether pinning is to blame", "a batch type's own pin_memory() must not wait for anything"),
            pid=loader.process.pid,
            file=where.file,
            line=where.line,
            stalled_s=thread.last.asleep_s,
        )


def orphans(case: Case) -> Iterator[Finding]:
    if not case.orphans:
        return
    own = [each for each in case.orphans if case.exam.patient in (each.pid, each.group, each.session)]
    chosen = own or list(case.orphans)
    gpus = [each.pid for each in chosen if any(one.target.startswith("/dev/nvidia") for one in each.descriptors)]
    total = sum(each.last.memory.pss or each.last.memory.rss for each in chosen if each.last and each.last.memory)
    first = chosen[0]
    stuck = [f"pid {each.pid}: {_orphan_state(each)}" for each in chosen[:6]]
    yield Finding(
        "orphans",
        f"{plural(len(chosen), 'worker')} ({listed(f'pid {each.pid}' for each in chosen)}) outlived the loop that started "
        f"{'it' if len(chosen) == 1 else 'them'} and still hold{'s' if len(chosen) == 1 else ''} {bytes_text(total)}",
        Severity.DISEASE if own else Severity.NOTE,
        Confidence.CERTAIN,
        (*stuck, *([f"the GPU is kept open by {listed(gpus)}"] if gpus else [])),
        (
            f"end {'it' if len(chosen) == 1 else 'them'}: kill -9 {' '.join(str(each.pid) for each in chosen)}",
            "antifreeze's workers end with their parent, within a second",
        ),
        pid=first.pid,
    )


def _orphan_state(process: Process) -> str:
    waits = {wait_of(process, thread).kind for thread in process.threads}
    if WaitKind.FULL_PIPE in waits:
        return "writes into a pipe that nobody reads, and holds its reading end itself"
    wait = wait_of(process, process.main)
    return "computes" if wait.kind is WaitKind.NOTHING else f"waits for {wait.kind.value}"
