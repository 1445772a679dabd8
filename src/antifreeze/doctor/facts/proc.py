"""/proc, one file at a time: each reader gives None where the process is gone or not ours to read."""

from __future__ import annotations

import os
from dataclasses import dataclass

from antifreeze.doctor.facts.model import Memory, ShmSpace

PF_EXITING = 0x4  # include/linux/sched.h: the kernel has begun to take it apart
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
KEPT_ENVIRONMENT = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


@dataclass(frozen=True)
class Stat:
    name: str
    state: str
    parent: int
    group: int
    session: int
    major_faults: int
    cpu_s: float
    started_s: float
    exiting: bool
    exit_status: int


@dataclass(frozen=True)
class Status:
    user: int
    tracer: int
    cores: tuple[int, ...]
    memory: Memory
    voluntary_switches: int
    forced_switches: int


@dataclass(frozen=True)
class Mapping:
    start: int
    end: int
    executable: bool
    shared: bool
    inode: int
    path: str


def read_bytes(path: str, limit: int = 1 << 22) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except (OSError, ValueError):
        return None


def read_text(path: str, limit: int = 1 << 22) -> str | None:
    content = read_bytes(path, limit)
    return None if content is None else content.decode(errors="replace")


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def is_dead(pid: int) -> bool:
    """Gone, on its way out, or a zombie that its parent did not reap; an empty command line says none of this: a program that just
    begins (execve) has none for a moment, either."""
    stat = read_stat(pid)
    return stat is None or stat.exiting or stat.state in ("Z", "X")


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def thread_ids(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def read_stat(pid: int, tid: int | None = None) -> Stat | None:
    text = read_text(f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat")
    return None if not text else parse_stat(text)


def parse_stat(text: str) -> Stat:
    """The name may hold spaces and parentheses, so the fields are counted from its last parenthesis."""
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(
        name=name,
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        major_faults=int(fields[9]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
        started_s=int(fields[19]) / TICKS_PER_S,
        exiting=bool(int(fields[6]) & PF_EXITING),
        exit_status=int(fields[49]) if len(fields) > 49 else 0,
    )


def read_status(pid: int, tid: int | None = None) -> Status | None:
    text = read_text(f"/proc/{pid}/status" if tid is None else f"/proc/{pid}/task/{tid}/status")
    return None if not text else parse_status(text)


def parse_status(text: str) -> Status:
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}

    def number(key: str) -> int:
        words = fields.get(key, "").split()
        return int(words[0]) if words else 0

    def size(key: str) -> int:
        return number(key) * 1024

    return Status(
        user=number("Uid"),
        tracer=number("TracerPid"),
        cores=parse_cores(fields.get("Cpus_allowed_list", "")),
        memory=Memory(size("VmRSS"), size("RssAnon"), size("RssFile"), size("RssShmem"), size("VmSwap")),
        voluntary_switches=number("voluntary_ctxt_switches"),
        forced_switches=number("nonvoluntary_ctxt_switches"),
    )


def parse_cores(text: str) -> tuple[int, ...]:
    """ "0-3,8" -> (0, 1, 2, 3, 8)"""
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            cores.extend(range(int(first), int(last or first) + 1))
    return tuple(cores)


@dataclass(frozen=True)
class FairMemory:
    """Bytes, what is shared divided among the sharers."""

    pss: int
    private: int
    swap: int | None


def read_fair_memory(pid: int) -> FairMemory | None:
    """It walks the page table, so it is asked once per examination."""
    text = read_text(f"/proc/{pid}/smaps_rollup")
    return parse_fair_memory(text) if text else None


def parse_fair_memory(text: str) -> FairMemory:
    sizes = {key: int(value.split()[0]) * 1024 for key, _, value in (line.partition(":") for line in text.splitlines()[1:])}
    return FairMemory(sizes.get("Pss", 0), sizes.get("Private_Clean", 0) + sizes.get("Private_Dirty", 0), sizes.get("SwapPss"))


def read_command(pid: int) -> tuple[str, ...]:
    content = read_bytes(f"/proc/{pid}/cmdline") or b""
    return tuple(part.decode(errors="replace") for part in content.rstrip(b"\0").split(b"\0")) if content else ()


def read_rank(pid: int) -> str | None:
    """Only the rank is taken from the environment: the rest may hold secrets."""
    environment = read_bytes(f"/proc/{pid}/environ") or b""
    found = dict(part.split(b"=", 1) for part in environment.split(b"\0") if b"=" in part)
    ranks = (found.get(name.encode()) for name in KEPT_ENVIRONMENT)
    return next((rank.decode(errors="replace") for rank in ranks if rank), None)


def read_descriptor_limit(pid: int) -> int | None:
    for line in (read_text(f"/proc/{pid}/limits") or "").splitlines():
        if line.startswith("Max open files"):
            soft = line.split()[3]
            return int(soft) if soft.isdigit() else None
    return None


def read_uptime_s() -> float:
    text = read_text("/proc/uptime")
    return float(text.split()[0]) if text else 0.0


def read_mappings(pid: int) -> list[Mapping]:
    return [parse_mapping(line) for line in (read_text(f"/proc/{pid}/maps", 1 << 26) or "").splitlines()]


def parse_mapping(line: str) -> Mapping:
    parts = line.split(None, 5)
    start, _, end = parts[0].partition("-")
    return Mapping(
        start=int(start, 16),
        end=int(end, 16),
        executable="x" in parts[1],
        shared="s" in parts[1],
        inode=int(parts[4]),
        path=parts[5] if len(parts) > 5 else "",
    )


def find_mapping(mappings: list[Mapping], address: int) -> Mapping | None:
    return next((each for each in mappings if each.start <= address < each.end), None)


def read_memory(pid: int, address: int, size: int) -> bytes | None:
    """A piece of the patient's memory; needs the right to trace it, and does not stop it."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(size)
    except (OSError, ValueError, OverflowError):
        return None


def read_shm_space(pid: int) -> ShmSpace | None:
    """Through the process's own root, because a container has its own /dev/shm."""
    try:
        space = os.statvfs(f"/proc/{pid}/root/dev/shm")
    except OSError:
        return None
    return ShmSpace(total=space.f_blocks * space.f_frsize, free=space.f_bavail * space.f_frsize)


def looks_like_python(pid: int) -> bool:
    try:
        executable = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        executable = os.path.basename(next(iter(read_command(pid)), ""))
    if executable.startswith(("python", "pypy", "ipython")):
        return True
    return any("/libpython" in each.path for each in read_mappings(pid))
