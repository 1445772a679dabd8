"""The rules as tables: made-up facts in, findings out. No process is started here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from build_facts import (
    COMPUTING,
    DATA,
    LIB,
    LOOP,
    PIPES,
    POLL,
    TORCH,
    TRAIN,
    W0,
    W1,
    WAITING,
    WINDOW_S,
    exam,
    feeder,
    frame,
    idle,
    idle_worker,
    loading,
    lock,
    loop_process,
    process,
    running,
    sample,
    still,
    stuck_worker,
    thread,
    worker_loop,
)

from antifreeze.doctor.facts.model import (
    Blindness,
    Call,
    Cgroup,
    Descriptor,
    Examination,
    FileLock,
    Holder,
    JournalEntry,
    Machine,
    Memory,
    OomKill,
    ProcessSample,
    ShmSpace,
    Socket,
)
from antifreeze.doctor.findings.diagnose import diagnose
from antifreeze.doctor.findings.model import Confidence, Severity

LOOPING = running(W0, loading(0))
SOURCE = (
    "import threading\nL = threading.Lock()\ndef get():\n    with L:\n        return inner()\ndef inner():\n    with L:\n        return 1\n"
)


def reads(kind: str, target: str = "/data/x", call: str = "read", **more: object) -> tuple[Call, tuple[Descriptor, ...]]:
    return Call(call, descriptors=(9,)), (*PIPES, Descriptor(9, target, kind, inode=77, **more))  # type: ignore[arg-type]


def reading(kind: str, target: str = "/data/x", call: str = "read", **more: object) -> Examination:
    found, descriptors = reads(kind, target, call, **more)
    worker = replace(stuck_worker(W0, 0, call=found, wchan=""), descriptors=descriptors)
    return exam(loop_process(), worker)


GOES_ROUND = sample(loading(0), call=Call("epoll_wait", descriptors=(9,), limit_s=0.1), asleep_s=0.05)
DISEASES: list[tuple[str, Examination, int | None, str]] = [
    ("infinite-loop", exam(loop_process(), process(W0, LOOPING, feeder(301))), W0, "sample 40"),
    ("stopped", exam(loop_process(), process(W0, still(W0, loading(0), state="T"), feeder(301))), W0, "kill -CONT 101"),
    (
        "stopped",
        exam(loop_process(), process(W0, still(W0, loading(0), state="t"), tracer=9)),
        W0,
        "debugger or tracer (pid 9)",
    ),
    (
        "lock-inherited-by-fork",
        exam(loop_process(), stuck_worker(W0, 0, call=lock())),
        W0,
        "locked when the worker was forked",
    ),
    (
        "lock-taken-twice",
        exam(
            loop_process(),
            stuck_worker(W0, 0, frame("inner", DATA, 7), frame("get", DATA, 5), call=lock()),
            sources=((DATA, SOURCE),),
        ),
        W0,
        "holds itself since line 4",
    ),
    (
        "lock-of-another-worker",
        exam(
            loop_process(),
            stuck_worker(W0, 0, frame("inner", DATA, 7), call=lock(private=False, mapping="/dev/shm/sem.x", inode=5)),
            stuck_worker(W1, 1, frame("get", DATA, 5), call=Call("clock_nanosleep", limit_s=100.0)),
            sources=((DATA, SOURCE),),
        ),
        W0,
        "worker 1 (pid 102) holds",
    ),
    (
        "lock-in-process",
        exam(
            loop_process(),
            process(W0, still(W0, loading(0), call=lock()), still(150, (frame("serve", DATA, 5),), "helper"), feeder(301)),
        ),
        W0,
        "'helper'",
    ),
    (
        "file-lock",
        replace(
            reading("file", "/data/x.lock", "flock"),
            file_locks=(FileLock(1, "FLOCK", 9, 0, 77), FileLock(1, "FLOCK", W0, 0, 77, waiting=True)),
            holders=(Holder(9, ("cp", "x")),),
        ),
        W0,
        "process 9 (cp x) holds",
    ),
    ("blocked-on-fifo", reading("fifo", "/data/fifo"), W0, "/data/fifo"),
    ("blocked-on-pipe", replace(reading("pipe", "pipe:[77]"), holders=(Holder(9, ("ffmpeg",), inodes=(77,)),)), W0, "process 9 (ffmpeg)"),
    (
        "blocked-on-socket",
        reading("socket", "socket:[77]", "recvfrom", socket=Socket("tcp", "ESTABLISHED", "10.0.0.1:5", "10.0.0.9:443")),
        W0,
        "10.0.0.9:443",
    ),
    ("blocked-on-network-filesystem", reading("file", "/mnt/nfs/shard-1.tar", filesystem="nfs4"), W0, "/mnt/nfs/shard-1.tar"),
    (
        "blocked-on-network-filesystem",
        exam(loop_process(), stuck_worker(W0, 0, call=None, state="D", wchan="rpc_wait_bit_killable")),
        W0,
        "rpc_wait_bit_killable",
    ),
    ("blocked-on-disk", exam(loop_process(), stuck_worker(W0, 0, state="D", wchan="folio_wait_bit_common")), W0, "the disk"),
    ("blocked-on-terminal", reading("device", "/dev/pts/1"), W0, "/dev/pts/1"),
    ("blocked-on-child", exam(loop_process(), stuck_worker(W0, 0, call=Call("wait4"), wchan="do_wait")), W0, "to end"),
    ("sleeping-in-sample", exam(loop_process(), stuck_worker(W0, 0, call=Call("clock_nanosleep", limit_s=50.0))), W0, "50 s more"),
    (
        "blocked-elsewhere",
        exam(loop_process(), stuck_worker(W0, 0, call=Call("io_uring_enter"), wchan="io_cqring_wait")),
        W0,
        "io_cqring_wait",
    ),
    (
        "worker-dead",
        exam(loop_process(), idle_worker(W1, 1), process(W0, exit_status=9, last=ProcessSample("Z", 1.0), first=None)),
        W0,
        "killed by SIGKILL",
    ),
    (
        "out-of-memory-kill",
        exam(
            loop_process(),
            idle_worker(W1, 1),
            process(W0, exit_status=9, last=ProcessSample("Z", 1.0), first=None),
            machine=Machine(cores=4, oom_kills=(OomKill(W0, "Out of memory: Killed process 101 (pt_data_worker)"),)),
        ),
        W0,
        "Killed process 101",
    ),
    (
        "out-of-memory-kill",
        exam(
            loop_process(cgroup="/pod"),
            idle_worker(W1, 1),
            cgroups=(Cgroup("/pod", memory_limit=10**9, memory_used=10**8, oom_kills=2),),
            machine=Machine(cores=4, oom_kills=(OomKill(555, f"Killed process 555 ({idle_worker(W1, 1).name})", "/another-pod"),)),
        ),
        LOOP,
        "2 out-of-memory kills",
    ),
    ("result-lost", exam(loop_process(), idle_worker(W0, 0), idle_worker(W1, 1)), LOOP, "worker 0 (pid 101) finished but could not send"),
    (
        "shared-memory-full",
        exam(loop_process(shm=ShmSpace(64 * 10**6, 10**5)), idle_worker(W0, 0), idle_worker(W1, 1)),
        LOOP,
        "--shm-size",
    ),
    (
        "descriptors-exhausted",
        exam(loop_process(), idle_worker(W0, 0, descriptor_count=1024)),
        W0,
        "1024 of 1024 files",
    ),
    (
        "pin-thread-stuck",
        exam(
            process(
                LOOP,
                still(LOOP, WAITING, call=POLL),
                still(
                    160,
                    (
                        frame("Graph.pin_memory", DATA, 12),
                        frame("pin_memory", f"{TORCH}/_utils/pin_memory.py"),
                        frame("do_one_step", f"{TORCH}/_utils/pin_memory.py"),
                        frame("_pin_memory_loop", f"{TORCH}/_utils/pin_memory.py"),
                    ),
                    "Thread-1",
                    call=lock(),
                ),
                feeder(200),
            ),
            idle_worker(W0, 0),
            idle_worker(W1, 1),
        ),
        LOOP,
        "pinning a batch",
    ),
    (
        "pin-thread-dead",
        exam(
            process(LOOP, still(LOOP, (frame("get", f"{LIB}/queue.py"), *WAITING[2:]), call=lock()), feeder(200)),
            idle_worker(W0, 0),
        ),
        LOOP,
        "is not there any more",
    ),
    ("orphans", exam(process(LOOP, still(LOOP, idle(0), call=POLL), name="pt_data_worker", parent=1)), LOOP, "kill -9 100"),
    (
        "one-core-affinity",
        exam(
            loop_process(moving=True),
            *(
                process(
                    pid,
                    thread(pid, sample(loading(0), state="R"), sample(loading(0, sample=41), state="R", cpu_s=1.5, delayed_s=2.0)),
                    cores=(3,),
                )
                for pid in (W0, W1)
            ),
        ),
        LOOP,
        "only core 3 of 4",
    ),
    (
        "cpu-throttled",
        exam(
            loop_process(moving=True, cgroup="/pod"),
            idle_worker(W0, 0),
            cgroups=(Cgroup("/pod", cpu_quota_cores=2.0, throttled_periods=25, periods=30, throttled_s=2.0),),
        ),
        LOOP,
        "83 %",
    ),
    (
        "swapping",
        exam(
            loop_process(moving=True, last=ProcessSample("S", 1.0, WINDOW_S, major_faults=9000, memory=Memory(10**8, swap=10**9))),
            idle_worker(W0, 0),
            machine=Machine(cores=4, swapped_in=5000, swapped_out=5000),
        ),
        LOOP,
        "does not fit into the memory of the machine",
    ),
    (
        "frozen-cgroup",  # the workers alone are paused: what they were at looks like a sample that sleeps for ever
        exam(loop_process(), replace(stuck_worker(W0, 0, call=Call("clock_nanosleep"), asleep_s=900.0), frozen_by="/pod/freezer.state")),
        W0,
        "worker 0 (pid 101) cannot run: cgroup /pod is frozen",
    ),
    (
        "blocked-on-full-pipe",
        replace(reading("pipe", "pipe:[77]", "write", writable=True), holders=(Holder(9, ("ffmpeg",), reads=(77,)),)),
        W0,
        "process 9 (ffmpeg) could read but does not",
    ),
    ("blocked-on-full-pipe", reading("pipe", "pipe:[77]", "write", writable=True), W0, "which nobody else reads"),
    (
        "blocked-in-event-loop",
        exam(
            loop_process(),
            replace(
                stuck_worker(W0, 0, call=Call("epoll_wait", descriptors=(9,))),
                descriptors=(
                    *PIPES,
                    *(Descriptor(9 + n, "socket", "socket", inode=77 + n, socket=Socket("unix", remote_inode=78 - n)) for n in (0, 1)),
                ),
            ),
        ),
        W0,
        "no connection is open",
    ),
    (
        "infinite-loop",
        exam(loop_process(), process(W0, thread(W0, GOES_ROUND, replace(GOES_ROUND, switches=40)), feeder(W0 + 200))),
        W0,
        "has gone round",
    ),
    (
        "file-lock",
        replace(
            reading("file", "/data/x.lock", "flock"),
            file_locks=(FileLock(1, "FLOCK", W0, 0, 77), FileLock(1, "FLOCK", W0, 0, 77, waiting=True)),
        ),
        W0,
        "which it holds itself",
    ),
    (
        "frozen-cgroup",
        exam(
            loop_process(frozen_by="/pod/cgroup.freeze"),
            *(idle_worker(pid, number, frozen_by="/pod/cgroup.freeze") for number, pid in enumerate((W0, W1))),
        ),
        LOOP,
        "the container is paused: its cgroup /pod is frozen",
    ),
    (
        "loop-in-collective",
        exam(
            loop_process((frame("all_reduce", "/env/site-packages/torch/distributed/distributed_c10d.py"), *COMPUTING), rank="2"),
            idle_worker(W0, 0),
        ),
        LOOP,
        "rank 2",
    ),
    (
        "loop-blocked",
        exam(process(LOOP, still(LOOP, COMPUTING, call=lock()), feeder(200)), idle_worker(W0, 0), idle_worker(W1, 1)),
        LOOP,
        "the loader is innocent",
    ),
    (
        "gil-held",
        exam(
            process(
                LOOP,
                still(LOOP, COMPUTING, call=lock()),
                still(170, (frame("watch", TRAIN, 5),), "watcher", owns_gil=True, call=Call("nanosleep")),
                feeder(200),
            ),
            idle_worker(W0, 0),
        ),
        LOOP,
        "'watcher'",
    ),
]


@pytest.mark.parametrize(("code", "facts", "pid", "words"), DISEASES, ids=[f"{row[0]}-{number}" for number, row in enumerate(DISEASES)])
def test_a_disease(code: str, facts: Examination, pid: int | None, words: str) -> None:
    diagnosis = diagnose(facts)
    found = diagnosis.verdict
    assert (found.code, found.severity, found.pid) == (code, Severity.DISEASE, pid), found
    assert words in "\n".join((found.verdict, *found.evidence, *found.advice))
    assert "\n" not in found.verdict
    assert found.advice


def moving_worker(pid: int, number: int) -> object:
    later = loading(number, sample=41)
    return process(pid, thread(pid, sample(loading(number)), sample(later, switches=20, asleep_s=0.1)), feeder(pid + 200, ran=True))


FINE: list[tuple[str, Examination]] = [
    ("slow-but-progressing", exam(loop_process(moving=True), moving_worker(W0, 0), moving_worker(W1, 1))),  # type: ignore[arg-type]
    (
        "healthy",
        exam(process(LOOP, thread(LOOP, sample(COMPUTING), sample(COMPUTING, switches=99)), feeder(200, ran=True)), moving_worker(W0, 0)),
    ),  # type: ignore[arg-type]
    ("loop-is-slow", exam(process(LOOP, running(LOOP, COMPUTING), feeder(200)), idle_worker(W0, 0), idle_worker(W1, 1))),
    ("no-loader", exam(process(LOOP, still(LOOP, COMPUTING)))),
    (
        "infinite-loop",  # only a note: it has computed for a few seconds, and nothing says how long a sample takes
        exam(loop_process(), process(W0, running(W0, loading(0, batch=0)), age_s=5.0)),
    ),
    (
        "infinite-loop",  # only a note: earlier batches took as long
        exam(loop_process(), process(W0, running(W0, loading(0, batch=20)), feeder(301))),
    ),
]


DRAWS = (
    frame("Mine.__iter__", "/home/u/draw.py", 9),
    frame("_BaseDataLoaderIter._next_index", f"{TORCH}/dataloader.py"),
    frame("_MultiProcessingDataLoaderIter._try_put_index", f"{TORCH}/dataloader.py"),
    frame("<module>", TRAIN, 20),
)


def test_a_sampler_that_does_not_come_back_is_not_called_the_training_loop() -> None:
    found = diagnose(exam(process(LOOP, running(LOOP, DRAWS), feeder(200)), idle_worker(W0, 0), idle_worker(W1, 1))).verdict
    assert (found.code, found.severity) == ("loop-is-slow", Severity.DISEASE)  # it has drawn for a minute
    assert "its sampler at draw.py:9" in found.verdict and "what ends it" in found.advice[0]
    asleep = diagnose(exam(process(LOOP, still(LOOP, DRAWS), feeder(200)), idle_worker(W0, 0), idle_worker(W1, 1))).verdict
    assert asleep.code == "loop-blocked" and "in its sampler" in asleep.verdict and "loader is innocent" not in asleep.verdict


def test_a_collate_function_of_any_name_is_told_from_a_sample() -> None:
    fetch = frame("_MapDatasetFetcher.fetch", f"{TORCH}/_utils/fetch.py", 55, possibly_batched_index=[4, 5])
    frames = (frame("pad", DATA, 7), fetch, *worker_loop(0, idx=9))
    found = diagnose(exam(loop_process(), process(W0, running(W0, frames), feeder(301)))).verdict
    assert found.code == "infinite-loop" and "collating the batch of samples [4, 5]" in found.verdict
    assert any("collate_fn([dataset[index] for index in [4, 5]])" in line for line in found.advice)


def test_healthy_but_idle_workers_point_at_the_loop() -> None:
    rests = process(LOOP, thread(LOOP, sample(COMPUTING), sample(COMPUTING, switches=99)), feeder(200, ran=True))
    ahead, behind = diagnose(exam(rests, idle_worker(W0, 0))).verdict, diagnose(exam(rests, moving_worker(W0, 0))).verdict  # type: ignore[arg-type]
    assert (ahead.code, behind.code) == ("healthy", "healthy")
    assert "the loader is innocent" in ahead.advice[0] and "antifreeze profile" in behind.advice[0]


@pytest.mark.parametrize(("code", "facts"), FINE, ids=[f"{row[0]}-{number}" for number, row in enumerate(FINE)])
def test_no_wolf(code: str, facts: Examination) -> None:
    diagnosis = diagnose(facts)
    assert diagnosis.verdict.code == code
    assert not diagnosis.is_disease


def test_the_same_cause_in_two_workers_is_one_finding() -> None:
    diagnosis = diagnose(exam(loop_process(), stuck_worker(W0, 0, call=lock()), stuck_worker(W1, 1, call=lock())))
    assert len(diagnosis.findings) == 1
    assert any("worker 1 (pid 102)" in line for line in diagnosis.verdict.evidence)


def test_a_consequence_is_not_said_beside_its_cause() -> None:
    full = exam(loop_process(shm=ShmSpace(64 * 10**6, 0)), idle_worker(W0, 0), idle_worker(W1, 1))
    assert [found.code for found in diagnose(full).findings] == ["shared-memory-full"]


def test_the_awaited_worker_comes_first() -> None:
    both = exam(loop_process(), stuck_worker(W1, 1, call=lock()), process(W0, LOOPING, feeder(301)))
    awaited = [found for found in diagnose(both).findings if found.worker == 0]
    assert awaited[0].code == "infinite-loop"


def test_orphans_of_others_are_a_note_beside_the_verdict() -> None:
    other = process(900, still(900, idle(0), call=POLL), parent=1, group=899, session=899)
    diagnosis = diagnose(exam(loop_process(), stuck_worker(W0, 0, call=lock()), orphans=(other,)))
    assert [found.code for found in diagnosis.findings] == ["lock-inherited-by-fork", "orphans"]
    assert diagnosis.findings[1].severity is Severity.NOTE


def test_a_spawned_worker_inherits_no_lock() -> None:
    spawned = replace(stuck_worker(W0, 0, call=lock()), command=("python", "-c", "from multiprocessing.spawn import spawn_main"))
    assert "lock-inherited-by-fork" not in [found.code for found in diagnose(exam(loop_process(), spawned)).findings]


def test_an_idle_worker_is_not_blocked_on_its_pipe() -> None:
    codes = [found.code for found in diagnose(exam(loop_process(moving=True), idle_worker(W0, 0))).findings]
    assert "blocked-on-pipe" not in codes


def test_how_sure_grows_with_how_long() -> None:
    def verdict(asleep_s: float, batch: int) -> Confidence:
        worker = process(W0, still(W0, loading(0, batch=batch), call=Call("clock_nanosleep"), asleep_s=asleep_s), age_s=600.0)
        return diagnose(exam(loop_process(), worker)).verdict.confidence

    assert verdict(4.0, 0) is Confidence.POSSIBLE
    assert verdict(20.0, 0) is Confidence.LIKELY
    assert verdict(100.0, 0) is Confidence.CERTAIN
    assert verdict(100.0, 20) is Confidence.POSSIBLE  # its earlier batches took about 54 s
    assert verdict(100.0, 2000) is Confidence.CERTAIN


def test_the_journal_is_believed_without_a_stack() -> None:
    now = JournalEntry(worker=1, stage="FETCH", batch=7, sample="403", since_s=90.0, samples=400)
    sample_of = ProcessSample("R", 1.0, 0.0, journal=now)
    worker = process(W1, running(W1, ()), name="af_worker", first=sample_of, last=replace(sample_of, at_s=WINDOW_S))
    found = diagnose(exam(loop_process(), worker)).verdict
    assert (found.code, found.worker, found.severity) == ("infinite-loop", 1, Severity.DISEASE)
    assert "sample 403 for 90 s" in found.verdict


def test_without_stacks_states_and_calls_still_tell() -> None:
    blind = (Blindness("the Python stacks", "not allowed", "sudo"),)
    found, descriptors = reads("fifo", "/data/fifo")
    worker = process(W0, still(W0, (), call=found, wchan="fifo_pipe_read"), still(301, ()), descriptors=descriptors)
    loop = process(LOOP, still(LOOP, (), call=POLL, wchan="poll_schedule_timeout"))
    diagnosis = diagnose(exam(loop, worker, blindness=blind))
    assert diagnosis.verdict.code == "blocked-on-fifo"
    assert "/data/fifo" in diagnosis.verdict.verdict


def test_without_stacks_a_worker_that_sends_is_not_stuck() -> None:
    worker = process(W0, running(W0, ()), thread(301, sample(()), sample((), switches=77), "x"))
    diagnosis = diagnose(exam(process(LOOP, still(LOOP, (), call=POLL, wchan="poll_schedule_timeout")), worker))
    assert not diagnosis.is_disease


def test_handles_opened_before_the_fork_are_a_risk() -> None:
    shared = (*PIPES, Descriptor(12, "/data/all.h5", "file"))
    facts = exam(loop_process(moving=True, descriptors=shared), replace(idle_worker(W0, 0), descriptors=shared))
    assert "handle-opened-before-fork" in [found.code for found in diagnose(facts).findings]
    assert not diagnose(facts).is_disease


def zombie(status: int) -> object:
    return process(W0, exit_status=status, last=ProcessSample("Z", 1.0), first=None)


def test_a_worker_that_ended_by_itself_is_not_called_dead() -> None:
    """An iterable data set's worker ends with code 0 when it is through, while others still load."""
    busy = stuck_worker(W1, 1, call=Call("clock_nanosleep"), asleep_s=4.0)
    codes = [found.code for found in diagnose(exam(loop_process(), zombie(0), busy)).findings]  # type: ignore[arg-type]
    assert "worker-dead" not in codes
    codes = [found.code for found in diagnose(exam(loop_process(), zombie(9), busy)).findings]  # type: ignore[arg-type]
    assert codes[0] == "worker-dead"


def test_a_worker_that_dies_of_a_full_shm_names_it() -> None:
    facts = exam(loop_process(shm=ShmSpace(64 * 10**6, 2 * 10**7)), idle_worker(W1, 1), zombie(7))  # type: ignore[arg-type]
    assert diagnose(facts).verdict.code == "shared-memory-full"
    assert any("SIGBUS" in line for line in diagnose(facts).verdict.evidence)


def test_a_worker_that_unpickles_for_long_is_starting_and_not_stuck() -> None:
    importing = running(W0, (frame("loads", f"{LIB}/pickle.py"), frame("_main", f"{LIB}/multiprocessing/spawn.py")))
    diagnosis = diagnose(exam(loop_process(), process(W0, importing, age_s=300.0)))
    assert diagnosis.verdict.code == "starting-workers"
    assert not diagnosis.is_disease


def test_a_worker_that_fell_asleep_just_after_the_first_look_is_still_seen() -> None:
    found, descriptors = reads("fifo", "/data/fifo")
    first, last = sample(loading(0), asleep_s=0.01), sample(loading(0), switches=11, asleep_s=2.9, call=found)
    worker = process(W0, thread(W0, first, last), feeder(301), descriptors=descriptors)
    assert diagnose(exam(loop_process(), worker)).verdict.code == "blocked-on-fifo"
