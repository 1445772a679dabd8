"""One anonymous file that every process of a pool maps piece by piece.

    slot 0            slot 1            slot 2
    |■■■■■■·········|■■■·············|···············|     ■ touched, · address space only
    0               64 GiB           128 GiB

1. Slot k begins at k × SLOT_STRIDE: a slot can grow in place, and no descriptor ever has to follow the first one.
2. Memory is used only where something was written; `discard` gives it back to the system. A process that had it mapped learns that
   from the slot's age (how often it was discarded), and takes its pages anew.
3. There is no name: nothing to leak, nothing for others to delete, and the size of /dev/shm does not matter.
4. Memory that cannot be had is an OSError when pages are taken, not a bus error when they are touched.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from itertools import starmap

from antifreeze.descriptors import Held
from antifreeze.errors import DescriptorsClosed
from antifreeze.linux import keep_standard_descriptors, libc, resource

SLOT_STRIDE = 1 << 36
_ARENA_BYTES = 1 << 52
_FEW_SLOTS = 128
"""Into so many slots a file is divided whose size `ulimit -f` limits."""

_PAGE = mmap.PAGESIZE
_GROWTH_STEP = 1 << 16
_BLOCK = 1 << 21
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it yet
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01

_MAP_FAILED = ctypes.c_void_p(-1).value

Mapping = ctypes.Array[ctypes.c_ubyte]
"""The bytes of a slot, for whoever takes a buffer."""


class Arena:
    """Maps slots of the anonymous file behind `descriptor`, which it owns."""

    def __init__(self, descriptor: int, held: Held | None = None) -> None:
        """`held`: who owns the descriptor; without, it is the arena's."""
        self._held = held or Held()
        self.descriptor = descriptor if held else self._held.open(int, descriptor)
        size = os.fstat(descriptor).st_size
        self.stride = SLOT_STRIDE if size == _ARENA_BYTES else size // _FEW_SLOTS // _PAGE * _PAGE
        self._maps: dict[int, Mapping] = {}
        self._taken: dict[int, set[int]] = {}
        self._ages: dict[int, int] = {}
        self.forgotten = 0  # how often a mapping was dropped: what was made of mappings before may lack its pages
        self._let_go: weakref.finalize[[], Arena] | None = None  # of what standard descriptors stand for meanwhile

    @classmethod
    def create(cls) -> Arena:
        let_go = keep_standard_descriptors()
        held = Held()
        descriptor = held.open(os.memfd_create, "antifreeze-arena")
        soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        os.ftruncate(descriptor, _ARENA_BYTES if soft == resource.RLIM_INFINITY else min(_ARENA_BYTES, soft))
        arena = cls(descriptor, held)
        arena._let_go = weakref.finalize(arena, let_go)
        arena._let_go.atexit = False
        return arena

    def __repr__(self) -> str:
        return f"<Arena {len(self._maps)} slots mapped, {sum(map(len, self._maps.values())):,} bytes>"

    def map(self, slot: int, size_bytes: int) -> Mapping:
        """The first `size_bytes` or more of a slot; mapped once, again only when it must be larger."""
        mapped = self._maps.get(slot)
        if mapped is not None and len(mapped) >= size_bytes:
            return mapped
        if mapped is not None:
            size_bytes = max(size_bytes, len(mapped) + len(mapped) // 4)  # what grows once will grow again
        length = min(max(_GROWTH_STEP, -(-size_bytes // _PAGE) * _PAGE), self.stride)
        if length < size_bytes:
            raise OSError(
                errno.EFBIG, f"a batch of {size_bytes:,} bytes is larger than the {self.stride:,} that `ulimit -f` leaves for one"
            )
        if not self.is_whole():
            raise DescriptorsClosed("the descriptor of the loader's shared memory was closed, and may be of another file by now")
        mapped = map_shared(self.descriptor, length, slot * self.stride)
        self._maps[slot] = mapped
        self._taken[slot] = set()
        return mapped

    def take_pages(self, slot: int, begin: int, end: int) -> None:
        """Before bytes begin … end of a mapped slot are written for the first time: their pages, a block at a time, in one call each.
        That is about ten times cheaper than one fault per page, and a lack of memory is an error here, not a bus error there."""
        taken, mapped = self._taken.get(slot), self._maps.get(slot)
        if taken is None or mapped is None:
            return  # just dropped by another thread: who has it mapped may still write to it
        for block in range(begin // _BLOCK, -(-end // _BLOCK)):
            if block not in taken:
                first = block * _BLOCK
                _populate(ctypes.addressof(mapped) + first, min(_BLOCK, len(mapped) - first))
                taken.add(block)

    def mapped_bytes(self, slot: int) -> int:
        mapped = self._maps.get(slot)
        return 0 if mapped is None else len(mapped)

    def forget(self, slot: int) -> None:
        """Drops this process's mapping; it goes when the last view of it does."""
        self._maps.pop(slot, None)
        self.forgotten += 1

    def age(self, slot: int) -> int:
        return self._ages.get(slot, 0)

    def note_age(self, slot: int, age: int) -> None:
        """Another process says how often it has discarded the slot."""
        if self._ages.get(slot, 0) != age:
            self._ages[slot] = age
            self.forget(slot)

    def discard(self, slot: int) -> None:
        """Gives the slot's memory back to the system, for every process."""
        self._ages[slot] = self.age(slot) + 1
        self.forget(slot)
        offset, length = ctypes.c_longlong(slot * self.stride), ctypes.c_longlong(self.stride)
        if self.is_whole():  # a hole in somebody else's file would be his loss
            libc().fallocate64(self.descriptor, _PUNCH_HOLE_KEEP_SIZE, offset, length)

    def is_whole(self) -> bool:
        """Whether nobody else has closed its descriptor."""
        return self._held.is_whole()

    def used_bytes(self) -> int:
        return 0 if self.descriptor < 0 else os.fstat(self.descriptor).st_blocks * 512

    def close(self) -> None:
        """May be called twice."""
        self._maps.clear()
        self._held.close()
        if self._let_go is not None:
            self._let_go()
        self.descriptor = -1


def map_shared(descriptor: int, length: int, offset: int) -> Mapping:
    """Unmapped when nobody holds it or a view of it any more. (Python's own mmap keeps a descriptor for each mapping.)"""
    given = (None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, offset)
    addresses: list[int | None] = []
    mapped = None
    try:
        addresses.extend(starmap(libc().mmap, [given]))  # noted before another line of Python runs, or a signal's handler
        [address] = addresses
        if address is None or address == _MAP_FAILED:
            raise _no_memory(length)
        mapped = (ctypes.c_ubyte * length).from_address(address)
        weakref.finalize(mapped, libc().munmap, address, length).atexit = False
    except BaseException:  # of a signal's handler: who unmaps it may not be there yet
        if addresses and addresses[0] not in (None, _MAP_FAILED) and (mapped is None or not weakref.getweakrefcount(mapped)):
            libc().munmap(addresses[0], length)
        raise
    return mapped


def _populate(address: int, length: int) -> None:
    if libc().madvise(address, length, _MADV_POPULATE_WRITE) != 0 and ctypes.get_errno() in (errno.ENOMEM, errno.EFAULT):
        raise _no_memory(length)
    # any other answer is an older kernel's: pages come one by one when they are touched


def _no_memory(length: int) -> OSError:
    return OSError(errno.ENOMEM, f"cannot get {length:,} bytes of shared memory for a batch")
