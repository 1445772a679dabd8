"""For what happens elsewhere, in another process or thread."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], object], limit_s: float = 100.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.005)
