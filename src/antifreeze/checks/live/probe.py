"""All probes of one live object, in order: what it holds, what a worker would copy, what a few samples tell, what the machine has."""

from __future__ import annotations

import inspect
import multiprocessing.synchronize
import threading
from collections.abc import Iterator
from typing import Any

import torch

from antifreeze.checks.code.all_rules import code_findings
from antifreeze.checks.code.program import follow_imports
from antifreeze.checks.code.source import read_source
from antifreeze.checks.errors import NotCheckable
from antifreeze.checks.live import findings
from antifreeze.checks.live.objects import measure_copies
from antifreeze.checks.live.pickling import pickled_bytes, unpicklable_path
from antifreeze.checks.live.samples import Look, look_as_other_rank, look_as_workers
from antifreeze.checks.live.subject import Subject
from antifreeze.checks.machine import Needs, Surroundings, machine_findings
from antifreeze.delivery.traps import is_generator, is_handle, kind_of, walk
from antifreeze.doctor.facts.names import is_library
from antifreeze.doctor.findings.model import Confidence, Finding, Severity, finding

LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore, threading.Event)
SHARED_LOCKS = (multiprocessing.synchronize.SemLock, multiprocessing.synchronize.Condition)
OF_THE_CLASS = ("data-loaded-in-init", "none-for-a-bad-sample", "loop-without-limit", "read-without-limit", "cuda-in-worker")
"""Rules over the code that need to know only the class."""


def probe(subject: Subject, here: Surroundings, *, fetch: bool = True) -> Iterator[Finding]:
    if subject.workers and not subject.is_pipe:
        yield from _held(subject)
    yield from code_of(type(subject.dataset))
    if subject.workers:
        yield from _cost_of_workers(subject, here)
    look = None
    if fetch:
        asked = look_as_workers(subject)
        yield from findings.samples(subject, asked, None if _has_handles(subject) else _generators(subject))
        look = asked[0].answer
        if look is not None:
            yield from _other_rank(subject, look)
    else:
        yield from _unasked_generators(_generators(subject))
    if subject.is_shuffled and subject.batch_size == 1:
        advice = ["give batch_size=; `antifreeze profile` shows what each size costs"]
        note = {"severity": Severity.NOTE, "confidence": Confidence.POSSIBLE}
        yield finding("batch-size-one", "a shuffled loader with a batch size of 1", evidence=[], advice=advice, **note)  # type: ignore[arg-type]
    if subject.has_loader:
        yield from machine_findings(here, _needs(subject, look))


def _held(subject: Subject) -> Iterator[Finding]:
    """Handles, generators and locks that a worker inherits, by their paths."""
    forks = not subject.starts_fresh
    for path, value in walk(subject.dataset, "dataset"):
        kind = kind_of(value)
        if forks and is_handle(value):
            yield finding(
                "handle-opened-before-fork",
                f"{path} ({kind}) was opened before the workers are forked: they share its position, locks or connection",
                evidence=[f"found in the live object at {path}"],
                advice=["open it in the worker, on first use in __getitem__: shared handles give wrong data, or hang"],
            )
        elif isinstance(value, SHARED_LOCKS):
            yield _lock(path, kind, "all workers share", Confidence.LIKELY)
        elif forks and isinstance(value, LOCKS):
            held = bool(getattr(value, "locked", lambda: False)())
            whose = "is locked now, and will be for ever in" if held else "is copied into"
            yield _lock(path, kind, f"{whose} every worker", Confidence.CERTAIN if held else Confidence.POSSIBLE)


def _generators(subject: Subject) -> list[str]:
    """Random generators that a worker inherits, by their paths."""
    if subject.is_pipe or subject.worker_init is not None or subject.workers < 2:
        return []
    return [f"{path} ({kind_of(value)})" for path, value in walk(subject.dataset, "dataset") if is_generator(value)]


def _has_handles(subject: Subject) -> bool:
    return any(is_handle(value) for _, value in walk(subject.dataset, "dataset"))


def _unasked_generators(paths: list[str]) -> Iterator[Finding]:
    for path in paths:
        yield finding(
            "random-numbers-repeated",
            f"{path} is a random generator made before the workers start: if samples draw from it, all workers draw the same",
            evidence=["no sample was fetched, so this was not tried"],
            advice=["use the global generators, or make it in worker_init_fn from torch.initial_seed()"],
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
        )


def _lock(path: str, kind: str, what: str, sure: Confidence) -> Finding:
    return finding(
        "lock-in-dataset",
        f"{path} ({kind}) is a lock that {what}",
        evidence=["a lock that is held while a worker is forked, or whose holder is killed, is never opened again"],
        advice=["leave it out: reading files from several processes needs no lock"],
        confidence=sure,
    )


def _cost_of_workers(subject: Subject, here: Surroundings) -> Iterator[Finding]:
    if not subject.starts_fresh:
        measured = measure_copies(subject.dataset)
        yield from findings.copies(subject, measured.answer or (), here.memory_available)
        return
    parts = {"dataset": subject.dataset, "collate_fn": subject.collate, "worker_init_fn": subject.worker_init}
    if subject.is_ours:  # sent by cloudpickle, which takes more
        parts = {}
    culprit = next((path for name, part in parts.items() if (path := unpicklable_path(part, name)) is not None), None)
    yield from findings.pickling(subject, culprit, None if culprit else pickled_bytes(subject.dataset) if parts else None)


def _other_rank(subject: Subject, look: Look) -> Iterator[Finding]:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    world_size = torch.distributed.get_world_size() if distributed else 1
    if not subject.is_iterable or world_size < 2 or _speaks_of_ranks(subject.dataset):
        return
    other = look_as_other_rank(subject, (torch.distributed.get_rank() + 1) % world_size, world_size)
    if other.answer is not None:
        yield from findings.ranks(subject, look, other.answer)


def _speaks_of_ranks(dataset: Any) -> bool:
    """It may have taken its part when it was made: then asking again tells nothing."""
    words = [*vars(dataset)] if hasattr(dataset, "__dict__") else []
    try:
        words.append(inspect.getsource(type(dataset)))
    except (OSError, TypeError):
        pass
    return any(word in text for text in words for word in ("rank", "world", "shard"))


def _needs(subject: Subject, look: Look | None) -> Needs:
    seen = [each for each in look.samples if not each.error] if look else []
    if not seen or not subject.batch_size or not subject.workers:
        return Needs(subject.workers, subject.is_ours)
    in_flight = subject.workers * subject.prefetch
    largest = max(each.bytes for each in seen)
    tensors = max(max(each.tensors, 1) for each in seen)
    return Needs(subject.workers, subject.is_ours, largest * subject.batch_size * in_flight, tensors * in_flight)


def code_of(kind: type) -> Iterator[Finding]:
    """The rules over the code, for the class's own lines; somebody else's library is not judged."""
    try:
        file = inspect.getsourcefile(kind)
        lines, first = inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return
    if file is None or is_library(file):
        return
    try:
        program = follow_imports(read_source(file))
    except NotCheckable:
        return
    for each in code_findings(program):
        if each.code in OF_THE_CLASS and each.file == file and first <= (each.line or 0) < first + len(lines):
            yield each
