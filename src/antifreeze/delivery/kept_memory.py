"""Memory of batches that the loop makes itself: kept by the C library where it would be faulted in anew for each of them.

1. A page that was given back to the kernel costs a fault when it is used again. The C library keeps what was freed at the end of its
   heap up to some megabytes; the loop that makes batches beside a worker holds several of them, and their memory grows and shrinks by
   more: 460 faults a batch of 1.5 MB were seen, with which it took three times as long.
2. So, with num_workers="auto", faults of this process are counted per batch that the loop made; where they are many, look after look,
   the C library is told once to keep freed memory (mallopt), KEPT_BYTES at most, as every worker is from its start.
   (What your own code faults in between counts too: to keep that does no harm.)
3. Not where memory_budget says that memory is scarce, nor elsewhere than with glibc; `num_workers=0` leaves the process as it is.
"""

from __future__ import annotations

from antifreeze.linux import keep_freed_memory, resource

KEPT_BYTES = 256 << 20
MANY_FAULTS, LOOKS = 64, 3
"""A batch, on average, in so many looks in a row."""


class KeptMemory:
    """`kept_because`: what was seen, once the C library was told."""

    def __init__(self, allowed: bool) -> None:
        self.kept_because = ""
        self._allowed = allowed
        self._last: tuple[int, int] | None = None
        self._bad_looks = 0

    def __repr__(self) -> str:
        return f"<KeptMemory: {self.kept_because or 'as the process has it'}>"

    def look(self, made: int) -> bool:
        """Now and then; `made`: batches in this process so far. Whether memory is kept from now on."""
        if not self._allowed:
            return False
        before, self._last = self._last, (made, resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        if before is None or made <= before[0]:
            return False
        faults = (self._last[1] - before[1]) / (made - before[0])
        self._bad_looks = self._bad_looks + 1 if faults >= MANY_FAULTS else 0
        if self._bad_looks < LOOKS:
            return False
        self._allowed = False
        self.kept_because = f"{faults:,.0f} page faults a batch" if keep_freed_memory(KEPT_BYTES) else ""
        return bool(self.kept_because)

    def look_away(self) -> None:
        """Other batches are counted from now on."""
        self._last = None
