"""What the user may choose beside torch's own arguments: checked once here, frozen, passed whole."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from antifreeze.errors import OptionError

BadSampleChoice = Callable[[Any, BaseException], Any]
"""Called in the parent with (index, error); returns "raise", "skip" or "replace"."""


class OnBadSample(Enum):
    RAISE = "raise"
    SKIP = "skip"
    REPLACE = "replace"


class StreamChoice(Enum):
    """How a stream without a state goes on after its worker ended, or in a resumed run."""

    REPLAY = "replay"
    CONTINUE = "continue"


class WorkerKind(Enum):
    """What a worker is."""

    PROCESS = "process"
    THREAD = "thread"
    AUTO = "auto"  # threads would do: whichever suits the samples


class UnevenChoice(Enum):
    """What happens where ranks of one process group have different numbers of batches."""

    ERROR = "error"
    TRIM = "trim"
    PAD = "pad"
    IGNORE = "ignore"


@dataclass(frozen=True)
class Options:
    """Our keyword arguments, after the door."""

    on_bad_sample: OnBadSample | BadSampleChoice = OnBadSample.RAISE
    max_bad_samples: int | float | None = None
    keep_batches_full: bool = True
    sample_timeout_s: float | None = 300.0
    stall_report_s: float | None = 30.0
    memory_budget_bytes: int | None = None
    max_restarts_per_minute: int = 30
    recycle_after_samples: int | None = None
    recycle_after_bytes: int | None = None
    hedge: bool = False
    warm_epochs: bool = True
    workers: WorkerKind = WorkerKind.PROCESS
    concurrency: int = 32
    device: str | None = None
    uneven_ranks: UnevenChoice = UnevenChoice.ERROR
    lost_stream: StreamChoice = StreamChoice.REPLAY
    story_file: str | None = None
    bad_samples_file: str | None = None
    quarantined: frozenset[str] = frozenset()

    @classmethod
    def checked(
        cls,
        *,
        on_bad_sample: Any = "raise",
        max_bad_samples: Any = None,
        keep_batches_full: Any = True,
        sample_timeout_s: Any = 300.0,
        stall_report_s: Any = 30.0,
        memory_budget: Any = None,
        max_restarts_per_minute: Any = 30,
        recycle_worker_after: Any = None,
        hedge: Any = False,
        warm_epochs: Any = True,
        workers: Any = "process",
        concurrency: Any = 32,
        device: Any = None,
        uneven_ranks: Any = "error",
        lost_stream: Any = "replay",
        story_file: Any = None,
        bad_samples_file: Any = None,
        quarantine: Any = None,
    ) -> Options:
        """From what the user gave; raises OptionError with the name of the argument."""
        kind = _one_of("workers", workers, WorkerKind)
        if kind is not WorkerKind.PROCESS and recycle_worker_after is not None and not _is_count(recycle_worker_after):
            raise OptionError(
                f"recycle_worker_after={recycle_worker_after!r}: threads have no memory of their own; give a number of samples, "
                'or say workers="process"'
            )
        return cls(
            on_bad_sample=_on_bad_sample(on_bad_sample),
            max_bad_samples=_max_bad_samples(max_bad_samples),
            keep_batches_full=_flag("keep_batches_full", keep_batches_full),
            sample_timeout_s=_seconds("sample_timeout_s", sample_timeout_s),
            stall_report_s=_seconds("stall_report_s", stall_report_s),
            memory_budget_bytes=parse_bytes("memory_budget", memory_budget),
            max_restarts_per_minute=_count("max_restarts_per_minute", max_restarts_per_minute),
            recycle_after_samples=recycle_worker_after if _is_count(recycle_worker_after) else None,
            recycle_after_bytes=None if _is_count(recycle_worker_after) else _recycle_bytes(recycle_worker_after),
            hedge=_flag("hedge", hedge),
            warm_epochs=_flag("warm_epochs", warm_epochs),
            workers=kind,
            concurrency=_positive("concurrency", concurrency),
            device=_device(device),
            uneven_ranks=_one_of("uneven_ranks", uneven_ranks, UnevenChoice),
            lost_stream=_one_of("lost_stream", lost_stream, StreamChoice),
            story_file=_path("story_file", story_file),
            bad_samples_file=_path("bad_samples_file", bad_samples_file),
            quarantined=_quarantined(_path("quarantine", quarantine), _path("bad_samples_file", bad_samples_file)),
        )

    @property
    def forgives(self) -> bool:
        """Whether a bad sample may be anything but an error."""
        return self.on_bad_sample is not OnBadSample.RAISE


OWN_DEFAULTS = {name: argument.default for name, argument in inspect.signature(Options.checked).parameters.items()}
"""What our keyword arguments are where nobody says anything."""


def _device(value: Any) -> str | None:
    """The name of a device that is here; None for the host."""
    if value is None:
        return None
    import torch  # the command line checks options without it

    try:
        device = torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f'device={value!r}: expected a torch device such as "cuda" or "cuda:1" ({str(error).splitlines()[0]})') from None
    if device.type == "cpu":
        return None
    kind = device.type.upper()
    module: Any = getattr(torch, device.type, None)  # torch.cuda, torch.xpu, …; "meta" has none
    if hasattr(module, "is_available") and not module.is_available():
        raise OptionError(f"device={value!r}: torch sees no {kind} device here; leave it out, or check torch.{device.type}.is_available()")
    if hasattr(module, "device_count") and device.index is not None and device.index >= module.device_count():
        raise OptionError(f"device={value!r}: there are {module.device_count()} {kind} devices here")
    return str(device)


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_bytes(name: str, value: int | str | None) -> int | None:
    """4096, "512MiB", "4 GB" or None."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value) if isinstance(value, str) else None
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None or not 1 <= float(match.group(1)) * unit < 2**63:
        raise OptionError(f'{name}={value!r}: expected a number of bytes above 0, such as 4_000_000_000 or "4GiB"')
    return int(float(match.group(1)) * unit)


def _recycle_bytes(value: Any) -> int | None:
    try:
        return parse_bytes("recycle_worker_after", value)
    except OptionError:
        raise OptionError(
            f'recycle_worker_after={value!r}: expected a number of samples (an int above 0), or memory such as "2GiB"'
        ) from None


def _on_bad_sample(value: Any) -> OnBadSample | BadSampleChoice:
    if callable(value) and not isinstance(value, OnBadSample):
        chosen: BadSampleChoice = value
        return chosen
    try:
        return OnBadSample(value)
    except ValueError:
        raise OptionError(f'on_bad_sample={value!r}: expected "raise", "skip", "replace" or a callable (index, error)') from None


def _max_bad_samples(value: Any) -> int | float | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    if isinstance(value, float) and 0 <= value <= 1:
        return value
    raise OptionError(f"max_bad_samples={value!r}: expected a count (an int of 0 or more) or a fraction (a float from 0 to 1)")


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e300:
        return float(value)
    raise OptionError(f"{name}={value!r}: expected seconds above 0, or None to switch it off")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _path(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, (str, os.PathLike)):
        return None if value is None else os.fspath(value)
    raise OptionError(f"{name}={value!r}: expected a path, or None")


def _quarantined(path: str | None, grows_in: str | None) -> frozenset[str]:
    """A list that this very run adds to may begin with it."""
    if path is None or (path == grows_in and not os.path.exists(path)):
        return frozenset()
    return read_quarantine(path)


def read_quarantine(path: str) -> frozenset[str]:
    """The samples that a bad_samples_file of an earlier run lists, each as the repr of its index."""
    listed = set()
    number = 0
    try:
        with open(path) as lines:
            for number, line in enumerate(lines, 1):
                record = json.loads(line)
                if not isinstance(record, dict) or "index" not in record:
                    raise OptionError(f'quarantine={path!r}: line {number} has no "index"; expected what bad_samples_file wrote')
                listed.add(str(record["index"]))
    except OSError as error:
        raise OptionError(f"quarantine={path!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        text = "is no JSON; expected what bad_samples_file wrote (a line that was cut off names a sample nobody knows: delete it)"
        raise OptionError(f"quarantine={path!r}: line {number} {text}") from None
    return frozenset(listed)


def _positive(name: str, value: Any) -> int:
    if _is_count(value):
        return int(value)
    raise OptionError(f"{name}={value!r}: expected an int above 0")


def _count(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise OptionError(f"{name}={value!r}: expected an int of 0 or more")


_Choice = TypeVar("_Choice", bound=Enum)


def _one_of(name: str, value: Any, choices: type[_Choice]) -> _Choice:
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(f'"{choice.value}"' for choice in choices)
        raise OptionError(f"{name}={value!r}: expected one of {known}") from None


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise OptionError(f"{name}={value!r}: expected True or False")
