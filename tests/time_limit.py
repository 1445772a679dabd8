"""Every phase of every test has a limit: 200 s, or `@pytest.mark.limit(seconds)`.

 1. At the limit SIGALRM interrupts the main thread; the test fails with the stacks of all threads in its message.
 2. Code that swallows the failure is interrupted again, every AGAIN_S.
 3. Where no Python code can run at all (a C call that never returns), a C thread prints all stacks and ends pytest, GRACE_S later.

Neither timer reaches a forked child: timers and threads are not inherited.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

LIMIT_S = 200.0
"""Far above what any test takes: it ends what hangs, and a machine that is only slow must not meet it."""
AGAIN_S = 5.0
GRACE_S = 30.0

_true_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # otherwise the last words would go into a file that dies with pytest
        config.stash[_true_stderr] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_true_stderr])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _limited(item, "setup"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _limited(item, "test"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with _limited(item, "teardown"):
        return (yield)


@contextmanager
def _limited(item: pytest.Item, phase: str) -> Iterator[None]:
    mark = item.get_closest_marker("limit")
    limit_s = float(mark.args[0]) if mark else LIMIT_S

    def give_up(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"the {phase} ran past its limit of {limit_s:g} s; all stacks:\n{_all_stacks()}", pytrace=False)

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
    faulthandler.dump_traceback_later(limit_s + GRACE_S, exit=True, file=item.config.stash[_true_stderr])
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _all_stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:  # faulthandler writes to descriptors only
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
