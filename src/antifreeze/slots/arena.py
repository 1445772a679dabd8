"""One anonymous file that every process of a pool maps piece by piece.

    slot 0            slot 1            slot 2
    |■■■■■■·········|■■■·············|···············|     ■ touched, · address space only
    0               64 GiB           128 GiB

1. Slot k begins at k × SLOT_STRIDE: a slot can grow in place, and no descriptor ever has to follow the first one.
2. Memory is used only where something was written; `discard` gives it back to the system.
3. There is no name: nothing to leak, nothing for others to delete, and the size of /dev/shm does not matter.
4. Memory that cannot be had is an OSError when a slot is mapped, not a bus error when it is touched.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import weakref

SLOT_STRIDE = 1 << 36
_ARENA_BYTES = 1 << 52
_PAGE = mmap.PAGESIZE
_GROWTH_STEP = 1 << 16
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it yet
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01

_libc = ctypes.CDLL(None, use_errno=True)


class Arena:
    """Maps slots of the anonymous file behind `descriptor`, which it owns."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._maps: dict[int, mmap.mmap] = {}
        self._closer = weakref.finalize(self, os.close, descriptor)
        self._closer.atexit = False

    @classmethod
    def create(cls) -> Arena:
        descriptor = os.memfd_create("antifreeze-arena")
        soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        os.ftruncate(descriptor, _ARENA_BYTES if soft == resource.RLIM_INFINITY else min(_ARENA_BYTES, soft))
        return cls(descriptor)

    def __repr__(self) -> str:
        return f"<Arena {len(self._maps)} slots mapped, {sum(map(len, self._maps.values())):,} bytes>"

    def map(self, slot: int, size_bytes: int) -> mmap.mmap:
        """The first `size_bytes` or more of a slot; mapped once, again only when it must be larger."""
        mapped = self._maps.get(slot)
        if mapped is not None and len(mapped) >= size_bytes:
            return mapped
        if mapped is not None:
            size_bytes = max(size_bytes, len(mapped) + len(mapped) // 4)  # what grows once will grow again
        length = max(_GROWTH_STEP, -(-size_bytes // _PAGE) * _PAGE)
        mapped = mmap.mmap(self.descriptor, length, offset=slot * SLOT_STRIDE)
        populate(mapped)
        self._maps[slot] = mapped
        return mapped

    def mapped_bytes(self, slot: int) -> int:
        mapped = self._maps.get(slot)
        return 0 if mapped is None else len(mapped)

    def forget(self, slot: int) -> None:
        """Drops this process's mapping; it goes when the last view of it does."""
        self._maps.pop(slot, None)

    def discard(self, slot: int) -> None:
        """Gives the slot's memory back to the system, for every process."""
        self.forget(slot)
        offset, length = ctypes.c_longlong(slot * SLOT_STRIDE), ctypes.c_longlong(SLOT_STRIDE)
        _libc.fallocate64(self.descriptor, _PUNCH_HOLE_KEEP_SIZE, offset, length)

    def used_bytes(self) -> int:
        return os.fstat(self.descriptor).st_blocks * 512

    def close(self) -> None:
        """May be called twice."""
        self._maps.clear()
        self._closer()
        self.descriptor = -1


def populate(mapped: mmap.mmap) -> None:
    """Takes every page now, in one call: about ten times cheaper than one fault each, and a lack of memory is an error here."""
    try:
        mapped.madvise(_MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno in (errno.ENOMEM, errno.EFAULT):
            raise OSError(errno.ENOMEM, f"cannot get {len(mapped):,} bytes of shared memory for a batch") from None
        # an older kernel: pages come one by one when they are touched
