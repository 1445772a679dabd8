"""Where one thread waits until another opens, though exceptions may fall into either at any moment: a signal's handler raises in the loop's
thread, ThreadEnded in a worker's. Python's own Event and Condition do not survive that: their lock is taken in one step and given back in
another, and what falls between the two leaves it taken for ever, or gives back one that somebody else has taken.

A gate is one lock, which is taken while it is closed; each step is one call that is done or not.
"""

from __future__ import annotations

import threading


class Gate:
    """Closed at first. One opens it, one waits; whoever came through has closed it behind him."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.close()

    def __repr__(self) -> str:
        return f"<Gate, {'closed' if self._lock.locked() else 'open'}>"

    def open(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it is

    def close(self) -> None:
        self._lock.acquire(blocking=False)

    def wait(self, limit_s: float) -> bool:
        """Whether it was opened."""
        return self._lock.acquire(timeout=max(0.0, limit_s))
