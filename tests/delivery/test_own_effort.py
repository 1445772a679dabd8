"""What loading in the loop's own process was made of, from clocks that the test sets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from antifreeze.delivery import own_effort
from antifreeze.delivery.own_effort import MEASURED_AFTER_NS, OwnEffort
from antifreeze.supervisor.work import OwnThreads

MS = 1_000_000


class World:
    """The clocks of one thread and its process, and what the kernel says of the threads."""

    def __init__(self) -> None:
        self.thread, self.at, self.cpu, self.process, self.queued = 1, 0, 0, 0, 0
        self.threads: dict[str, tuple[int, int]] = {}
        self.readings = 0

    def passes(self, wall: float, cpu: float = 0.0, queued: float = 0.0, others: float = 0.0) -> None:
        """Milliseconds."""
        self.at += int(wall * MS)
        self.cpu += int(cpu * MS)
        self.queued += int(queued * MS)
        self.process += int((cpu + others) * MS)

    def clocks(self) -> own_effort._Clocks:
        self.readings += 1
        return own_effort._Clocks(self.thread, self.at, self.cpu, self.process, self.queued)

    def all_threads(self) -> dict[str, own_effort._Stood]:
        return {name: own_effort._Stood(*stood) for name, stood in self.threads.items()}

    def stands(self, name: str, ran: float, queued: float) -> None:
        before = self.threads.get(name, (0, 0))
        self.threads[name] = before[0] + int(ran * MS), before[1] + int(queued * MS)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    monkeypatch.setattr(own_effort, "_clocks", world.clocks)
    monkeypatch.setattr(own_effort, "_threads", world.all_threads)
    yield world


def batch(effort: OwnEffort, world: World, wall: float, cpu: float = 0.0, queued: float = 0.0, others: float = 0.0) -> tuple[float, float]:
    before = effort.begin()
    world.passes(wall, cpu, queued, others)
    spent = effort.end(before, int(wall * MS))
    return spent[0] / MS, spent[1] / MS


def test_the_very_first_batch_is_measured(world: World) -> None:
    """It was taken to compute, and so were the seven behind it."""
    effort = OwnEffort(OwnThreads())
    assert batch(effort, world, wall=40, cpu=1) == pytest.approx((1, 0))
    assert batch(effort, world, wall=40, cpu=10, queued=20) == pytest.approx((10, 20))


def test_quick_batches_are_like_the_last_one_that_was_measured(world: World) -> None:
    effort = OwnEffort(OwnThreads())
    assert batch(effort, world, wall=0.1, cpu=0.05) == pytest.approx((0.05, 0))
    seen = [batch(effort, world, wall=0.1, cpu=0.1)[0] for _ in range(MEASURED_AFTER_NS // MS * 10)]
    assert seen == pytest.approx([0.05] * (len(seen) - 1) + [0.1])
    assert world.readings == 4


def test_one_that_takes_long_by_itself_is_not_like_them(world: World) -> None:
    effort = OwnEffort(OwnThreads())
    batch(effort, world, wall=0.1, cpu=0.1)
    batch(effort, world, wall=0.1, cpu=0.1)
    assert batch(effort, world, wall=50, cpu=0.1, queued=3) == pytest.approx((0.2, 3))


def test_what_another_thread_has_computed_is_no_bound(world: World) -> None:
    effort = OwnEffort(OwnThreads())
    batch(effort, world, wall=0.1, cpu=0.1)
    world.thread = 2
    assert batch(effort, world, wall=50, cpu=1)[0] == pytest.approx(50)


def test_a_pool_of_the_data_sets_own_computes(world: World) -> None:
    effort = OwnEffort(OwnThreads())
    for _ in range(3):
        assert batch(effort, world, wall=10, cpu=1, others=12) == pytest.approx((10, 0))
        world.passes(5, cpu=5)


def test_threads_that_compute_anyway_do_not(world: World) -> None:
    effort = OwnEffort(OwnThreads())
    batch(effort, world, wall=10, cpu=1, others=10)
    world.passes(5, cpu=5, others=5)
    assert batch(effort, world, wall=10, cpu=1, others=10) == pytest.approx((1, 0))


def test_the_thread_that_stood_longest_without_a_core(world: World) -> None:
    threads = OwnThreads()
    effort = OwnEffort(threads)
    own = str(threading.get_native_id())
    for name in (own, "12", "13", "14"):
        world.stands(name, 1, 1)
    before = effort.begin()
    for name, ran, queued in ((own, 10.0, 30.0), ("12", 10.0, 4.0), ("13", 10.0, 20.0), ("14", 0.1, 0.1), ("15", 30.0, 30.0)):
        world.stands(name, ran, queued)
    world.passes(40, 10, 30)
    effort.end(before, 40 * MS)
    assert (threads.most, threads.without_core) == (3, 0.5)


def test_looks_at_all_threads_are_far_apart(world: World) -> None:
    threads = OwnThreads()
    effort = OwnEffort(threads)
    batch(effort, world, wall=10, cpu=10)
    effort._until_look_ns = 15 * MS
    batch(effort, world, wall=10, cpu=10)
    batch(effort, world, wall=10, cpu=10)
    assert threads.looked_ns == 10 * MS
    batch(effort, world, wall=10, cpu=10)
    assert threads.looked_ns == 20 * MS


def test_a_kernel_that_says_nothing() -> None:
    assert own_effort._stood("/proc/no-such-file") == (0, 0)


def test_the_real_clocks_tell_sleep_from_computing() -> None:
    effort = OwnEffort(OwnThreads())
    before = effort.begin()
    time.sleep(0.05)
    asleep = effort.end(before, 50 * MS)
    before, until = effort.begin(), time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    computed = effort.end(before, 50 * MS)
    assert asleep[0] < sum(computed)
    assert own_effort._stood("/proc/thread-self/schedstat").ran_ns >= 0
