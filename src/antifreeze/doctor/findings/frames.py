"""Python stacks, read as a person reads them: what is the user's own, what is torch's, which sample is at hand."""

from __future__ import annotations

import re

from antifreeze.doctor.facts.model import Frame
from antifreeze.doctor.facts.names import is_library

Frames = tuple[Frame, ...]

WORKER_LOOP = ("_worker_loop", "torch/utils/data/_utils/worker.py")
FETCH = ("fetch", "torch/utils/data/_utils/fetch.py")
LOADER = "torch/utils/data/dataloader.py"
PIN_LOOP = ("_pin_memory_loop", "torch/utils/data/_utils/pin_memory.py")
OUR_PLAN = "antifreeze/plan/map_plan.py"
QUEUES = "multiprocessing/queues.py"
OUR_WORKER = ("run_worker", "antifreeze/worker/main.py")
OUR_THREAD = ("run_in_thread", "antifreeze/worker/thread.py")
OUR_POOL, OUR_INLINE, OUR_PROCESSES = (
    "antifreeze/supervisor/pool.py",
    "antifreeze/delivery/local_pool.py",
    "antifreeze/supervisor/process.py",
)


def is_users(frame: Frame) -> bool:
    return not is_library(frame.file)


def find(frames: Frames, name: str, file: str) -> Frame | None:
    return next((frame for frame in frames if frame.name == name and frame.file.endswith(file)), None)


def has(frames: Frames, name: str, file: str) -> bool:
    return find(frames, name, file) is not None


def above(frames: Frames, name: str, file: str) -> Frames:
    """The frames that this function called; all of them where it is not on the stack."""
    for position, frame in enumerate(frames):
        if frame.name == name and frame.file.endswith(file):
            return frames[:position]
    return frames


def place(frames: Frames) -> Frame | None:
    """The innermost frame of the user's own code, else the innermost one."""
    return next((frame for frame in frames if is_users(frame)), frames[0] if frames else None)


def sample_of(frames: Frames) -> str | None:
    """The index that torch's fetcher works on; a data set may have changed its own argument by now."""
    for frame in frames:
        if frame.file.endswith(FETCH[1]):
            found = frame.value("idx")
            if found is not None:
                return found
    called = [frame.value("index") for frame in reversed(frames) if frame.name in ("__getitem__", "__getitems__")]
    fetch = find(frames, *FETCH)
    together = called[0] if called else fetch.value("possibly_batched_index") if fetch else None
    return _one_of(together, called[1:]) or together


def _one_of(together: str | None, called: list[str | None]) -> str | None:
    """Samples that are asked for together, and mostly loaded one by one: the one at hand."""
    if together is None or not together.startswith("["):
        return None
    return next((index for index in called if index is not None and index in re.findall(r"-?\d+", together)), None)


def stage_of(frames: Frames) -> str:
    """Which part of the loading a worker is in, in words: what was called first decides."""
    for frame in reversed(frames):
        if frame.name in ("__getitem__", "__getitems__") and is_users(frame):
            return "in a sample"
        if "_utils/collate.py" in frame.file or (frame.name.startswith("collate") and is_users(frame)):
            return "collating"
    return "collating" if _is_collate_function(frames) else "in a sample"


def _is_collate_function(frames: Frames) -> bool:
    """What torch's map-style fetcher calls itself is the data set, or, with all samples there, the user's collate function."""
    fetch, inner = find(frames, *FETCH), above(frames, *FETCH)
    if fetch is None or not inner or not fetch.function.startswith("_MapDatasetFetcher"):
        return False
    return is_users(inner[-1]) and inner[-1].name not in ("__getitem__", "__getitems__") and fetch.value("idx") is None


def is_in_sampler(frames: Frames) -> bool:
    """The loop asks its sampler for the next indices."""
    return has(frames, "_next_index", LOADER) or any(frame.file.endswith(OUR_PLAN) for frame in frames)


def short(frame: Frame) -> str:
    """ "dataset.py:88 in read_member" """
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line} in {frame.name}"


def trace(frames: Frames, most: int = 4) -> str:
    """The user's own frames, outermost first: "train.py:12 main > data.py:88 __getitem__"."""
    own = [frame for frame in frames if is_users(frame)] or list(frames[:1])
    return " > ".join(f"{frame.file.rsplit('/', 1)[-1]}:{frame.line} {frame.name}" for frame in reversed(own[:most]))


def own_part(frames: Frames) -> Frames:
    """A forked process still shows what its parent called before the fork; that is not its own."""
    return above(frames, "_bootstrap", "multiprocessing/process.py")


def shown(frame: Frame) -> str:
    """ "torch/utils/data/dataloader.py:1291 _try_get_data": libraries by their own names, the user's files in full."""
    file = re.sub(r"^.*/(?:site-packages|dist-packages|lib/python3\.\d+)/", "", frame.file)
    return f"{file}:{frame.line} {frame.function}"
