"""The arena: memory without a name, taken when mapped, given back when discarded."""

from __future__ import annotations

import _thread
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antifreeze.linux import libc
from antifreeze.slots import arena as module
from antifreeze.slots.arena import SLOT_STRIDE, Arena

PAGE = os.sysconf("SC_PAGE_SIZE")
STEP = 1 << 16
BLOCK = 1 << 21


def view(mapped: Any) -> memoryview:
    """The bytes behind whatever a mapping is."""
    return memoryview(mapped).cast("B")


def read(mapped: Any, begin: int, end: int) -> bytes:
    return bytes(view(mapped)[begin:end])


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create()
    yield arena
    arena.close()


def test_a_slot_is_mapped_once_and_again_only_when_it_must_be_larger(arena: Arena) -> None:
    first = arena.map(0, 10)
    assert arena.map(0, STEP) is first
    assert arena.mapped_bytes(0) == len(first) == STEP
    larger = arena.map(0, STEP + 1)
    assert larger is not first
    assert arena.mapped_bytes(0) >= STEP + PAGE
    assert (arena.mapped_bytes(1), arena.map(0, STEP + 1)) == (0, larger)


def test_what_was_written_is_there_in_the_larger_mapping_and_in_the_old_one(arena: Arena) -> None:
    first = arena.map(3, 10)
    view(first)[:5] = b"early"
    larger = arena.map(3, 10 * STEP)
    view(larger)[5:10] = b" late"
    assert read(larger, 0, 10) == read(first, 0, 10) == b"early late"


def test_slots_do_not_touch(arena: Arena) -> None:
    for slot in range(4):
        view(arena.map(slot, STEP))[:] = bytes([slot + 1]) * STEP
    assert [bytes(view(arena.map(slot, STEP))) for slot in range(4)] == [bytes([slot + 1]) * STEP for slot in range(4)]


def test_every_process_with_the_descriptor_sees_the_same(arena: Arena) -> None:
    other = Arena(os.dup(arena.descriptor))
    view(arena.map(7, 10))[:2] = b"hi"
    assert read(other.map(7, 10), 0, 2) == b"hi"
    other.close()


def test_discarding_gives_the_memory_back_for_everybody(arena: Arena) -> None:
    other = Arena(os.dup(arena.descriptor))
    held = other.map(1, 8 * STEP)
    view(held)[:] = b"x" * len(held)
    view(arena.map(0, STEP))[:] = b"x" * STEP
    assert arena.used_bytes() == 9 * STEP
    arena.discard(1)
    assert arena.used_bytes() == STEP
    assert read(held, 0, 4) == bytes(4)
    assert arena.mapped_bytes(1) == 0
    other.close()


def test_forgetting_keeps_the_memory(arena: Arena) -> None:
    view(arena.map(0, 10))[:2] = b"hi"
    arena.forget(0)
    assert (arena.mapped_bytes(0), arena.used_bytes()) == (0, PAGE)
    assert read(arena.map(0, 10), 0, 2) == b"hi"


def test_pages_are_taken_before_they_are_written_to_a_block_at_a_time(arena: Arena) -> None:
    arena.map(5, 3 * BLOCK)
    assert arena.used_bytes() == 0
    arena.take_pages(5, BLOCK + 10, BLOCK + 20)
    assert arena.used_bytes() == BLOCK
    arena.take_pages(5, BLOCK, 2 * BLOCK)
    assert arena.used_bytes() == BLOCK
    arena.take_pages(5, BLOCK - 1, 2 * BLOCK + 1)
    assert arena.used_bytes() == 3 * BLOCK


def test_the_last_block_of_a_slot_ends_with_the_slot(arena: Arena) -> None:
    arena.map(5, STEP)
    arena.take_pages(5, 0, STEP)
    assert arena.used_bytes() == STEP


def test_pages_that_are_not_to_be_had_are_an_error_before_they_are_touched(arena: Arena) -> None:
    arena.map(0, 3 * BLOCK)
    os.ftruncate(arena.descriptor, 2 * BLOCK)  # as if there were no more: whoever touches the rest gets a bus error
    arena.take_pages(0, 0, 2 * BLOCK)
    with pytest.raises(OSError, match="cannot get") as refused:
        arena.take_pages(0, 2 * BLOCK, 2 * BLOCK + 1)
    assert refused.value.errno == errno.ENOMEM


def test_it_has_no_name_anywhere(arena: Arena) -> None:
    arena.map(0, 10)
    assert os.fstat(arena.descriptor).st_nlink == 0
    assert os.readlink(f"/proc/self/fd/{arena.descriptor}").startswith("/memfd:antifreeze")
    assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line and "antifreeze" in line]


def test_close_may_be_called_twice_and_what_is_held_stays_readable() -> None:
    arena = Arena.create()
    held = arena.map(0, 10)
    view(held)[:2] = b"hi"
    arena.close()
    arena.close()
    assert read(held, 0, 2) == b"hi"


def mappings() -> int:
    return sum("antifreeze-arena" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_mapping_goes_with_the_last_view_of_it_and_takes_no_descriptor(arena: Arena) -> None:
    descriptors, before = len(os.listdir("/proc/self/fd")), mappings()
    looker = view(arena.map(0, 10))[3:5]
    assert mappings() == before + 1
    assert len(os.listdir("/proc/self/fd")) == descriptors
    arena.forget(0)
    assert mappings() == before + 1
    del looker
    assert mappings() == before


class TooLate(Exception):
    pass


def test_a_signal_that_comes_within_the_call_that_maps_leaves_no_mapping(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler runs as soon as the call has returned, before anything in Python could note what it returned."""

    def maps_and_is_interrupted(*given: Any) -> Any:
        address = libc().mmap(*given)
        [_] = map(_thread.interrupt_main, [signal.SIGUSR2])  # a step of Python's after which no handler runs yet
        return address

    def too_late(*_: object) -> None:
        raise TooLate

    before, handler = mappings(), signal.signal(signal.SIGUSR2, too_late)
    monkeypatch.setattr(module, "libc", lambda: SimpleNamespace(mmap=partial(maps_and_is_interrupted), munmap=libc().munmap))
    with pytest.raises(TooLate):
        arena.map(0, 10)
    signal.signal(signal.SIGUSR2, handler)
    assert mappings() == before


def test_it_describes_itself(arena: Arena) -> None:
    arena.map(0, 10)
    assert repr(arena) == "<Arena 1 slots mapped, 65,536 bytes>"


# --- limits, in a process of their own --------------------------------------------------------------------------------

ALONE = f"""
import importlib.util, resource
spec = importlib.util.spec_from_file_location("arena", {module.__file__!r})
arena = importlib.util.module_from_spec(spec)
spec.loader.exec_module(arena)
MIB = 1 << 20

def view(mapped):
    return memoryview(mapped).cast("B")
"""


def in_a_process(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", ALONE + program], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_memory_that_is_not_to_be_had_is_an_error_when_it_is_asked_for() -> None:
    program = """
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 64 * MIB, size + 64 * MIB))
slots = arena.Arena.create()
slots.map(0, MIB)
try:
    slots.map(1, 512 * MIB)
except OSError as error:
    print(type(error).__name__, error.errno)
print(len(slots.map(1, MIB)) // MIB)
"""
    assert in_a_process(program).splitlines() == ["OSError 12", "1"]


def test_with_a_small_limit_on_the_size_of_files_slots_are_smaller_and_what_is_too_large_says_why() -> None:
    program = """
resource.setrlimit(resource.RLIMIT_FSIZE, (512 * MIB, 512 * MIB))
slots = arena.Arena.create()
for slot in range(3):
    view(slots.map(slot, 4 * MIB))[-5:] = b"there"
print([bytes(view(slots.map(slot, 4 * MIB))[-5:]).decode() for slot in range(3)])
slots.discard(1)
print([bytes(view(slots.map(slot, 4 * MIB))[-5:]) == b"there" for slot in range(3)])
try:
    slots.map(3, 4 * MIB + 1)
except OSError as error:
    print("ulimit -f" in str(error))
"""
    assert in_a_process(program).splitlines() == ["['there', 'there', 'there']", "[True, False, True]", "True"]


def test_with_hardly_any_file_size_at_all_it_says_so_too() -> None:
    program = """
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    arena.Arena.create().map(0, 10)
except OSError as error:
    print("ulimit -f" in str(error))
"""
    assert in_a_process(program) == "True"


def test_the_last_byte_of_a_slot_lies_before_the_next() -> None:
    assert SLOT_STRIDE % PAGE == 0
    assert in_a_process("print(arena.SLOT_STRIDE * 1000 < arena._ARENA_BYTES)") == "True"
