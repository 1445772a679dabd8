"""Every disease with the program that has it, and what the doctor must say about it. Tests and the table in docs/doctor.md read this."""

from __future__ import annotations

from rooms import freezer_1, freezer_2, frozen, little_cpu, little_memory, memory_and_swap, network_mount, small_shm
from ward import Patient

DISEASES = (
    Patient("infinite_loop", code="infinite-loop", says=("sample 403", "worker 0"), rests=False, quick=True),
    Patient("no_workers", code="infinite-loop", whom="loop", says=("sample 403",), rests=False),
    Patient(
        "lock_inherited_by_fork",
        code="lock-inherited-by-fork",
        says=("`LOCK`", "of its parent is inside `with LOCK:`"),
        readies=2,
    ),
    Patient(
        "native_lock_inherited_by_fork", code="lock-inherited-by-fork", says=("native code", "compute_for_ever"), readies=2, rests=False
    ),
    Patient("lock_taken_twice", code="lock-taken-twice", says=("`LOCK`", "it holds itself since line 23")),
    Patient("lock_of_another_worker", code="lock-of-another-worker", whom="waiter", says=("`self.lock`", "pid {holder}"), readies=2),
    Patient("gil_held", code="gil-held", whom="loop", says=("watch_the_hardware",), rests=False, quick=True),
    Patient("file_lock", code="file-lock", says=("{path}", "process {holder}")),
    Patient("file_lock", ("fcntl",), code="file-lock", says=("{path}", "process {holder}")),
    Patient("fifo_read", code="blocked-on-fifo", says=("{path}",), quick=True),
    Patient("fifo_read", ("open",), code="blocked-on-fifo", line="open", says=("{path}", "nobody opens")),
    Patient("pipe_read", code="blocked-on-pipe", says=("process {helper}",)),
    Patient("full_pipe", code="blocked-on-full-pipe", says=("process {helper}",), quick=True),
    Patient("event_loop", code="blocked-in-event-loop", says=("no connection is open",)),
    Patient("event_loop", ("poll",), code="infinite-loop", says=("sample 403", "in between"), rests=False),
    Patient("socket_read", code="blocked-on-socket", says=("127.0.0.1:{port}",)),
    Patient("network_filesystem", code="blocked-on-network-filesystem", says=("{path}", "fuse.s3fs"), room=network_mount),
    Patient("worker_killed", code="worker-dead", whom="victim", says=("SIGKILL", "half a batch")),
    Patient("out_of_memory_kill", code="out-of-memory-kill", whom="victim", says=("out-of-memory kill",), room=little_memory),
    Patient("unpicklable_result", code="result-lost", whom="loop", says=("cannot pickle",)),
    Patient("shared_memory_full", code="shared-memory-full", whom="loop", line="loop", says=("8.4 MB",), room=small_shm),
    Patient("descriptors_exhausted", code="descriptors-exhausted", line="loop", says=("of 64 files", "Too many open files")),
    Patient("stopped", code="stopped", says=("SIGSTOP",)),
    Patient("pin_thread_stuck", code="pin-thread-stuck", whom="loop"),
    Patient("pin_thread_stuck", ("loop",), code="pin-thread-stuck", whom="loop", line="loop", rests=False),
    Patient("pin_thread_dead", code="pin-thread-dead", whom="loop", says=("shard-017.tar is not there any more", "timeout=")),
    Patient("orphans", code="orphans", line=None, says=("writes into a pipe that nobody reads",)),
    Patient("one_core", code="one-core-affinity", whom="loop", line=None, says=("core",), rests=False),
    Patient("cpu_throttled", code="cpu-throttled", whom="loop", line=None, says=("0.2 cores",), room=little_cpu, rests=False),
    Patient("swapping", code="swapping", line=None, says=("container",), readies=3, room=memory_and_swap, rests=False),
    Patient(
        "frozen_cgroup",
        code="frozen-cgroup",
        line=None,
        says=("the container is paused", "{folder}"),
        room=freezer_1,
        then=frozen,
        rests=False,
    ),
    Patient(
        "frozen_cgroup",
        ("v2",),
        code="frozen-cgroup",
        line=None,
        says=("the container is paused", "{folder}"),
        room=freezer_2,
        then=frozen,
        rests=False,
    ),
    Patient("collective", code="infinite-loop", says=("sample 403", "rank 1"), rests=False),
    Patient(
        "collective",
        ("alone",),
        code="loop-in-collective",
        whom="partner",
        line="collective",
        says=("all_reduce", "rank 0"),
        readies=2,
        rests=False,
    ),
    Patient("loop_blocked", code="loop-blocked", whom="loop", says=("the loader is innocent",), quick=True),
    Patient("antifreeze_worker", code="infinite-loop", says=("sample 403",), rests=False),
    Patient("antifreeze_worker", ("thread",), code="infinite-loop", says=("sample 403", "(thread "), rests=False, quick=True),
)
"""Each of these is frozen, or starved."""

HEALTHY = (
    Patient("slow_model", code="loop-is-slow", whom="loop", line=None, says=("the loader is innocent",), disease=False),
    Patient("slow_model", ("save",), code="loop-is-slow", whom="loop", line=None, says=("a checkpoint",), disease=False),
    Patient("slow_model", ("log",), code="loop-is-slow", whom="loop", line=None, says=("logging",), disease=False),
    Patient("slow_but_progressing", code="slow-but-progressing", whom="loop", line=None, says=("they compute",), disease=False),
    Patient(
        "slow_but_progressing",
        ("reads",),
        code="slow-but-progressing",
        whom="loop",
        line=None,
        says=("wait for what",),
        disease=False,
    ),
    Patient("one_slow_sample", code="", whom="loop", line=None, disease=False),
    Patient("healthy", code="healthy", whom="loop", line=None, disease=False, quick=True),
)
"""And these must not be called ill."""
