"""One row per process, for people: who it is, what it does, what it costs. Text and page show the same rows."""

from __future__ import annotations

from dataclasses import dataclass

from antifreeze.doctor.facts.model import Examination, Process
from antifreeze.doctor.findings.case import Case, Doing, LoaderCase, Worker
from antifreeze.doctor.findings.frames import Frames, place, short
from antifreeze.doctor.findings.waits import Wait, WaitKind, wait_of
from antifreeze.doctor.findings.words import bytes_text, command_text, exit_text


@dataclass(frozen=True)
class ProcessRow:
    pid: int
    who: str
    doing: str
    where: str
    cpu_share: float
    delayed_share: float
    private: int | None
    shared: int | None
    """Its fair part of what it shares with others."""
    asleep_s: float | None
    command: str
    is_thread: bool = False
    """Its memory is its process's."""

    @property
    def sizes(self) -> tuple[str, str]:
        return ("", "") if self.is_thread else (bytes_text(self.private), bytes_text(self.shared))

    @property
    def memory(self) -> int:
        return (self.private or 0) + (self.shared or 0)


def process_rows(case: Case) -> list[ProcessRow]:
    """Loops with their workers first, then whatever else is in the tree."""
    order = [process for loader in case.loaders for process in (loader.process, *(worker.process for worker in loader.workers))]
    rest = [process for process in (*case.exam.processes, *case.orphans) if process not in order]
    rows = []
    for process in dict.fromkeys((*order, *rest)):
        rows.append(_row(process, case))
        rows += [_thread_row(worker) for worker in case.workers if worker.threaded and worker.process is process]
    return rows


def _thread_row(worker: Worker) -> ProcessRow:
    thread, window_s = worker.thread, worker.process.window_s
    idle = worker.doing is Doing.IDLE
    return ProcessRow(
        pid=thread.tid if thread else worker.process.pid,
        who=f"worker {worker.number} (thread)",
        doing=f"{worker.doing.value}{f' sample {worker.sample}' if worker.sample else ''}",
        where=short(worker.place) if worker.place and not idle else "",
        cpu_share=thread.cpu_share(window_s) if thread else 0.0,
        delayed_share=thread.delayed_share(window_s) if thread else 0.0,
        private=None,
        shared=None,
        asleep_s=worker.last.asleep_s if worker.last else None,
        command="",
        is_thread=True,
    )


def _row(process: Process, case: Case) -> ProcessRow:
    loader = next((each for each in case.loaders if each.process.pid == process.pid), None)
    worker = next((each for each in case.workers if each.process.pid == process.pid and not each.is_loop), None)
    private, shared = _memory(process)
    return ProcessRow(
        pid=process.pid,
        who=_who(process, loader, worker, case),
        doing=_doing(process, loader, worker),
        where=_where(process, loader, worker),
        cpu_share=process.cpu_share,
        delayed_share=process.delayed_share,
        private=private,
        shared=shared,
        asleep_s=process.main.last.asleep_s if process.main and process.main.last else None,
        command=command_text(process.command) or process.name,
    )


def _who(process: Process, loader: LoaderCase | None, worker: Worker | None, case: Case) -> str:
    if process in case.orphans:
        return "orphan"
    if loader is not None:
        return "loop" if process.rank is None else f"loop, rank {process.rank}"
    if worker is not None:
        return "worker" if worker.number is None else f"worker {worker.number}"
    if process.state == "Z":
        return "dead"
    return "helper" if any("multiprocessing." in word for word in process.command) else "other"


def _doing(process: Process, loader: LoaderCase | None, worker: Worker | None) -> str:
    if process.state == "Z":
        return exit_text(process.exit_status)
    if loader is not None:
        return loader.loop.value
    wait = worker.wait if worker else wait_of(process, process.main)
    if worker is not None and wait.kind is not WaitKind.STOPPED:
        return f"{worker.doing.value}{f' sample {worker.sample}' if worker.sample else ''}"
    return waiting_text(wait)


def waiting_text(wait: Wait) -> str:
    if wait.kind is WaitKind.NOTHING:
        return "runs"
    return f"waits for {wait.kind.value}{f' ({wait.call})' if wait.call else ''}"


def _where(process: Process, loader: LoaderCase | None, worker: Worker | None) -> str:
    frames: Frames = process.main.last.frames if process.main and process.main.last else ()
    frame = loader.place if loader else worker.place if worker else place(frames)
    idle = worker is not None and worker.doing is Doing.IDLE
    return short(frame) if frame and not idle else ""


def _memory(process: Process) -> tuple[int | None, int | None]:
    memory = process.last.memory if process.last else None
    if memory is None:
        return None, None
    if memory.pss is None or memory.private is None:
        return memory.anonymous, memory.file + memory.shared
    return memory.private, max(0, memory.pss - memory.private)


def title(exam: Examination) -> str:
    process = exam.process(exam.patient)
    command = f" ({command_text(process.command, 60)})" if process and process.command else ""
    asked = f", asked about {exam.asked}" if exam.asked not in (0, exam.patient) else ""
    return f"process {exam.patient}{command}{asked}"
