"""The machine is small or odd: shared memory, descriptors, cores, folders, standard streams."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from antifreeze.selftest.fault import BATCH, SAMPLES, Expectation, Outcome, fault
from antifreeze.selftest.trial import Numbers, Trial, row, small_shared_memory


class Large(Numbers):
    """A quarter of a megabyte or more per sample, all of it saying which sample it is."""

    def __init__(self, folder: Path, length: int = SAMPLES, numbers: int = 32_768) -> None:
        super().__init__(folder, length)
        self.numbers = numbers

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.numbers,), index, dtype=torch.int64)


def first_and_last(batch: torch.Tensor) -> list[int]:
    return batch[:, 0].tolist() if torch.equal(batch[:, 0], batch[:, -1]) else [-1]


@fault("small-shared-memory", "a /dev/shm of one megabyte", "F5, pt#5040")
def small_shm(trial: Trial) -> None:
    small_shared_memory("1m")
    trial.epoch(trial.loader(Large(trial.folder)), read=first_and_last)


@fault("no-shared-memory", "a /dev/shm of one page, and every batch kept", "F5, pt#1355")
def no_shm(trial: Trial) -> None:
    small_shared_memory("4k")
    trial.plan(range(SAMPLES))
    for batch in list(trial.loader(Large(trial.folder))):
        trial.got(batch, first_and_last)


@fault("shared-memory-files-removed", "somebody removes the files in /dev/shm while the loader runs", "FIELD 6: storage#528, pt#30225")
def shm_removed(trial: Trial) -> None:
    small_shared_memory("64m")
    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    trial.plan(range(SAMPLES))
    for batch in trial.loader(Large(trial.folder)):
        for path in Path("/dev/shm").iterdir():
            path.unlink(missing_ok=True)
        trial.got(batch, first_and_last)


@fault("few-descriptors", "ulimit -n 64, and every batch kept", "FIELD 6: pt#11201")
def few_descriptors(trial: Trial) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    trial.plan(range(400))
    for batch in list(trial.loader(trial.numbers(400))):
        trial.got(batch)


@fault("batch-above-2-gib", "a batch of more than 2 GiB", "FIELD 6: pt#1595", heavy=True, limit_s=90)
def above_2_gib(trial: Trial) -> None:
    trial.epoch(trial.loader(Large(trial.folder, BATCH, 2**26 + 2**18), num_workers=1), range(BATCH), read=first_and_last)


@fault(
    "batch-above-budget",
    "a batch larger than memory_budget is refused with the arithmetic",
    "issue 3 Memory, R5",
    Expectation((Outcome.ERROR,), "BatchTooLarge", r"\d"),
    options={"memory_budget": "1MiB"},
)
def above_budget(trial: Trial) -> None:
    trial.epoch(trial.loader(Large(trial.folder, numbers=65_536)), read=first_and_last)


@fault(
    "affinity-of-one-core",
    "the process is pinned to one core, and so are its workers",
    "FIELD 6: pt#101850, issue 3 silent traps",
    Expectation(said="core|cpu|affinity"),
)
def one_core(trial: Trial) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    trial.epoch(trial.loader(trial.numbers()))


@fault(
    "more-workers-than-cores",
    "many more workers than cores",
    "FIELD 6: inference-perf#722, R4",
    Expectation(said="core|cpu|worker processes in total"),
)
def many_workers(trial: Trial) -> None:
    trial.epoch(trial.loader(trial.numbers(), num_workers=4 * len(os.sched_getaffinity(0))))


def without_tmpdir(trial: Trial, folder: str) -> None:
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None
    trial.epoch(trial.loader(trial.numbers()))


@fault("tmpdir-missing", "TMPDIR does not exist", "pt#143471")
def tmpdir_missing(trial: Trial) -> None:
    without_tmpdir(trial, "/nowhere/at/all")


@fault("tmpdir-unwritable", "TMPDIR cannot be written to", "FIELD 6: pt#143471")
def tmpdir_unwritable(trial: Trial) -> None:
    without_tmpdir(trial, "/proc")


@fault("folder-deleted", "the current folder was deleted", "F6")
def cwd_deleted(trial: Trial) -> None:
    gone = trial.folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    shutil.rmtree(gone)
    trial.epoch(trial.loader(trial.numbers()))


@fault("stdin-closed", "descriptor 0 is closed, so the next file takes its place", "F6")
def stdin_closed(trial: Trial) -> None:
    os.close(0)
    trial.epoch(trial.loader(trial.numbers()))


@fault("stdout-closed", "descriptor 1 is closed", "F6")
def stdout_closed(trial: Trial) -> None:
    sys.stdout = None
    os.close(1)
    trial.epoch(trial.loader(trial.numbers()))


@fault("all-streams-closed", "descriptors 0, 1 and 2 are closed, as under some schedulers", "F6")
def all_closed(trial: Trial) -> None:
    sys.stdin = sys.stdout = sys.stderr = None
    os.closerange(0, 3)
    trial.epoch(trial.loader(trial.numbers()))


class Threaded(Numbers):
    """Wants the thread pool that the parent has already used."""

    def __getitem__(self, index: int) -> Any:
        torch.set_num_threads(2)
        if float(torch.ones(200_000).exp().sum()) < 1:
            raise AssertionError
        return row(index)


@fault("openmp-used-before-fork", "the parent used OpenMP's threads, then the worker does", "pt#75147, pt#45198", limit_s=30)
def openmp(trial: Trial) -> None:
    torch.set_num_threads(2)
    torch.ones(200_000).exp().sum()
    trial.epoch(trial.loader(Threaded(trial.folder)))


@fault(
    "file-size-limit",
    "ulimit -f of one megabyte",
    "F5",
    Expectation((Outcome.FINISHED, Outcome.ERROR), cause=r"ulimit|RLIMIT_FSIZE|file size limit"),
)
def file_size_limit(trial: Trial) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    trial.epoch(trial.loader(Large(trial.folder)), read=first_and_last)


@fault("address-space-limit", "ulimit -v a quarter of a gigabyte above what the process has", "F5, R1")
def address_space_limit(trial: Trial) -> None:
    has_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has_bytes + 2**28, has_bytes + 2**28))
    trial.epoch(trial.loader(Large(trial.folder)), read=first_and_last)
