"""The world around the patient: cores, memory, swap, the limits of its cgroups (version 1 and 2), and whom the kernel killed for memory."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass

from antifreeze.doctor.facts.model import Cgroup, Machine, OomKill
from antifreeze.doctor.facts.proc import read_text

UNLIMITED = 1 << 60
MOST_LOG_LINES, MOST_KILLS = 100_000, 20
CGROUP_ROOT = "/sys/fs/cgroup"


def read_numbers(text: str | None) -> dict[str, int]:
    """Lines of "name number [unit]", as most of the kernel's statistics are written."""
    numbers: dict[str, int] = {}
    for line in (text or "").splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdigit():
            numbers[words[0]] = int(words[1])
    return numbers


@dataclass(frozen=True)
class MachineCounters:
    swapped_in: int
    swapped_out: int


def read_machine_counters() -> MachineCounters:
    numbers = read_numbers(read_text("/proc/vmstat"))
    return MachineCounters(numbers.get("pswpin", 0), numbers.get("pswpout", 0))


def read_machine(before: MachineCounters, after: MachineCounters) -> Machine:
    memory = read_numbers(read_text("/proc/meminfo"))
    return Machine(
        cores=os.cpu_count() or 1,
        memory_total=memory.get("MemTotal", 0) * 1024,
        memory_available=memory.get("MemAvailable", 0) * 1024,
        swap_total=memory.get("SwapTotal", 0) * 1024,
        swapped_in=after.swapped_in - before.swapped_in,
        swapped_out=after.swapped_out - before.swapped_out,
        load=os.getloadavg()[0],
        kernel=platform.release(),
        oom_kills=read_oom_kills(),
    )


def read_oom_kills() -> tuple[OomKill, ...]:
    """From the kernel's log, which is there for root only on most systems."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ()
    lines: list[str] = []
    try:
        while len(lines) < MOST_LOG_LINES:
            lines.append(os.read(log, 8192).decode(errors="replace"))
    except OSError:  # the end of the log, for now
        pass
    finally:
        os.close(log)
    return parse_oom_kills("".join(lines))


def parse_oom_kills(text: str) -> tuple[OomKill, ...]:
    pattern = re.compile(r"[^;\n]*;?((?:Memory cgroup o|O)ut of memory: Killed process (\d+) [^\n]*)")
    whose = re.compile(r"oom-kill:[^\n]*\btask_memcg=([^,\n]*),task=[^\n]*,pid=(\d+)")
    cgroups = {int(match.group(2)): match.group(1) for match in whose.finditer(text)}
    found = [(int(match.group(2)), match.group(1).strip()) for match in pattern.finditer(text)]
    return tuple(OomKill(pid, words, cgroups.get(pid)) for pid, words in found[-MOST_KILLS:])


@dataclass(frozen=True)
class CgroupPlace:
    """Where the files of one process's cgroup are: one folder in version 2, one per controller in version 1."""

    name: str
    cpu: str
    memory: str
    version: int
    freezers: tuple[tuple[str, int], ...] = ()
    """(folder, version): where both versions are mounted, either of them can pause a process."""


def find_cgroup(pid: int, root: str = CGROUP_ROOT) -> CgroupPlace | None:
    text = read_text(f"/proc/{pid}/cgroup")
    return None if not text else place_cgroup(text, root)


def place_cgroup(text: str, root: str = CGROUP_ROOT) -> CgroupPlace:
    paths = {}
    for line in text.splitlines():
        _number, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    if "memory" in paths or "cpu" in paths:
        folders = {name: _existing(f"{root}/{name}", paths.get(name, "/")) for name in ("cpu", "memory", "freezer")}
        name = next((paths[controller] for controller in ("cpu", "memory") if paths.get(controller, "/") != "/"), "/")
        beside = [(_existing(f"{root}/unified", paths[""]), 2)] if "" in paths else []
        return CgroupPlace(name, folders["cpu"], folders["memory"], 1, ((folders["freezer"], 1), *beside))
    folder = _existing(root, paths.get("", "/"))
    return CgroupPlace(paths.get("", "/"), folder, folder, 2, ((folder, 2),))


def _existing(mount: str, path: str) -> str:
    """Inside a container the path is often the host's, while the mount shows the container's own cgroup as its root."""
    folder = f"{mount}{path}".rstrip("/")
    return folder if os.path.isdir(folder) else mount


@dataclass(frozen=True)
class CpuCounters:
    periods: int
    throttled_periods: int
    throttled_s: float


def read_cpu_counters(place: CgroupPlace) -> CpuCounters:
    numbers = read_numbers(read_text(f"{_limiting(place)}/cpu.stat"))
    throttled_s = numbers["throttled_usec"] / 1e6 if "throttled_usec" in numbers else numbers.get("throttled_time", 0) / 1e9
    return CpuCounters(numbers.get("nr_periods", 0), numbers.get("nr_throttled", 0), throttled_s)


def _limiting(place: CgroupPlace) -> str:
    """The folder on the way up that has the tightest cpu quota: a limit may be set on any ancestor."""
    folders = list(_upwards(place.cpu))
    limits = {folder: _quota_cores(folder, place.version) for folder in folders}
    limited = {folder: limit for folder, limit in limits.items() if limit is not None}
    return min(limited, key=lambda folder: limited[folder]) if limited else place.cpu


def _upwards(folder: str) -> list[str]:
    found = [folder]
    while os.path.dirname(found[-1]).startswith(CGROUP_ROOT) and found[-1] != CGROUP_ROOT:
        found.append(os.path.dirname(found[-1]))
    return found


def _quota_cores(folder: str, version: int) -> float | None:
    if version == 2:
        return parse_cpu_max(read_text(f"{folder}/cpu.max"))
    quota = (read_text(f"{folder}/cpu.cfs_quota_us") or "-1").strip()
    period = (read_text(f"{folder}/cpu.cfs_period_us") or "100000").strip()
    return int(quota) / int(period) if not quota.startswith("-") and int(period) > 0 else None


def parse_cpu_max(text: str | None) -> float | None:
    words = (text or "max").split()
    return None if words[0] == "max" or len(words) < 2 else int(words[0]) / int(words[1])


def read_cgroup(place: CgroupPlace, before: CpuCounters, after: CpuCounters) -> Cgroup:
    limit, used = _memory(place)
    return Cgroup(
        path=place.name,
        cpu_quota_cores=_quota_cores(_limiting(place), place.version),
        throttled_s=after.throttled_s - before.throttled_s,
        throttled_periods=after.throttled_periods - before.throttled_periods,
        periods=after.periods - before.periods,
        memory_limit=limit,
        memory_used=used,
        oom_kills=_oom_kills(place),
    )


def _memory(place: CgroupPlace) -> tuple[int | None, int | None]:
    limit_name, used_name = ("memory.max", "memory.current") if place.version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    tightest: tuple[int, int | None] | None = None
    for folder in _upwards(place.memory):
        limit = (read_text(f"{folder}/{limit_name}") or "").strip()
        used = (read_text(f"{folder}/{used_name}") or "").strip()
        if limit.isdigit() and int(limit) < UNLIMITED and (tightest is None or int(limit) < tightest[0]):
            tightest = int(limit), int(used) if used.isdigit() else None
    return tightest if tightest else (None, None)


def _oom_kills(place: CgroupPlace) -> int:
    name = "memory.events" if place.version == 2 else "memory.oom_control"
    return read_numbers(read_text(f"{place.memory}/{name}")).get("oom_kill", 0)


def frozen_by(place: CgroupPlace) -> str:
    """The file that pauses the processes of this cgroup, its own or that of one above it; empty where none does."""
    for folder, version in place.freezers:
        if _is_frozen(folder, version):
            own, switch = ("freezer.self_freezing", "freezer.state") if version == 1 else ("cgroup.freeze", "cgroup.freeze")
            asked = [each for each in _upwards(folder) if (read_text(f"{each}/{own}") or "").strip() == "1"]
            return f"{(asked or [folder])[0]}/{switch}"
    return ""


def _is_frozen(folder: str, version: int) -> bool:
    if version == 2:
        return read_numbers(read_text(f"{folder}/cgroup.events")).get("frozen", 0) == 1
    return (read_text(f"{folder}/freezer.state") or "").strip() in ("FROZEN", "FREEZING")
