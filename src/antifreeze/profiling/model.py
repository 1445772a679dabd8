"""What was measured: plain frozen records, times in seconds, sizes in bytes, shares from 0 to 1. `schema` changes when a key does."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

SCHEMA = "antifreeze-profile/1"


class Kind(Enum):
    INLINE = "inline"
    PROCESS = "process"
    THREAD = "thread"
    TORCH = "torch"
    """torch's own DataLoader, as it is used now."""


@dataclass(frozen=True)
class Samples:
    """One sample after another, in one process, as a worker would load them."""

    times: tuple[float, ...]
    slowest: tuple[tuple[str, float], ...]
    """(index, seconds)"""
    first_s: float
    """The first one alone: imports, caches, opening."""
    cpu_share: float
    """Of the time it takes, in cores: 1 is all of it computing on one core; the rest is waiting."""
    two_threads: float | None
    """How many times as fast two threads load as one: 2 where the GIL is released, 1 where it is held; None where it could not be told."""
    sample_bytes: int
    collate_s: float
    """Per sample."""
    pickle_s: float | None
    """Per sample: pickling and unpickling the batch; None where it does not pickle."""
    slot_s: float | None
    """Per sample: our way into shared memory."""
    path: str
    """rows or parcel"""
    failed: int = 0

    def quantile(self, share: float) -> float:
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    @property
    def mean_s(self) -> float:
        return sum(self.times) / len(self.times) if self.times else 0.0


@dataclass(frozen=True)
class Trial:
    """One loader, run for a while."""

    kind: Kind
    workers: int
    batch_size: int | None
    prefetch: int | None
    rate: float
    """Samples per second."""
    spread: float
    """The standard error of the rate, as a share of it; 1 where it is not known."""
    batches: int
    seconds: float
    first_batch_s: float
    worker_pss: int | None = None
    """Bytes of one worker, on average, at the end: its fair share of what is shared, without the batches in flight."""
    growth: int | None = None
    """Bytes per 1000 samples that a worker loaded; None where it loaded too few to tell."""
    in_flight: int | None = None
    """Bytes of batches, at most."""
    fetch_s: float | None = None
    """Per sample, in the worker; as are the next two."""
    collate_s: float | None = None
    transport_s: float | None = None
    waited_share: float | None = None
    """Of the loop's time, with a step between batches."""


@dataclass(frozen=True)
class Place:
    """Where it was measured."""

    cores: int
    usable_cores: int
    memory_available: int
    python: str
    torch: str
    version: str
    taken_at: str


@dataclass(frozen=True)
class Profile:
    target: str
    dataset: str
    length: int | None
    batch_size: int | None
    arguments: tuple[tuple[str, str], ...]
    """What else the loader was given, as it would be written."""
    present_workers: int
    """As it is used now; 0 where only a data set was given, which is torch's default."""
    place: Place
    samples: Samples
    trials: tuple[Trial, ...]
    """Worker counts, each with the same batch size and depth."""
    present: Trial | None
    """torch's own loader, as it is used now."""
    depths: tuple[Trial, ...] = ()
    sizes: tuple[Trial, ...] = ()
    step_s: float | None = None
    with_steps: tuple[Trial, ...] = ()
    """With the step between batches: the recommended workers, and more where the loop waited all the same."""
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}
