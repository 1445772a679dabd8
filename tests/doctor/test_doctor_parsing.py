"""What the kernel and py-spy write, read back: one small text per reader."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from antifreeze.doctor.facts.calls import call_names, decode_call
from antifreeze.doctor.facts.descriptors import filesystem_of, is_remote, kind_of, parse_mounts
from antifreeze.doctor.facts.holders import locks_that_matter, parse_file_locks
from antifreeze.doctor.facts.machine import frozen_by, parse_cpu_max, parse_oom_kills, place_cgroup
from antifreeze.doctor.facts.model import Call, FileLock, ThreadSample
from antifreeze.doctor.facts.native import follows_a_call, libraries_on_stack
from antifreeze.doctor.facts.permission import has_capability, is_refusal, reason_and_remedy
from antifreeze.doctor.facts.proc import Mapping, parse_cores, parse_fair_memory, parse_mapping, parse_stat, parse_status
from antifreeze.doctor.facts.sockets import address_text, parse_inet, parse_unix
from antifreeze.doctor.facts.stacks import PythonThread, first_causes, parse_dump
from antifreeze.doctor.facts.threads import SeenThread, exec_start_ms, whose
from antifreeze.doctor.findings.sources import lock_taken_at, locks_held_at
from antifreeze.doctor.findings.words import bytes_text, exit_text, listed, seconds_text
from antifreeze.doctor.report.charts import nice_ticks

NAMES = call_names("x86_64")
STAT = "4711 (my (odd) name) S 1 4711 4711 0 -1 4194304 100 0 7 0 250 50 0 0 20 0 3 0 123400 " + " ".join(["0"] * 29) + " 9"


def test_stat_with_parentheses_in_the_name() -> None:
    stat = parse_stat(STAT)
    ticks = os.sysconf("SC_CLK_TCK")
    assert (stat.name, stat.state, stat.parent, stat.major_faults) == ("my (odd) name", "S", 1, 7)
    assert stat.cpu_s == 300 / ticks
    assert stat.exit_status == 9


def test_status() -> None:
    status = parse_status(
        "Uid:\t7\t7\nTracerPid:\t42\nVmRSS:\t 8 kB\nRssAnon:\t 4 kB\nCpus_allowed_list:\t0-2,5\nvoluntary_ctxt_switches:\t9\n"
    )
    assert (status.user, status.tracer, status.cores, status.memory.rss, status.voluntary_switches) == (7, 42, (0, 1, 2, 5), 8192, 9)


@pytest.mark.parametrize(("text", "cores"), [("", ()), ("3", (3,)), ("0-1", (0, 1)), ("0-1,4,6-7", (0, 1, 4, 6, 7))])
def test_cores(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores


def no_memory(address: int, size: int) -> bytes | None:
    return None


def test_a_read_names_its_descriptor() -> None:
    call = decode_call("0 0xd 0x7f00 0x80 0x0 0x0 0x0 0x7ffe 0x7fff", no_memory, [], NAMES)
    assert call is not None
    assert (call.name, call.descriptors, call.stack_pointer) == ("read", (13,), 0x7FFE)


def test_a_poll_names_all_its_descriptors_and_its_limit() -> None:
    def memory(address: int, size: int) -> bytes | None:
        return struct.pack("=iIiI", 5, 1, 9, 1) if (address, size) == (0x7F00, 16) else None

    call = decode_call("7 0x7f00 0x2 0x1388 0x0 0x0 0x0 0x1 0x2", memory, [], NAMES)
    assert call is not None
    assert (call.name, call.descriptors, call.limit_s) == ("poll", (5, 9), 5.0)


def test_an_open_names_its_path() -> None:
    def memory(address: int, size: int) -> bytes | None:
        return b"/data/fifo\0junk"[:size]

    call = decode_call("257 0xffffff9c 0x7f10 0x80000 0x0 0x0 0x0 0x1 0x2", memory, [], NAMES)
    assert call is not None
    assert (call.name, call.path) == ("openat", "/data/fifo")


def test_a_select_names_its_descriptors() -> None:
    call = decode_call("23 0x8 0x7f00 0x0 0x0 0x0 0x0 0x1 0x2", lambda address, size: bytes([0b1001_0000]) + bytes(127), [], NAMES)
    assert call is not None
    assert call.descriptors == (4, 7)


@pytest.mark.parametrize(
    ("operation", "mapping", "private"),
    [
        ("0x189", "7f00-8f00 rw-p 00000000 00:00 0 [heap]", True),
        ("0x109", "7f00-8f00 rw-s 00000000 00:1b 55 /dev/shm/sem.mp-x (deleted)", False),
        ("0x109", "7f00-8f00 rw-p 00000000 00:00 0", True),  # shared by its flag, but in memory that nobody shares
    ],
)
def test_a_futex_tells_whose_it_is(operation: str, mapping: str, private: bool) -> None:
    call = decode_call(f"202 0x7f10 {operation} 0x0 0x0 0x0 0x0 0x1 0x2", no_memory, [parse_mapping(mapping)], NAMES)
    assert call is not None
    assert call.futex is not None
    assert call.futex.private is private


@pytest.mark.parametrize("text", ["running", "-1 0x7ffe 0x7fff", "", "0"])
def test_no_call_to_be_seen(text: str) -> None:
    assert decode_call(text, no_memory, [], NAMES) is None


def test_the_generic_table_is_for_other_machines() -> None:
    assert call_names("aarch64")[98] == "futex"
    assert call_names("x86_64")[202] == "futex"


def test_mounts_and_remote_file_systems() -> None:
    mounts = parse_mounts("/dev/vda / ext4 rw 0 0\nsrv:/x /mnt/nfs nfs4 rw 0 0\nbucket /mnt/my\\040bucket fuse.gcsfuse rw 0 0\n")
    assert filesystem_of("/mnt/nfs/a/b", mounts) == "nfs4"
    assert filesystem_of("/mnt/nfs2", mounts) == "ext4"
    assert filesystem_of("/mnt/my bucket/x", mounts) == "fuse.gcsfuse"
    assert all(is_remote(kind) for kind in ("nfs4", "fuse.gcsfuse", "lustre", "cifs"))
    assert not any(is_remote(kind) for kind in ("ext4", "fuseblk", "tmpfs", "overlay"))


@pytest.mark.parametrize(
    ("target", "mode", "kind"),
    [
        ("pipe:[7]", 0, "pipe"),
        ("/memfd:x (deleted)", 0, "memfd"),
        ("/dev/shm/t", 0, "shared memory"),
        ("/x", 0o010644, "fifo"),
        ("/x", 0o100644, "file"),
    ],
)
def test_kinds_of_descriptors(target: str, mode: int, kind: str) -> None:
    assert kind_of(target, mode) == kind


def test_file_locks() -> None:
    held, waiting = "1: FLOCK  ADVISORY  WRITE 10 08:02:77 0 EOF\n", "1: -> FLOCK  ADVISORY  WRITE 11 08:02:77 0 EOF\n"
    text = f"{held}{waiting}2: POSIX  ADVISORY  READ 12 08:02:78 0 EOF\n"
    device = os.makedev(8, 2)
    waited_for = (FileLock(1, "FLOCK", 10, device, 77), FileLock(1, "FLOCK", 11, device, 77, waiting=True))
    assert locks_that_matter(parse_file_locks(text), {11, 12}) == waited_for
    assert locks_that_matter(parse_file_locks(text), {12}) == ()


def test_tcp_and_unix_sockets() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    tcp = head + "   0: 0100007F:1F90 0200000A:01BB 01 0:0 00:0 0 0 0 555 1\n"
    found = parse_inet(tcp)[555]
    assert (found.local, found.remote, found.state) == ("127.0.0.1:8080", "10.0.0.2:443", "ESTABLISHED")
    assert address_text("00000000000000000000000001000000:0050") == "[::1]:80"
    assert parse_unix("Num RefCount Protocol Flags Type St Inode Path\nffff: 2 0 0 1 1 77 /run/x.sock\nffff: 2 0 0 1 1 78\n") == {
        77: "/run/x.sock",
        78: "",
    }


def test_cgroups_of_both_versions() -> None:
    assert place_cgroup("0::/", "/nowhere").version == 2
    old = place_cgroup("4:memory:/pod/a\n1:cpu,cpuacct:/pod/a\n0::/\n", "/nowhere")
    assert (old.version, old.name) == (1, "/pod/a")
    assert parse_cpu_max("max 100000") is None
    assert parse_cpu_max("150000 100000\n") == 1.5


def test_the_kernels_log_of_kills() -> None:
    text = (
        "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/a,task_memcg=/a/b,task=pt_data_worker,pid=34,uid=0\n"
        "6,1,2,-;eth0 up\n3,9,9,-;Out of memory: Killed process 12 (python) total-vm:1kB\n"
        "3,9,9,-;Memory cgroup out of memory: Killed process 34 (pt_data_worker) anon-rss:2kB\n"
    )
    assert [kill.pid for kill in parse_oom_kills(text)] == [12, 34]
    unknown, known = parse_oom_kills(text)
    assert known.text.startswith("Memory cgroup out of memory")
    assert known.was_in("/a/b") and known.was_in("/b") and known.was_in("/") and not known.was_in("/a")
    assert unknown.was_in("/a")


def dump(function: str, file: str, *values: dict[str, object]) -> bytes:
    frames = [{"name": function, "filename": file, "line": 3, "locals": list(values)}]
    return json.dumps([{"thread_id": 99, "os_thread_id": 7, "thread_name": "MainThread", "owns_gil": True, "frames": frames}]).encode()


def local(name: str, text: str, arg: bool = False) -> dict[str, object]:
    return {"name": name, "repr": text, "arg": arg, "addr": 1}


def test_only_what_names_the_work_is_kept_of_a_stack() -> None:
    torch_file = "/x/site-packages/torch/utils/data/_utils/worker.py"
    (thread,) = parse_dump(
        dump("_worker_loop", torch_file, local("worker_id", "3"), local("data", "{'secret': 1}"), local("dataset", "<D>"))
    )
    assert thread.frames[0].values == (("worker_id", "3"),)
    (thread,) = parse_dump(
        dump("D.__getitem__", "/me/data.py", local("self", "<D>", True), local("i", "8", True), local("password", "'x'"))
    )
    assert thread.frames[0].values == (("index", "8"),)
    (thread,) = parse_dump(dump("login", "/me/data.py", local("token", "'abc'", True)))
    assert thread.frames[0].values == ()


def test_py_spys_error_without_its_own_stack() -> None:
    text = "Error: Permission Denied: Try again\n\nCaused by:\n    0: Operation not permitted (os error 1)\n\nStack backtrace:\n   0: x\n"
    assert first_causes(text) == "Permission Denied: Try again; Operation not permitted (os error 1)"
    assert is_refusal(first_causes(text))
    assert not is_refusal("Failed to find python version from target process")


@pytest.mark.parametrize(
    ("same_user", "may_trace", "yama", "in_container", "words"),
    [
        (True, False, 1, False, "sysctl kernel.yama.ptrace_scope=0"),
        (True, False, 2, False, "sudo antifreeze doctor"),
        (True, False, 2, True, "--cap-add=SYS_PTRACE"),
        (True, True, 3, False, "reboot"),
        (False, False, 0, False, "as that user"),
        (True, False, None, True, "securityContext.capabilities"),
        (True, True, 0, False, "seccomp"),
    ],
)
def test_what_to_allow(same_user: bool, may_trace: bool, yama: int | None, in_container: bool, words: str) -> None:
    assert words in " ".join(reason_and_remedy(same_user=same_user, may_trace=may_trace, yama=yama, in_container=in_container))


def test_capabilities() -> None:
    assert has_capability("CapEff:\t0000000000080000\n", 19)
    assert not has_capability("CapEff:\t0000000000000000\n", 19)


def test_when_a_thread_last_ran() -> None:
    assert exec_start_ms("python (1, #threads: 1)\n---\nse.exec_start   :   1187917.183972\n") == 1187917.183972
    assert exec_start_ms("") is None


STACKS = [Mapping(start, start + 0x800, False, False, 0, "") for start in (0x1000, 0x2000, 0x3000)]


@pytest.mark.parametrize(
    ("pointers", "known", "expected"),
    [
        ({1: 0x7F00, 2: 0x1100, 3: 0x2100}, {}, [1, 2, 3]),
        ({1: 0x7F00, 2: 0x1100, 3: None}, {}, [1, 2, 3]),  # the one that runs
        ({1: 0x7F00, 2: None, 3: None}, {}, [1, None, None]),  # who is who nobody knows
        ({1: 0x7F00, 2: 0x1100, 3: None, 4: None}, {}, [1, 2, None]),
        ({1: 0x7F00, 2: 0x1100, 4: 0x3100}, {}, [1, 2, None]),  # its neighbour's stack is not its own
        ({1: None, 2: None, 3: None}, {"one": 3, "two": 2}, [1, 3, 2]),  # from Python 3.11 on
    ],
)
def test_whose_stack_it_is(pointers: dict[int, int | None], known: dict[str, int], expected: list[int | None]) -> None:
    calls = {tid: None if pointer is None else Call("futex", stack_pointer=pointer) for tid, pointer in pointers.items()}
    seen = {tid: SeenThread("python", "", ThreadSample("S", 0.0, call=call)) for tid, call in calls.items()}
    names = {"MainThread": 0x9000, "one": 0x1700, "two": 0x2700}
    stacks = tuple(PythonThread(known.get(name), pthread, name, (), False) for name, pthread in names.items())
    assert whose(1, seen, stacks, STACKS) == expected


def test_libraries_are_found_by_their_return_addresses() -> None:
    code = parse_mapping("1000-2000 r-xp 00000000 00:00 5 /usr/lib/libgomp.so.1")
    libc = parse_mapping("3000-4000 r-xp 00000000 00:00 6 /usr/lib/libc.so.6")
    stack = struct.pack("=4Q", 0xDEAD, 0x3100, 0x1100, 0x1200)

    def memory(address: int, size: int) -> bytes | None:
        if address == 0x9000:
            return stack
        return b"\0\0\0\xe8\0\0\0\0" if address in (0x3100 - 8, 0x1100 - 8) else bytes(8)

    assert libraries_on_stack(0x9000, [code, libc], memory) == ("libgomp.so.1",)


@pytest.mark.parametrize(
    ("before", "found"),
    [(b"\0\0\0\xe8\1\2\3\4", True), (b"\0\0\0\0\0\0\xff\xd0", True), (b"\0\0\xff\x15\0\0\0\0", True), (bytes(8), False), (None, False)],
)
def test_a_call_stands_before_a_return_address(before: bytes | None, found: bool) -> None:
    assert follows_a_call(before, "x86_64") is found


SOURCE = """
class D:
    def get(self):
        with self.lock, open("x") as f:
            return f.read()
    def other(self):
        self.gate.acquire()
        with (
            self.lock
        ):
            return 1
"""


@pytest.mark.parametrize(("line", "lock"), [(4, "self.lock"), (5, None), (7, "self.gate"), (9, "self.lock"), (11, None)])
def test_the_lock_a_line_takes(line: int, lock: str | None) -> None:
    assert lock_taken_at(SOURCE, line) == lock


def test_the_locks_held_on_a_line() -> None:
    assert [name for name, _ in locks_held_at(SOURCE, 5)] == ["self.lock", "open('x')"]
    assert locks_held_at(SOURCE, 4) == ()
    assert locks_held_at("not python (", 1) == ()
    assert locks_held_at(None, 1) == ()


def test_words() -> None:
    assert [seconds_text(value) for value in (None, 0.02, 3.21, 44, 200, 9000)] == [
        "an unknown time",
        "20 ms",
        "3.2 s",
        "44 s",
        "3 min",
        "2.5 h",
    ]
    assert [bytes_text(value) for value in (None, 5, 4_200_000, 320_000_000, 25.3e9)] == ["?", "5 B", "4.2 MB", "320 MB", "25.3 GB"]
    assert [listed(range(count)) for count in (0, 1, 2, 3)] == ["none", "0", "0 and 1", "0, 1 and 2"]
    assert listed(range(9), most=2) == "0, 1 and 7 more"
    assert [exit_text(status) for status in (9, 256, None)] == ["killed by SIGKILL", "exit code 1", "it is gone"]


@pytest.mark.parametrize(("largest", "last"), [(0, 1), (100, 100), (100.0001, 100), (63, 80), (0.3, 0.3), (1234, 1500)])
def test_ticks_are_round(largest: float, last: float) -> None:
    ticks = nice_ticks(largest)
    assert ticks[0] == 0
    assert ticks[-1] == pytest.approx(last)
    assert 2 <= len(ticks) <= 7


def test_either_version_of_the_freezer_is_seen_and_the_one_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antifreeze.doctor.facts.machine.CGROUP_ROOT", str(tmp_path))
    old, new = tmp_path / "freezer" / "batch" / "job", tmp_path / "unified" / "pod"
    old.mkdir(parents=True)
    new.mkdir(parents=True)
    place = place_cgroup("3:freezer:/batch/job\n2:memory:/\n1:cpu:/\n0::/pod\n", str(tmp_path))
    assert frozen_by(place) == ""
    (new / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    (new / "cgroup.freeze").write_text("1\n")
    assert frozen_by(place) == str(new / "cgroup.freeze")
    (old / "freezer.state").write_text("FROZEN\n")
    (old / "freezer.self_freezing").write_text("0\n")
    (old.parent / "freezer.self_freezing").write_text("1\n")
    assert frozen_by(place) == str(old.parent / "freezer.state")  # to write into the job's own would change nothing


def test_a_socket_that_is_not_connected_has_nobody_at_its_other_end() -> None:
    line = "  19: 0100007F:C3B4 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0 0"
    found = parse_inet(f"sl local remote st\n{line}\n", "udp")[4711]
    assert (found.family, found.local, found.remote, found.state) == ("udp", "127.0.0.1:50100", "", "")


def test_shared_swap_is_shared_fairly() -> None:
    found = parse_fair_memory("55-7f rollup\nPss: 100 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty: 2 kB\nSwap: 90 kB\nSwapPss: 30 kB\n")
    assert (found.pss, found.private, found.swap) == (102400, 3072, 30720)
