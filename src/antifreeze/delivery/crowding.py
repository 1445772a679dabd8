"""Threads that fight over cores, in a sentence; for the warning and for the report."""

from __future__ import annotations

FIGHTS = 0.2
"""A thread that has no core for this part of the time holds up those that share an operation with it."""
FEWER_THREADS = "torch.set_num_threads(1) at the start of the program, or OMP_NUM_THREADS=1,"


def crowded_workers(threads: list[int], cores: int) -> str | None:
    """`threads`: how many of each worker's compute."""
    if max(threads, default=1) <= 1 or sum(threads) <= 2 * max(cores, len(threads)):
        return None
    return (
        f"the {len(threads)} workers have {sum(threads)} threads that compute, on {cores} cores: a thread pool in each of them "
        "(OpenCV, BLAS, OpenMP, a pool of the data set's) fights with the others; cv2.setNumThreads(0), OMP_NUM_THREADS=1 or "
        "a smaller pool, set in worker_init_fn, would be faster"
    )


def crowded_loop(threads: int, without_core: float, cores: int) -> str | None:
    """`threads`: of the loop's process, that compute while it loads a batch; `without_core`: the part of that time in which the one that
    stood longest had no core."""
    if threads <= 1 or without_core < FIGHTS:
        return None
    whose = "there are more of them than cores" if threads > cores else "other programs take the cores"
    return (
        f"while the loop loaded batches itself, {threads} threads of this process computed on {cores} core{'s' if cores > 1 else ''}, and "
        f"one of them had no core for {without_core:.0%} of that time ({whose}): threads that share an operation (torch, OpenMP, BLAS) "
        f"all wait for the last one; {FEWER_THREADS} ends that"
    )
