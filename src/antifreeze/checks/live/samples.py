"""A few samples, fetched as worker 0 and as worker 1 would, each in a forked child: does it load, is it random, do workers repeat it?"""

from __future__ import annotations

import pickle
import random
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch

from antifreeze.checks.live.child import Asked, ask_child
from antifreeze.checks.live.subject import Subject
from antifreeze.torch_private import numpy_seed, swap_worker_info, worker_info

LIMIT_S = 15.0
ENOUGH_S = 4.0
MOST_SAMPLES = 6
_BASE_SEED = 20_231


@dataclass(frozen=True)
class Seen:
    """One sample."""

    index: int
    digest: int | None = None
    """Equal samples have equal ones; None where that cannot be told."""
    bytes: int = 0
    tensors: int = 0
    seconds: float = 0.0
    error: str = ""
    place: str = ""
    """Where in the user's own code the error arose: file:line."""
    is_none: bool = False
    on_gpu: bool = False


@dataclass(frozen=True)
class Look:
    """What one would-be worker got."""

    worker: int
    samples: tuple[Seen, ...] = ()
    again: Seen | None = None
    """The first sample, a second time."""
    batch_error: str = ""
    """What collating them raised."""
    ended: bool = False
    """An iterable data set was exhausted."""


def look_as_workers(subject: Subject) -> list[Asked[Look]]:
    return [ask_child(lambda number=number: _look(subject, number), LIMIT_S) for number in (0, 1)]  # type: ignore[misc]


def look_as_other_rank(subject: Subject, rank: int, world_size: int) -> Asked[Look]:
    """As worker 0 of another rank: only the child believes it."""

    def look() -> Look:
        torch.distributed.get_rank = lambda group=None: rank
        torch.distributed.get_world_size = lambda group=None: world_size
        return _look(subject, 0)

    return ask_child(look, LIMIT_S)


def _look(subject: Subject, worker: int) -> Look:
    torch.set_num_threads(1)
    workers = max(2, subject.workers)
    seed = _BASE_SEED + worker
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(numpy_seed(_BASE_SEED, worker))
    swap_worker_info(worker_info(worker, workers, _BASE_SEED, subject.dataset))
    if subject.worker_init is not None:
        subject.worker_init(worker)
    if subject.is_iterable:
        return _look_at_stream(subject, worker)
    kept: list[Any] = []
    seen = [_fetch(lambda index=index: subject.dataset[index], index, kept) for index in _soon(_indices(subject.dataset))]  # type: ignore[misc]
    again = _fetch(lambda: subject.dataset[seen[0].index], seen[0].index, []) if seen and not seen[0].error else None
    return Look(worker, tuple(seen), again, _collate(subject, kept))


def _indices(dataset: Any) -> list[int]:
    length = len(dataset) if hasattr(dataset, "__len__") else 1
    spread = [length * number // MOST_SAMPLES for number in range(MOST_SAMPLES)]
    return sorted({*spread, max(0, length - 1)}) if length else []


def _soon(indices: list[int]) -> Iterator[int]:
    deadline = time.monotonic() + ENOUGH_S
    for index in indices:
        if time.monotonic() < deadline:
            yield index


def _look_at_stream(subject: Subject, worker: int) -> Look:
    kept: list[Any] = []
    seen: list[Seen] = []
    stream = iter(subject.dataset)
    end = object()
    for number in _soon(list(range(MOST_SAMPLES))):
        before = len(kept)
        one = _fetch(lambda: next(stream, end), number, kept)
        if not one.error and kept[before] is end:
            kept.pop()
            return Look(worker, tuple(seen), None, _collate(subject, kept), ended=True)
        seen.append(one)
        if one.error:
            break
    return Look(worker, tuple(seen), None, _collate(subject, kept))


def _fetch(load: Callable[[], Any], index: int, kept: list[Any]) -> Seen:
    started = time.perf_counter()
    try:
        sample = load()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        own = [each for each in traceback.extract_tb(error.__traceback__) if "/checks/live/" not in each.filename]
        frame = next((each for each in reversed(own) if "site-packages" not in each.filename and "/lib/python" not in each.filename), frame)
        return Seen(
            index,
            error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            place=f"{frame.filename}:{frame.lineno}",
        )
    seconds = time.perf_counter() - started
    kept.append(sample)
    leaves = list(leaves_of(sample))
    return Seen(
        index,
        digest=digest(sample),
        bytes=sum(size_of(leaf) for leaf in leaves),
        tensors=sum(isinstance(leaf, (torch.Tensor, np.ndarray)) for leaf in leaves),
        seconds=seconds,
        is_none=sample is None,
        on_gpu=any(isinstance(leaf, torch.Tensor) and leaf.device.type not in ("cpu", "meta") for leaf in leaves),
    )


def _collate(subject: Subject, samples: list[Any]) -> str:
    if subject.batch_size is None or not samples or any(sample is None for sample in samples):
        return ""
    try:
        batch = subject.collate(samples)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    try:
        pickle.dumps(batch)
    except Exception as error:
        return f"unpicklable: {type(error).__name__}: {error}"
    return ""


# --- samples as data ---


def leaves_of(sample: Any, depth: int = 8) -> Iterator[Any]:
    if depth and isinstance(sample, Mapping):
        for part in sample.values():
            yield from leaves_of(part, depth - 1)
    elif depth and isinstance(sample, (list, tuple)):
        for part in sample:
            yield from leaves_of(part, depth - 1)
    elif depth and is_dataclass(sample) and not isinstance(sample, type):
        for field in fields(sample):
            yield from leaves_of(getattr(sample, field.name), depth - 1)
    else:
        yield sample


def size_of(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return leaf.nbytes if leaf.layout is torch.strided else 0
    if isinstance(leaf, np.ndarray):
        return leaf.nbytes
    if isinstance(leaf, (bytes, bytearray, str)):
        return len(leaf)
    return 8 if isinstance(leaf, (int, float, bool)) else 0


def digest(sample: Any) -> int | None:
    total = 0
    try:
        for leaf in leaves_of(sample):
            total = zlib.crc32(_bytes_of(leaf), total)
    except Exception:
        return None
    return total


def _bytes_of(leaf: Any) -> bytes:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(leaf, np.ndarray) and leaf.dtype != object:
        return leaf.tobytes()
    if hasattr(leaf, "tobytes"):
        return bytes(leaf.tobytes())
    return pickle.dumps(leaf)
