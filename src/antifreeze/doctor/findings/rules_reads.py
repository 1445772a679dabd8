"""A worker that waits for data from outside: which file, which pipe, which server, and who should send."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.doctor.facts.model import Descriptor, Process
from antifreeze.doctor.facts.names import is_remote
from antifreeze.doctor.findings.case import Case, Worker
from antifreeze.doctor.findings.cast import users_threads
from antifreeze.doctor.findings.frames import short
from antifreeze.doctor.findings.model import Confidence, Finding
from antifreeze.doctor.findings.stalls import blocked_workers, confidence_of, place_text, worker_finding
from antifreeze.doctor.findings.waits import WaitKind
from antifreeze.doctor.findings.words import command_text, listed, seconds_text

WITH_A_LIMIT = "antifreeze.DataLoader(…, sample_timeout_s=60) ends a sample that waits too long, and the run goes on"


def writers_of(descriptor: Descriptor | None, reader: Process, case: Case) -> list[str]:
    """Those beside the reader itself who could write into this pipe, or have the other end of this socket."""
    if descriptor is None:
        return []
    inode = descriptor.socket.remote_inode if descriptor.socket else descriptor.inode
    inside = [
        process
        for process in case.exam.processes
        if process.pid != reader.pid
        and any(each.inode == inode and each.writable and each.kind == descriptor.kind for each in process.descriptors)
    ]
    commands = [(process.pid, process.command) for process in inside]
    commands += [(holder.pid, holder.command) for holder in case.exam.holders if inode in holder.inodes]
    return _named(commands) if inode else []


def readers_of(descriptor: Descriptor | None, writer: Process, case: Case) -> list[str]:
    """Those beside the writer itself who could read from this pipe."""
    if descriptor is None or not descriptor.inode:
        return []
    inside = [
        process
        for process in case.exam.processes
        if process.pid != writer.pid
        and any(each.inode == descriptor.inode and each.readable and each.kind == descriptor.kind for each in process.descriptors)
    ]
    commands = [(process.pid, process.command) for process in inside]
    return _named(commands + [(holder.pid, holder.command) for holder in case.exam.holders if descriptor.inode in holder.reads])


def _named(commands: list[tuple[int, tuple[str, ...]]]) -> list[str]:
    return [f"process {pid} ({command_text(command, 50)})" for pid, command in commands]


def fifo(case: Case) -> Iterator[Finding]:
    for worker in blocked_workers(case, WaitKind.FIFO):
        writers = writers_of(worker.wait.descriptor, worker.process, case)
        path = worker.wait.file or "a named pipe"
        opening = worker.wait.call in ("open", "openat", "openat2")
        if opening:
            state, confidence = "which nobody opens to write", _confidence(worker)
        elif writers:
            state, confidence = f"which {listed(writers)} could write but does not", _confidence(worker)
        else:
            state, confidence = "which nobody else has open to write", Confidence.CERTAIN
        yield worker_finding(
            "blocked-on-fifo",
            f"{worker.name} waits for data from the named pipe {path}, {state}{place_text(worker)}",
            worker,
            case,
            confidence,
            extra=["opening a named pipe waits until its other end is opened too"] if opening else [],
            advice=["start the program that writes, or open with os.O_NONBLOCK and a limit", WITH_A_LIMIT],
        )


def pipe(case: Case) -> Iterator[Finding]:
    for worker in blocked_workers(case, WaitKind.PIPE):
        writers = writers_of(worker.wait.descriptor, worker.process, case)
        whom = f"from {listed(writers, most=2)}" if writers else "that nobody else can write to"
        yield worker_finding(
            "blocked-on-pipe",
            f"{worker.name} waits for data on a pipe {whom}{place_text(worker)}",
            worker,
            case,
            _confidence(worker) if writers else Confidence.CERTAIN,
            extra=[f"who could write: {listed(writers)}"]
            if writers
            else ["only the reader itself has the writing end: no data can ever come"],
            advice=["see why the other program does not answer (`antifreeze doctor` or `py-spy dump` on its pid)", WITH_A_LIMIT],
        )


def full_pipe(case: Case) -> Iterator[Finding]:
    for worker in blocked_workers(case, WaitKind.FULL_PIPE):
        readers = readers_of(worker.wait.descriptor, worker.process, case)
        yield worker_finding(
            "blocked-on-full-pipe",
            f"{worker.name} writes into {pipe_text(worker.wait.descriptor)}, {unread_text(readers)}{place_text(worker)}",
            worker,
            case,
            _confidence(worker) if readers else Confidence.CERTAIN,
            extra=["a pipe holds 64 KB; who writes more waits until somebody reads"],
            advice=[
                "see why the reader does not read (is it stopped, or waiting for us?); communicate() reads and writes at the same time",
                WITH_A_LIMIT,
            ],
        )


def pipe_text(descriptor: Descriptor | None) -> str:
    """Which pipe, as the user knows it."""
    number = descriptor.number if descriptor else -1
    name = {1: "its standard output, a full pipe", 2: "its standard error, a full pipe"}.get(number)
    path = f" {descriptor.target}" if descriptor and descriptor.kind == "fifo" else ""
    return name or f"the full pipe{path}" if name or path else "a full pipe"


def unread_text(readers: list[str]) -> str:
    return f"which {listed(readers, most=2)} could read but does not" if readers else "which nobody else reads"


def event_loop(case: Case) -> Iterator[Finding]:
    """asyncio and the like: the loop sleeps, and no connection is open that could wake it."""
    for worker in blocked_workers(case, WaitKind.EVENT_LOOP):
        threads = users_threads(worker.process)
        yield worker_finding(
            "blocked-in-event-loop",
            f"{worker.name} waits in its event loop for something that does not come: no connection is open{place_text(worker)}",
            worker,
            case,
            _confidence(worker),
            extra=[f"thread {thread.python_name!r} is at {short(thread.last.frames[0])}" for thread in threads if thread.last],
            advice=["give what is awaited a limit: await asyncio.wait_for(…, timeout=60)", WITH_A_LIMIT],
        )


def socket(case: Case) -> Iterator[Finding]:
    for worker in blocked_workers(case, WaitKind.SOCKET):
        descriptor = worker.wait.descriptor
        found = descriptor.socket if descriptor else None
        writers = writers_of(descriptor, worker.process, case)
        server = found.remote or found.local or "its other end" if found else "a socket"
        listens = found is not None and not found.remote and found.family != "unix"
        whom = f" ({listed(writers, most=2)})" if writers else ""
        accepts = worker.wait.call.startswith("accept")
        action = "to accept a connection on" if accepts else "for data on" if listens else "for an answer from"
        silent = "which nobody makes" if accepts else "which nobody sends to" if listens else "which sends nothing"
        yield worker_finding(
            "blocked-on-socket",
            f"{worker.name} waits {action} {server}{whom}, {silent}{place_text(worker)}",
            worker,
            case,
            _confidence(worker),
            extra=[f"connection: {found.family} {found.local} -> {found.remote} {found.state}".rstrip()] if found else [],
            advice=["set a timeout in the client (socket, requests, boto3, database driver), and try again when it strikes", WITH_A_LIMIT],
        )


def network_filesystem(case: Case) -> Iterator[Finding]:
    for worker in blocked_workers(case, WaitKind.REMOTE_FILE):
        descriptor = worker.wait.descriptor
        open_there = [each for each in worker.process.descriptors if is_remote(each.filesystem)]
        kind = descriptor.filesystem if descriptor else open_there[0].filesystem if open_there else "network"
        path = worker.wait.file or listed([each.target for each in open_there], most=2)
        yield worker_finding(
            "blocked-on-network-filesystem",
            f"{worker.name} waits for the file system ({kind}) under {path}, whose server does not answer{place_text(worker)}",
            worker,
            case,
            _confidence(worker),
            extra=_remote_evidence(worker, open_there),
            advice=[
                f"try `stat` and `head -c 100` on {path} in a shell: if that hangs too, the mount is dead (server, network, credentials)",
                "a worker in state D cannot be killed until the server answers; `soft,timeo=…` mounts (NFS) give an error instead",
                WITH_A_LIMIT,
            ],
        )


def _remote_evidence(worker: Worker, open_there: list[Descriptor]) -> list[str]:
    sample = worker.last
    lines = [f"state {sample.state}, in the kernel's {sample.wchan or 'unknown function'}()"] if sample else []
    return lines + ([f"open on network file systems: {listed((each.target for each in open_there), most=4)}"] if open_there else [])


def disk(case: Case) -> Iterator[Finding]:
    for worker in blocked_workers(case, WaitKind.DISK):
        path = f" under {worker.wait.file}" if worker.wait.file else ""
        yield worker_finding(
            "blocked-on-disk",
            f"{worker.name} waits for the disk{path}, for {seconds_text(worker.stalled_s)} now{place_text(worker)}",
            worker,
            case,
            _confidence(worker),
            extra=[f"state {worker.last.state}, in the kernel's {worker.last.wchan}()"] if worker.last else [],
            advice=["look at the disk: `dmesg | tail`, `iostat -x 1`; a failing or overloaded disk shows there"],
        )


def terminal(case: Case) -> Iterator[Finding]:
    for worker in blocked_workers(case, WaitKind.TERMINAL):
        yield worker_finding(
            "blocked-on-terminal",
            f"{worker.name} waits for {worker.wait.file or 'a terminal'}{place_text(worker)}: somebody is asked for input that never comes",
            worker,
            case,
            _confidence(worker),
            extra=[],
            advice=["a worker has no keyboard: look for input(), a debugger (breakpoint(), pdb) or a password prompt in that line"],
        )


def child_process(case: Case) -> Iterator[Finding]:
    for worker in blocked_workers(case, WaitKind.CHILD):
        children = [each for each in case.exam.processes if each.parent == worker.process.pid]
        whom = listed((f"process {each.pid} ({command_text(each.command, 50)})" for each in children), most=2)
        yield worker_finding(
            "blocked-on-child",
            f"{worker.name} waits for {whom} to end{place_text(worker)}",
            worker,
            case,
            _confidence(worker),
            extra=[f"the child is in state {each.state}" for each in children],
            advice=["give the call a limit: subprocess.run(…, timeout=60)", WITH_A_LIMIT],
        )


def elsewhere(case: Case) -> Iterator[Finding]:
    """A wait none of the others knows: still said, with all there is to say."""
    for worker in blocked_workers(case, WaitKind.OTHER):
        where = worker.last.wchan if worker.last and worker.last.wchan else "an unknown function"
        yield worker_finding(
            "blocked-elsewhere",
            f"{worker.name} waits in the kernel's {where}() and does not come back{place_text(worker)}",
            worker,
            case,
            _confidence(worker),
            extra=[],
            advice=["look at its stack below; `antifreeze doctor --native` adds the native frames"],
        )


def _confidence(worker: Worker) -> Confidence:
    return confidence_of(worker.stalled_s, worker.typical_s, quiet=True)
