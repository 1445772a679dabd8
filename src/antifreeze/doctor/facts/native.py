"""Native libraries on the stack of a thread that sleeps, found without stopping it.

A sleeping thread's stack does not change, and /proc says where it ends. Each word on it that points just behind a call instruction in
an executable mapping is taken for a return address. That may name a library that was there before, but it leaves the patient alone.
"""

from __future__ import annotations

import os
import platform
import struct
from bisect import bisect_right
from collections.abc import Callable

from antifreeze.doctor.facts.proc import Mapping

STACK_BYTES = 16_384
UNTELLING = ("libc.", "libc-", "ld-linux", "libpthread", "libpython", "[vdso]", "libstdc++", "libm.", "libffi", "_ctypes")
INTERPRETER = ("python", "libpython")


def libraries_on_stack(stack_pointer: int, mappings: list[Mapping], read_memory: Callable[[int, int], bytes | None]) -> tuple[str, ...]:
    """Innermost first, each once, without those that are on every stack."""
    stack = read_memory(stack_pointer, STACK_BYTES)
    if not stack:
        return ()
    code = [each for each in mappings if each.executable and each.path.startswith("/")]
    starts = [each.start for each in code]
    found: dict[str, None] = {}
    for (word,) in struct.iter_unpack("=Q", stack[: len(stack) // 8 * 8]):
        at = bisect_right(starts, word) - 1
        if at < 0 or word >= code[at].end:
            continue
        name = os.path.basename(code[at].path)
        if name in found or not follows_a_call(read_memory(word - 8, 8)):
            continue
        if name.startswith(INTERPRETER):
            break  # below the interpreter's own frames, Python's stack says it better
        found[name] = None
    return tuple(name for name in found if not name.startswith(UNTELLING))


def follows_a_call(before: bytes | None, machine: str = platform.machine()) -> bool:
    if before is None or len(before) < 8:
        return False
    if machine == "aarch64":
        (instruction,) = struct.unpack("<I", before[4:])
        return bool(instruction >> 26 == 0b100101 or instruction & 0xFFFFFC1F == 0xD63F0000)
    if before[3] == 0xE8:  # call with a 32-bit distance
        return True
    return any(before[-size] == 0xFF and before[-size + 1] >> 3 & 7 == 2 for size in (2, 3, 6, 7))
