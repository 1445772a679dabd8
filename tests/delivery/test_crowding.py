"""Threads that fight over cores: what is said, and of what nothing is."""

from __future__ import annotations

import pytest

from antifreeze.delivery.crowding import FIGHTS, crowded_loop, crowded_workers


@pytest.mark.parametrize(
    ("threads", "without_core", "cores", "says"),
    [
        (
            2,
            0.61,
            2,
            "2 threads of this process computed on 2 cores, and one of them had no core for 61% of that time (other programs take",
        ),
        (
            8,
            0.5,
            1,
            "8 threads of this process computed on 1 core, and one of them had no core for 50% of that time (there are more of them",
        ),
    ],
)
def test_the_sentence(threads: int, without_core: float, cores: int, says: str) -> None:
    said = crowded_loop(threads, without_core, cores)
    assert said is not None and says in said and "torch.set_num_threads(1)" in said and "OMP_NUM_THREADS=1" in said


def test_one_thread_and_threads_with_cores_fight_with_nobody() -> None:
    assert crowded_loop(1, 0.9, 2) is None
    assert crowded_loop(8, FIGHTS / 2, 8) is None


def test_workers() -> None:
    said = crowded_workers([8, 8], 4)
    assert said is not None and said.startswith("the 2 workers have 16 threads that compute, on 4 cores")
    assert crowded_workers([1] * 16, 4) is None and crowded_workers([4, 4], 4) is None and crowded_workers([], 4) is None
