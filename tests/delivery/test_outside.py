"""What is shared with others is found, and what only a device's driver has is not taken for it."""

from __future__ import annotations

import ctypes
import gc
import mmap
from pathlib import Path

import pytest

from antifreeze.delivery import outside

DRIVER = """\
200600000-200800000 rw-s 00000000 00:06 143                              /dev/nvidia0
200800000-204000000 rw-s 00000000 00:06 142                              /dev/nvidiactl
10000-11000 rw-s 00000000 00:01 3098                                     /dev/zero (deleted)
"""
"""Of a process that uses a GPU, as its maps say (the place of the last one is where nothing else can lie)."""
NAMELESS = DRIVER.splitlines(keepends=True)[-1]


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(outside, "_MAPS", tmp_path / "maps")
    return tmp_path / "maps"


def line_of(shared: mmap.mmap) -> str:
    """What the maps of this process say of it."""
    place = f"{ctypes.addressof(ctypes.c_char.from_buffer(shared)):x}-"
    return next(line for line in Path("/proc/self/maps").read_text().splitlines(keepends=True) if line.startswith(place))


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("", ""),
        (DRIVER, ""),
        (NAMELESS, "/dev/zero"),
        (DRIVER + "7f0000000000-7f0000001000 rw-s 00000000 00:1a 77 /dev/shm/torch_9_1 (deleted)\n", "/dev/shm/torch_9_1"),
        ("7f0000000000-7f0000001000 rw-s 00000000 00:1a 77 /dev/shm/sem.mp-abc (deleted)\n", ""),
        ("7f0000000000-7f0000001000 rw-s 00000000 00:01 77 /memfd:antifreeze-arena (deleted)\n", ""),
        ("7f0000000000-7f0000001000 r--s 00000000 fe:00 77 /data/table\n", ""),
        ("7f0000000000-7f0000001000 rw-s 00000000 fe:00 77 /data/my table\n", "/data/my table"),
    ],
)
def test_what_is_taken_for_shared(maps: Path, lines: str, named: str) -> None:
    maps.write_text(lines)
    said = outside.shares_memory(None)
    assert f"({named})" in said if named else said == ""


def test_memory_of_pythons_own_counts_beside_a_drivers(maps: Path) -> None:
    with mmap.mmap(-1, mmap.PAGESIZE) as shared:
        shared[0] = 1
        maps.write_text(DRIVER + line_of(shared))
        assert "(/dev/zero)" in outside.shares_memory(None)
    assert outside.shares_memory(None) == "", "it is closed, and what lies there is nobody's"


def test_a_kind_of_the_users_own_counts_too(maps: Path) -> None:
    class Table(mmap.mmap):
        """As a data set's own may be."""

    with Table(-1, mmap.PAGESIZE) as shared:
        maps.write_text(DRIVER + line_of(shared))
        assert "(/dev/zero)" in outside.shares_memory(None)


def test_what_was_looked_at_early_is_not_gone_through_again(maps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mmap.mmap(-1, mmap.PAGESIZE) as shared:
        maps.write_text(DRIVER)
        of_driver = outside.whose_nameless()
        assert list(of_driver.values()) == [False]
        maps.write_text(DRIVER + line_of(shared))
        assert "(/dev/zero)" in outside.shares_memory(None, of_driver), "what came later is not the driver's because that was looked at"
        both = outside.whose_nameless()
        assert sorted(both.values()) == [False, True]
        monkeypatch.setattr(outside.gc, "get_referrers", pytest.fail)
        assert "(/dev/zero)" in outside.shares_memory(None, both)
        maps.write_text(DRIVER)
        assert outside.shares_memory(None, both) == ""


def test_what_cannot_be_told_counts(maps: Path) -> None:
    maps.write_text(DRIVER)
    gc.freeze()
    try:
        assert "(/dev/zero)" in outside.shares_memory(None)
    finally:
        gc.unfreeze()
