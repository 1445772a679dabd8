"""Is the GIL held while samples load? A second thread wakes up every other millisecond and looks how long it must wait to run.

    ticker:  sleep … wake ─ wait for the GIL ─ run         a wait longer than an idle machine's: somebody held it

Where another core is free, a thread that needs no GIL runs at once; where the sample's code holds it, not before the interpreter
makes it let go (the switch interval), or the native call ends.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable

from antifreeze.tuning.cores import usable_cores

SWITCH_S = 0.002
_CALIBRATION_S = 0.15
_LEAST_LOOKS = 40


def gil_share(work: Callable[[], None], seconds: float) -> float | None:
    """`work` is called again and again; the share of looks at which the GIL was taken, or None where that cannot be told."""
    if usable_cores() < 2:
        return None
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        idle = _looks(lambda: time.sleep(_CALIBRATION_S), _CALIBRATION_S)
        busy = _looks(work, seconds)
    finally:
        sys.setswitchinterval(before)
    return share_of(idle, busy)


def share_of(idle: list[float], busy: list[float]) -> float | None:
    """Pure. A look counts as taken where it was later than nearly all looks at an idle interpreter."""
    if len(busy) < _LEAST_LOOKS or len(idle) < _LEAST_LOOKS // 2:
        return None
    usual = sorted(idle)[int(0.95 * (len(idle) - 1))]
    if usual > SWITCH_S / 2:  # the machine itself is too busy to tell
        return None
    late = max(2 * usual, SWITCH_S / 4)
    return sum(wait > late for wait in busy) / len(busy)


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
