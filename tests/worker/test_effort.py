"""What a worker's time was made of, measured in a real process."""

from __future__ import annotations

import os
import time

import pytest

from antifreeze.worker.effort import LOOK_EVERY_NS, Effort


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
