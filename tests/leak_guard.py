"""Every test is asked what it left behind: child processes, threads, descriptors, mappings of our slots.

1. Only what is new since the test began counts; and only what the garbage collector cannot free.
2. What is on its way out gets PATIENCE_S to go; what is still there then fails the test, by name.
3. A child left behind is killed, so that no later test and no exit of the interpreter waits for it.
4. A test that failed anyway is not asked: its traceback keeps its variables, and so their descriptors, alive.
5. `@pytest.mark.leaves("thread", why="…")` allows a kind, with a reason.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

PATIENCE_S = 30.0
POLL_S = 0.02
KINDS = ("process", "thread", "descriptor", "mapping")
SLOT_MARK = "/memfd:antifreeze"

Leftover = tuple[str, object]
"""(kind, what tells it from all others of its kind)"""

_call_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.excinfo is not None:
        item.stash[_call_failed] = True
    return report


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    if not sys.platform.startswith("linux"):
        yield
        return
    allowed = _allowed_kinds(request.node)
    before = set(_everything())
    yield
    left = _wait_for_leftovers(before, allowed) if _call_failed not in request.node.stash else {}
    _kill_children(before)
    if left:
        lines = "\n".join(f"  {kind}: {text}" for (kind, _), text in left.items())
        pytest.fail(f"the test left behind, {PATIENCE_S:g} s after it ended:\n{lines}", pytrace=False)


def _allowed_kinds(node: pytest.Item) -> set[str]:
    allowed: set[str] = set()
    for mark in node.iter_markers("leaves"):
        if not mark.args or not set(mark.args) <= set(KINDS) or not mark.kwargs.get("why"):
            pytest.fail(f'leaves{mark.args}: name what it may leave, of {KINDS}, and say why="…"', pytrace=False)
        allowed |= set(mark.args)
    return allowed


def _wait_for_leftovers(before: set[Leftover], allowed: set[str]) -> dict[Leftover, str]:
    """What is left at the end of our patience; empty, and at once, when nothing is."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        left = {key: text for key, text in _everything().items() if key not in before and key[0] not in allowed}
        if not left or time.monotonic() > deadline:
            return left
        gc.collect()
        time.sleep(POLL_S)


def _everything() -> dict[Leftover, str]:
    return {**_descriptors(), **_processes(), **_threads(), **_mappings()}


def _processes() -> dict[Leftover, str]:
    children = [child for child in psutil.Process().children(recursive=True) if child.pid not in _standing_helpers()]
    return {("process", child): _describe(child) for child in children}


def _describe(child: psutil.Process) -> str:
    try:
        return f"{child.pid} ({child.status()}) {' '.join(child.cmdline())[:200]}"
    except psutil.ZombieProcess:
        return f"{child.pid} is a zombie: nobody waited for it"
    except psutil.NoSuchProcess:
        return f"{child.pid}, which is just ending"


def _threads() -> dict[Leftover, str]:
    return {("thread", thread): repr(thread) for thread in threading.enumerate()}


def _descriptors() -> dict[Leftover, str]:
    found: dict[Leftover, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the one that listed the folder
            continue
        if int(name) not in _standing_helpers_descriptors():
            found["descriptor", (name, target)] = f"{name} -> {target}"
    return found


def _mappings() -> dict[Leftover, str]:
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if SLOT_MARK in line]
    return {("mapping", (where, name)): f"{name} at {where}" for where, _, _, _, _, name, *_ in lines}


# multiprocessing starts these two when first needed and keeps them until the interpreter ends: they belong to no test.


def _standing_helpers() -> set[int | None]:
    return {_private(resource_tracker, "_resource_tracker", "_pid"), _private(forkserver, "_forkserver", "_forkserver_pid")}


def _standing_helpers_descriptors() -> set[int | None]:
    ends = {_private(forkserver, "_forkserver", name) for name in ("_forkserver_alive_fd", "_forkserver_fd")}
    return {_private(resource_tracker, "_resource_tracker", "_fd"), *ends}


def _private(module: object, singleton: str, name: str) -> int | None:
    found: int | None = getattr(getattr(module, singleton, None), name, None)
    return found


def _kill_children(before: set[Leftover]) -> None:
    """Without waiting for them: their exit codes belong to whoever started them."""
    for _, child in set(_processes()) - before:
        if isinstance(child, psutil.Process):
            with suppress(psutil.NoSuchProcess):
                child.kill()
