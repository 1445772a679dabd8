"""Is the GIL held while samples load? Two threads load them beside each other, and then one alone: twice as fast, or no faster.

That is what the answer is for: whether threads would do. Whether this machine has a second core to show it just now is seen by the same
question about work that surely releases the GIL; where even that gains nothing, nothing is claimed.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable

RELEASED, HELD = 1.7, 1.3
_PROOF, _CREDIBLE = 1.5, 2.6
_ROUNDS = 3
_SOME = bytes(1 << 18)

Work = Callable[[], object]


def two_threads(make: Callable[[], Work], seconds: float) -> float | None:
    """How many times as fast as one; `make` gives each thread its own work. Raises what the work raises."""
    speed = _speedup(make, seconds / 2)
    return believed(speed, _speedup(lambda: lambda: zlib.crc32(_SOME), seconds / 4) if speed < _PROOF else None)


def believed(speed: float, proof: float | None) -> float | None:
    """Pure: little gain means something only where work without the GIL gains more; and two cannot be three times one."""
    if speed > _CREDIBLE:
        return None
    return speed if proof is None or proof >= _PROOF else None


def gil_text(speed: float | None) -> str:
    if speed is None:
        return "whether the GIL is held could not be told (too little time, or no second core to spare)"
    how = "released" if speed >= RELEASED else "held" if speed <= HELD else "held for a part"
    return f"the GIL is {how} (two threads load {speed:.1f} × as fast as one)"


def _speedup(make: Callable[[], Work], seconds: float) -> float:
    """In turns, and the best of each: whatever else runs on the machine can only slow it down."""
    one = two = 0.0
    for _ in range(_ROUNDS):
        one = max(one, _rate([make()], seconds / _ROUNDS / 2))
        two = max(two, _rate([make(), make()], seconds / _ROUNDS / 2))
    return two / one if one else 1.0


def _rate(works: list[Work], seconds: float) -> float:
    counts, failures = [0] * len(works), list[BaseException]()
    deadline = time.perf_counter() + seconds

    def repeat(number: int) -> None:
        try:
            while time.perf_counter() < deadline:
                works[number]()
                counts[number] += 1
        except BaseException as error:
            failures.append(error)

    began = time.perf_counter()
    threads = [threading.Thread(target=repeat, args=(number,), daemon=True) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(counts) / (time.perf_counter() - began)
