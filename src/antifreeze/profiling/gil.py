"""Is the GIL held while samples load? A second thread wakes up every other millisecond and looks how long it must wait to run.

    ticker:  sleep … wake ─ wait for the GIL ─ run         a wait longer than an idle machine's: somebody held it

Where another core is free, a thread that needs no GIL runs at once; where the sample's code holds it, not before the interpreter
makes it let go (the switch interval), or the native call ends. A loop in plain Python, which always holds it, is the proof that
this machine can tell; on one that is too busy nothing is claimed.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable

from antifreeze.tuning.cores import usable_cores

SWITCH_S = 0.005
_CALIBRATION_S = 0.3
_LEAST_LOOKS = 30
_PROVEN = 0.8


def gil_share(work: Callable[[], None], seconds: float) -> float | None:
    """`work` is called again and again; the share of looks at which the GIL was taken, or None where that cannot be told."""
    if usable_cores() < 2:
        return None
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        idle = _looks(lambda: time.sleep(_CALIBRATION_S), _CALIBRATION_S)
        held = _looks(_count, _CALIBRATION_S)
        busy = _looks(work, seconds)
    finally:
        sys.setswitchinterval(before)
    return share_of(idle, held, busy)


def share_of(idle: list[float], held: list[float], busy: list[float]) -> float | None:
    """Pure. A look counts as taken where it was later than nearly all looks at an idle interpreter."""
    if len(busy) < _LEAST_LOOKS or min(len(idle), len(held)) < _LEAST_LOOKS // 2:
        return None
    late = max(1.5 * sorted(idle)[int(0.9 * (len(idle) - 1))], 0.0001)
    if sum(wait > late for wait in held) < _PROVEN * len(held):  # where it is surely held, we would not see it
        return None
    return sum(wait > late for wait in busy) / len(busy)


def _count() -> None:
    sum(range(1000))  # some 10 µs that hold it


def _looks(work: Callable[[], None], seconds: float) -> list[float]:
    waits: list[float] = []
    done = threading.Event()
    ticker = threading.Thread(target=_tick, args=(waits, done), daemon=True)
    ticker.start()
    deadline = time.perf_counter() + seconds
    try:
        while time.perf_counter() < deadline:
            work()
    finally:
        done.set()
        ticker.join(timeout=1)
    return waits


def _tick(waits: list[float], done: threading.Event) -> None:
    chance = random.Random(0)  # its own: the data set's numbers are not to be drawn from
    while not done.is_set():
        pause_s = 0.001 + 0.001 * chance.random()
        began = time.perf_counter()
        time.sleep(pause_s)
        waits.append(time.perf_counter() - began - pause_s)
