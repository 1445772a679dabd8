"""The numbers that decide, by tables."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antifreeze.supervisor.policy import (
    SPLIT_BATCHES,
    TASK_NS,
    RestartBudget,
    batches_in_flight,
    few_or_small,
    slept_through,
    stall_intervals_s,
    tasks_per_batch,
    tasks_per_batch_in_threads,
    window_batches,
    within_budget,
)

calm = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
SLOW, FAST = TASK_NS, 1  # what a sample costs, in nanoseconds


@pytest.mark.parametrize(
    ("rows", "workers", "sample_ns", "splittable", "expected"),
    [
        (64, 4, SLOW, False, 1),  # a collate function wants the whole batch
        (64, 1, SLOW, True, 1),
        (64, 0, SLOW, True, 1),
        (64, 4, SLOW, True, 4),  # never more tasks than workers
        (64, 4, None, True, 4),  # nothing is known yet: the first batch should come soon
        (64, 4, FAST, True, 2),  # cheap samples: split only so far that SPLIT_BATCHES batches feed all workers
        (64, 16, FAST, True, 6),
        (3, 16, SLOW, True, 3),  # never more tasks than rows
        (1, 16, SLOW, True, 1),
        (64, 4, 3 * TASK_NS // 64, True, 3),
        (64, 8, 5 * TASK_NS // 64 + 1, True, 5),  # as many as are worth TASK_NS each
        (0, 4, None, True, 1),
    ],
)
def test_tasks_per_batch(rows: int, workers: int, sample_ns: int | None, splittable: bool, expected: int) -> None:
    assert tasks_per_batch(rows, workers, sample_ns, splittable) == expected


@pytest.mark.parametrize(
    ("workers", "sample_ns", "batch_bytes", "ending", "expected"),
    [
        (16, 10_000_000, 100_000, False, 16),  # so many can be heard one by one
        (32, 10_000_000, 100_000, False, 3),  # tasks of 96 ms: some three hundred results a second
        (64, 10_000_000, 100_000, False, 1),
        (64, 10_000_000, 100_000, True, 5),  # the last ones are shorter
        (64, None, 0, False, 32),  # the first batch should come soon
        (64, 10_000_000, 64 << 20, False, 22),  # large batches: few in flight
    ],
)
def test_of_many_workers_not_every_row_is_heard(workers: int, sample_ns: int | None, batch_bytes: int, ending: bool, expected: int) -> None:
    assert tasks_per_batch(32, workers, sample_ns, True, few_or_small(batch_bytes), ending) == expected


@pytest.mark.parametrize(
    ("workers", "batch_bytes", "budget_bytes", "expected"),
    [
        (2, 100_000, None, 1),
        (14, 100_000, None, 1),  # batches for all workers cost little, and a batch is one task
        (14, 0, None, 5),  # how large they are is not known yet
        (14, 3 << 20, None, 2),  # 21 batches of two tasks
        (14, 38 << 20, None, 5),  # large ones: few in flight, so tasks are shorter
        (14, 3 << 20, 16 << 20, 7),  # four of them may be in flight
        (14, 3 << 20, 3 << 20, 14),  # one: all workers make it together
    ],
)
def test_batches_of_quick_samples_are_split_only_where_they_are_large(
    workers: int, batch_bytes: int, budget_bytes: int | None, expected: int
) -> None:
    assert tasks_per_batch(64, workers, FAST, True, few_or_small(batch_bytes, budget_bytes)) == expected


@pytest.mark.parametrize(
    ("rows", "workers", "together", "expected"), [(32, 1, 256, 12), (32, 1, 32, 3), (32, 2, 128, 12), (1000, 1, 32, 3)]
)
def test_batches_of_coroutines_in_flight(rows: int, workers: int, together: int, expected: int) -> None:
    assert window_batches(rows, workers, together) == expected


@pytest.mark.parametrize(("tasks", "workers", "expected"), [(4, 2, 0), (16, 8, 0), (128, 64, 7), (512, 256, 31), (70, 64, 0), (3, 64, 0)])
def test_results_are_slept_through_while_every_thread_has_more_to_do(tasks: int, workers: int, expected: int) -> None:
    assert slept_through(tasks, workers) == expected


@calm
@given(st.integers(1, 5000), st.integers(1, 200), st.none() | st.integers(0, 10**10))
def test_there_is_always_a_task_and_never_one_without_a_row_or_a_worker(rows: int, workers: int, sample_ns: int | None) -> None:
    assert 1 <= tasks_per_batch(rows, workers, sample_ns, True) <= min(rows, workers)


@calm
@given(st.integers(2, 200), st.none() | st.integers(0, 10**10), st.booleans())
def test_what_is_in_flight_gives_every_worker_a_task_and_another_that_waits(workers: int, sample_ns: int | None, splittable: bool) -> None:
    tasks = tasks_per_batch(1000, workers, sample_ns, splittable)
    batches = batches_in_flight(workers, tasks, None)
    assert batches * tasks >= (2 * workers if tasks > 1 else workers + 2)
    assert tasks == 1 or batches <= SPLIT_BATCHES + 1


@pytest.mark.parametrize(
    ("workers", "tasks", "asked", "expected"),
    [(4, 1, None, 9), (1, 1, None, 3), (16, 1, None, 33), (4, 4, None, 3), (4, 2, None, 5), (16, 6, None, 7), (4, 2, 12, 12), (4, 1, 1, 1)],
)
def test_batches_in_flight(workers: int, tasks: int, asked: int | None, expected: int) -> None:
    assert batches_in_flight(workers, tasks, asked, batch_bytes=1 << 20) == expected


@pytest.mark.parametrize(
    ("tasks", "batch_bytes", "expected"), [(4, 1 << 20, 3), (4, 1 << 25, 2), (4, None, 2), (2, 1 << 25, 4), (1, 1 << 25, 6)]
)
def test_large_batches_are_fewer(tasks: int, batch_bytes: int | None, expected: int) -> None:
    assert batches_in_flight(4, tasks, None, batch_bytes) == expected


@pytest.mark.parametrize(
    ("batches", "batch_bytes", "budget_bytes", "expected"),
    [
        (8, 100, None, 8),
        (8, None, 1000, 8),  # no batch was seen yet
        (8, 0, 1000, 8),
        (8, 100, 1000, 8),
        (8, 100, 500, 4),  # one is in the user's hands
        (8, 100, 199, 1),
        (8, 100, 1, 1),
    ],
)
def test_within_budget(batches: int, batch_bytes: int | None, budget_bytes: int | None, expected: int) -> None:
    assert within_budget(batches, batch_bytes, budget_bytes) == expected


@pytest.mark.parametrize(
    ("seen", "budget_bytes", "expected"),
    [
        pytest.param(0, 10**9, 1, id="nothing is known"),
        pytest.param(1, 10**9, 32, id="there is room for whatever comes"),
        pytest.param(1, 1_000, 3, id="the next ones may be two, three and four times as large"),
        pytest.param(10, 1_000, 7, id="by a tenth each"),
        pytest.param(10_000, 1_000, 9, id="they have grown slowly, if at all"),
        pytest.param(10_000, 999, 8, id="and the one in the user's hands counts"),
        pytest.param(10, 1, 1, id="one there always is"),
    ],
)
def test_batches_may_go_on_growing(seen: int, budget_bytes: int, expected: int) -> None:
    """So that also then those in flight, and the one the loop has, are hardly more than the budget."""
    fit = within_budget(32, 100, budget_bytes, seen)
    assert fit == expected
    if 1 < fit < 32:
        assert (fit + 1) * (1 + fit / (2 * seen)) * 100 <= 1.15 * budget_bytes


def test_the_restart_budget_counts_what_lies_within_its_window() -> None:
    budget = RestartBudget(allowed=2, window_s=60.0)
    spent = [budget.spend(now_s) for now_s in (0.0, 10.0, 59.9, 60.0, 69.9, 70.0, 119.9, 200.0)]
    assert spent == [True, True, False, True, False, True, False, True]


def test_what_was_refused_is_not_counted() -> None:
    budget = RestartBudget(allowed=1, window_s=10.0)
    assert budget.spend(0.0)
    assert not any(budget.spend(float(now_s)) for now_s in range(1, 10))
    assert budget.spend(10.0)


def test_a_budget_of_none_allows_none() -> None:
    assert not RestartBudget(allowed=0).spend(0.0)


@calm
@given(st.integers(0, 5), st.lists(st.integers(0, 20), max_size=40))
def test_no_window_ever_holds_more_than_is_allowed(allowed: int, pauses_s: list[int]) -> None:
    budget, now_s, granted = RestartBudget(allowed, window_s=30.0), 0.0, []
    for pause_s in pauses_s:
        now_s += pause_s
        if budget.spend(now_s):
            granted.append(now_s)
    assert all(sum(start <= at < start + 30.0 for at in granted) <= allowed for start in granted)


def test_stall_reports_come_at_one_three_seven_fifteen_times_the_first() -> None:
    assert [stall_intervals_s(30, reports) for reports in range(5)] == [30.0, 90.0, 210.0, 450.0, 930.0]


@calm
@given(st.floats(0.001, 1e4), st.integers(0, 20))
def test_each_pause_between_stall_reports_is_twice_the_one_before(first_s: float, reports: int) -> None:
    at = [stall_intervals_s(first_s, reports + step) for step in range(3)]
    assert at[2] - at[1] == pytest.approx(2 * (at[1] - at[0]))


@pytest.mark.parametrize(
    ("rows", "workers", "sample_ns", "splittable", "batch_bytes", "tasks"),
    [
        (32, 64, None, True, 0, 32),  # nothing is known: the first batch comes soonest
        (32, 64, 10_000_000, True, 100_000, 2),  # waiting: 16 samples at a time
        (32, 64, 60_000_000, True, 100_000, 2),  # waiting for each other counts too, and does not lead to more tasks
        (32, 64, 2_000_000_000, True, 100_000, 32),  # long samples are shared out
        (32, 64, 10_000_000, True, 64 << 20, 22),  # large batches: few in flight
        (32, 1, 10_000_000, True, 100_000, 1),
        (32, 64, 10_000_000, False, 100_000, 1),
    ],
)
def test_threads_get_many_samples_at_once(
    rows: int, workers: int, sample_ns: int | None, splittable: bool, batch_bytes: int, tasks: int
) -> None:
    assert tasks_per_batch_in_threads(rows, workers, sample_ns, splittable, few_or_small(batch_bytes)) == tasks
