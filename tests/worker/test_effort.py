"""What a worker's time was made of, measured in a real process."""

from __future__ import annotations

import mmap
import os
import time

import pytest

from antifreeze.worker.effort import LOOK_EVERY_NS, Effort, Usage


@pytest.mark.leaves("descriptor", why="it is kept for as long as the worker lives")
def test_sleeping_is_not_computing() -> None:
    effort = Effort()
    time.sleep(0.2)
    asleep = effort.cpu_ns()
    until = time.process_time_ns() + 50_000_000
    while time.process_time_ns() < until:
        pass
    assert effort.cpu_ns() >= 50_000_000 > asleep


def test_a_descriptor_that_was_closed_under_it_is_no_error() -> None:
    effort = Effort()
    if effort._schedstat < 0:
        pytest.skip("this kernel has no schedstat")
    os.close(effort._schedstat)
    effort._looked_at -= 2 * LOOK_EVERY_NS
    assert effort.queued_ns() == 0
    assert effort.queued_ns() == 0


@pytest.mark.leaves("descriptor", why="it is kept for as long as the worker lives")
def test_what_was_used_before_it_began_does_not_count() -> None:
    pages = b"x" * (400 * mmap.PAGESIZE)
    noted: list[Usage] = []
    effort = Effort(noted.append)
    assert effort.used().faults < 200
    pages += b"x" * (4000 * mmap.PAGESIZE)
    assert len(noted) == 1, "when it began"
    effort._looked_at = time.monotonic_ns()  # those pages may have taken longer than that, beside other work
    effort.queued_ns()
    assert len(noted) == 1, "it was looked at just now"
    effort._looked_at -= LOOK_EVERY_NS
    effort.queued_ns()
    assert 4000 <= noted[-1].faults <= 9000, "the sum of both, which may take two copies"
    assert noted[-1].peak_kib >= len(pages) // 1024


def test_without_schedstat_faults_are_noted_all_the_same() -> None:
    noted: list[Usage] = []
    effort = Effort(noted.append)
    if effort._schedstat >= 0:
        os.close(effort._schedstat)
    effort._schedstat = -1
    effort._looked_at -= LOOK_EVERY_NS
    assert effort.queued_ns() == 0
    assert len(noted) == 2
