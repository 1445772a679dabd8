"""Inside the program: what a fault program uses to make the loader, count what came, and leave."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from antifreeze.selftest.fault import BATCH, SAMPLES, SICK, Fault, Sickness, Variant

Sample = torch.Tensor
LOADERS = {"torch": "torch.utils.data:DataLoader", "antifreeze": "antifreeze:DataLoader"}
OURS_ONLY = ["sample_timeout_s", "stall_report_s", "on_bad_sample", "max_restarts_per_minute", "memory_budget", "max_bad_samples"]
_OWN_HELPERS = ("resource_tracker", "multiprocessing.forkserver")
"""Helpers of Python's multiprocessing that live until the interpreter ends, by its design."""


class NotHere(Exception):
    """This machine cannot show the fault; the text says why."""


def row(index: int) -> Sample:
    """A sample that proves itself: the second number follows from the first."""
    return torch.tensor([index, index * index + 7])


class Numbers(Dataset[Any]):
    """The healthy data set."""

    def __init__(self, folder: Path, length: int = SAMPLES) -> None:
        self.folder = folder
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return row(index)


class Sick(Numbers):
    """Healthy but for one sample."""

    def __init__(self, folder: Path, sickness: Sickness) -> None:
        super().__init__(folder)
        self.sickness = sickness

    def __getitem__(self, index: int) -> Any:
        if index != SICK:
            return row(index)
        result = self.sickness(self.folder)
        return row(index) if result is None else result


def first_time(folder: Path, name: str = "once") -> bool:
    """True for one caller in all processes."""
    try:
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def footprint() -> dict[str, dict[Any, str]]:
    """What this process holds of the system, by kind: asked before the loader is made, and after it is gone."""
    helpers = {pid for pid in children_of(os.getpid()) if any(name in command_of(pid) for name in _OWN_HELPERS)}
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    shared = [line for line in lines if len(line) == 6 and line[5].startswith(("/memfd:", "/dev/shm/"))]
    return {
        "processes": {pid: command_of(pid) for pid in children_of(os.getpid()) if pid not in helpers},
        "descriptors": _descriptors(len(helpers)),
        "mappings": {line[0]: line[5] for line in shared},
        "threads": {thread.ident: thread.name for thread in threading.enumerate()},
    }


def _descriptors(of_helpers: int) -> dict[Any, str]:
    """A helper of multiprocessing has one pipe in its parent, which is the first new one that a pipe's name fits."""
    found: dict[Any, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    pipes = [number for number, target in found.items() if number > 2 and target.startswith("pipe:")]
    for number in pipes[1 : 1 + of_helpers]:  # the first is where the trial writes its records
        del found[number]
    return found


def beyond(now: dict[str, dict[Any, str]], earlier: dict[str, dict[Any, str]]) -> dict[str, list[str]]:
    new = {kind: [what for key, what in held.items() if earlier[kind].get(key) != what] for kind, held in now.items()}
    return {kind: held for kind, held in new.items() if held}


def children_of(pid: int) -> list[int]:
    """The living children of a process."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if int(parent) == pid and state not in "ZX":
                found.append(int(entry))
    return found


def command_of(pid: int) -> str:
    try:
        program, *words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        return " ".join([Path(program).name, *words])  # where it is installed is nobody's business
    except OSError:
        return ""


class Trial:
    """One run of one program with one loader class."""

    def __init__(self, fault: Fault, loader: str, variant: Variant, folder: Path, records: int) -> None:
        module, _, name = LOADERS.get(loader, loader).partition(":")
        self.loader_class: Any = getattr(importlib.import_module(module), name)
        self.fault = fault
        self.variant = variant
        self.folder = folder
        self.ours = loader != "torch"
        self.kept: list[Any] = []
        """What the program takes with it into the interpreter's exit."""
        self._records = records
        self._marked_s = time.monotonic()

    # -- making -------------------------------------------------------------------------------------------------------
    def loader(self, dataset: Any, **arguments: Any) -> Any:
        """The loader under test: two workers, batches of four, unless the program says otherwise."""
        return self.loader_class(dataset, **self.arguments(**arguments))

    def arguments(self, **given: Any) -> dict[str, Any]:
        chosen: dict[str, Any] = {"num_workers": 2}
        if not {"batch_size", "batch_sampler"} & set(given):
            chosen["batch_size"] = BATCH
        chosen.update(given)
        if self.ours:
            chosen.update(self.fault.options_for(self.variant))
        return chosen

    def numbers(self, length: int = SAMPLES) -> Numbers:
        return Numbers(self.folder, length)

    def sick(self, sickness: Sickness) -> Sick:
        return Sick(self.folder, sickness)

    # -- consuming ----------------------------------------------------------------------------------------------------
    def epoch(
        self,
        loader: Iterable[Any],
        plan: Iterable[Any] = range(SAMPLES),
        batches: int | None = None,
        read: Callable[[Any], Sequence[Any]] | None = None,
    ) -> None:
        """Take one epoch, or its first batches; `plan` says which samples it owes."""
        owed = list(plan)
        self.plan(owed if batches is None else owed[: batches * BATCH])
        iterator = iter(loader)
        try:
            self.drain(iterator, batches, read)
        finally:
            self.report(loader)

    def drain(self, iterator: Any, batches: int | None = None, read: Callable[[Any], Sequence[Any]] | None = None) -> None:
        taken = 0
        while batches is None or taken < batches:
            try:
                batch = next(iterator)
            except StopIteration:
                break
            self.got(batch, read)
            taken += 1

    def plan(self, samples: Iterable[Any]) -> None:
        self._write(plan=list(samples))

    def got(self, batch: Any, read: Callable[[Any], Sequence[Any]] | None = None) -> None:
        self._write(got=list(read(batch) if read else self.samples_in(batch)))
        self.mark()

    def samples_in(self, batch: Any) -> list[Any]:
        """The indices in a batch of rows; a row that does not prove itself is wrong data."""
        if not isinstance(batch, torch.Tensor) or batch.dim() != 2:
            self.wrong(f"not a batch of rows: {str(batch)[:200]}")
            return []
        found = batch.tolist()
        for pair in found:
            if len(pair) != 2 or pair[1] != pair[0] * pair[0] + 7:
                self.wrong(f"the row {pair}")
        return [pair[0] for pair in found]

    def wrong(self, what: str) -> None:
        self._write(wrong=what)

    def report(self, loader: Any) -> None:
        if hasattr(loader, "report"):
            self._write(report=_ends(str(loader.report()), 50_000))

    def caught(self, error: BaseException, lost: Iterable[Any]) -> None:
        """The program caught an error and goes on; `lost` is what the failed batch held."""
        self._write(caught=describe(error), excused=list(lost))
        self.mark()

    def failed(self, error: BaseException) -> None:
        self._write(error=describe(error))
        self.mark()

    # -- being disturbed ----------------------------------------------------------------------------------------------
    def ask_signal(self, number: signal.Signals, after_s: float, group: bool = False) -> None:
        """Let the warden send it: from outside, as a terminal or a scheduler does."""
        self._write(signal=int(number), after_s=after_s, group=group)

    def workers(self) -> list[int]:
        """Whoever has no children among our descendants: a worker, never the server that starts workers."""
        family = children_of(os.getpid())
        for pid in family:
            family.extend(children_of(pid))
        return [pid for pid in family if not children_of(pid) and not any(name in command_of(pid) for name in _OWN_HELPERS)]

    def mark(self) -> None:
        """From here the clock for stopping runs."""
        self._marked_s = time.monotonic()

    # -- the whole run ------------------------------------------------------------------------------------------------
    def run(self) -> None:
        before = footprint()
        started_s = time.monotonic()
        error: BaseException | None = None
        try:
            self.fault.program(self)
        except NotHere as why:
            self._write(not_here=str(why))
        except Exception as raised:
            error = raised
            self.failed(raised)
        except BaseException as raised:
            if self.fault.uncaught:
                raise
            self.failed(raised)
        if error is not None:
            error.__traceback__ = None
            error = None
        left = {} if self.kept else self._left_behind(before)
        now_s = time.monotonic()
        self._write(end=True, left=left, loop_s=now_s - started_s, stop_s=now_s - self._marked_s)

    def _left_behind(self, before: dict[str, dict[Any, str]], within_s: float = 3.0) -> dict[str, list[str]]:
        deadline_s = time.monotonic() + within_s
        while True:
            gc.collect()
            left = beyond(footprint(), before)
            if not left or time.monotonic() > deadline_s:
                return left
            time.sleep(0.02)

    def _write(self, **record: Any) -> None:
        data = json.dumps(record).encode() + b"\n"
        while data:
            data = data[os.write(self._records, data) :]


def describe(error: BaseException) -> dict[str, str]:
    """Type and text as the user reads them at the end of a traceback, causes included."""
    texts: list[str] = []
    one: BaseException | None = error
    while one is not None and len(texts) < 5:
        texts.append("".join(traceback.format_exception_only(type(one), one)))
        one = one.__cause__
    types = [kind.__name__ for kind in type(error).__mro__ if kind is not object]
    return {"type": type(error).__name__, "types": " ".join(types), "text": _ends("\n".join(texts))}


def _ends(text: str, most: int = 4000) -> str:
    return text if len(text) <= 2 * most else f"{text[:most]} … {text[-most:]}"


def small_shared_memory(size: str = "1m") -> None:
    """Give this process, and no other, a /dev/shm of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, new_users, private, recursive = 0x20000, 0x10000000, 1 << 18, 1 << 14
    user, group = os.getuid(), os.getgid()
    if libc.unshare(new_mounts) != 0:
        if libc.unshare(new_mounts | new_users) != 0:
            raise NotHere("needs the right to mount (root, or user namespaces)")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    libc.mount(b"none", b"/", None, private | recursive, None)
    if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={size}".encode()) != 0:
        raise NotHere(f"could not mount a small /dev/shm: {os.strerror(ctypes.get_errno())}")
