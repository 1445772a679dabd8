"""Who belongs to the patient: the process tree below it, or above it where a worker was named, and workers that lost their parent."""

from __future__ import annotations

import os
import pwd

from antifreeze.doctor.errors import NoSuchProcess, NotAllowed, NotPython
from antifreeze.doctor.facts.names import NURSERY, WORKER_NAMES
from antifreeze.doctor.facts.proc import all_pids, is_dead, looks_like_python, read_command, read_stat, read_status

DEEPEST = 64


def parents() -> dict[int, int]:
    stats = {pid: read_stat(pid) for pid in all_pids()}
    return {pid: stat.parent for pid, stat in stats.items() if stat is not None}


def below(root: int, parent_of: dict[int, int]) -> list[int]:
    """The root and all its descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for pid, parent in parent_of.items():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found.extend(sorted(children.get(pid, ())))
    return found


def check_patient(pid: int) -> None:
    """Raises the sentence that says why this process cannot be examined."""
    stat = read_stat(pid) if pid > 0 else None
    if stat is None:
        raise NoSuchProcess(f"there is no process {pid}{_who_is_there()}")
    if is_dead(pid):
        raise NoSuchProcess(f"process {pid} is dead, and its parent {stat.parent} has not reaped it yet: examine that one")
    status = read_status(pid)
    if status is not None and not os.access(f"/proc/{pid}/fd", os.R_OK):
        raise NotAllowed(f"{_why_not_allowed(pid, status.user)}, or `sudo antifreeze doctor {pid}`")
    if not any(looks_like_python(each) for each in below(pid, parents())):
        command = " ".join(read_command(pid)) or "a kernel thread"
        raise NotPython(f"process {pid} is not a Python process, and has none below it: {command[:120]}")


def _why_not_allowed(pid: int, user: int) -> str:
    if user != os.geteuid():
        return f"process {pid} belongs to {_user(user)} and you are {_user(os.geteuid())}: run it as that user"
    more_rights = "it has more rights (capabilities) than this shell, or made itself unreadable"
    return (
        f"process {pid} is your own, but the kernel does not let you look into it: {more_rights}; run it from a shell with the same rights"
    )


def _who_is_there() -> str:
    """Python programs the user may have meant."""
    mine = [pid for pid in all_pids() if pid != os.getpid() and os.access(f"/proc/{pid}/fd", os.R_OK) and looks_like_python(pid)]
    stats = {pid: read_stat(pid) for pid in mine}
    roots = [pid for pid, stat in stats.items() if stat is not None and stat.parent not in stats and pid != os.getppid()]
    listed = "".join(f"\n  {pid}  {' '.join(read_command(pid))[:100]}" for pid in sorted(roots)[:10])
    return f"; Python programs that run now:{listed}" if listed else ""


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (uid {number})"
    except KeyError:
        return f"uid {number}"


def find_root(pid: int) -> int:
    """A worker's parent, where a worker was named: what it waits for can only be told together with its parent."""
    for _ in range(DEEPEST):
        stat = read_stat(pid)
        if stat is None or not is_worker(pid) or not looks_like_python(stat.parent):
            return pid
        pid = stat.parent
    return pid


def is_worker(pid: int) -> bool:
    stat = read_stat(pid)
    if stat is None:
        return False
    command = read_command(pid)
    return (
        stat.name in (*WORKER_NAMES, NURSERY)
        or "--multiprocessing-fork" in command
        or any("multiprocessing.forkserver" in word for word in command)
        or _may_be_nameless(pid, stat.parent, command)
    )


def _may_be_nameless(pid: int, parent: int, command: tuple[str, ...]) -> bool:
    """Before torch 2.6 a forked worker has its parent's name and command line; whoever has children is no worker."""
    return bool(command) and command == read_command(parent) and pid not in parents().values()


def find_orphans(inside: set[int]) -> list[int]:
    """Workers of DataLoaders whose parent is gone: they were handed to init, or to whoever adopts orphans here."""
    found = []
    for pid in all_pids():
        stat = read_stat(pid)
        if stat is None or pid in inside or stat.name not in WORKER_NAMES or stat.state == "Z":
            continue
        if os.access(f"/proc/{pid}/fd", os.R_OK) and not looks_like_python(stat.parent):
            found.append(pid)
    return found


def orphans_of(dead: int) -> list[int]:
    """Python processes that still carry the dead one's group or session, and were adopted by somebody outside of it."""
    found = []
    for pid in all_pids():
        stat = read_stat(pid)
        if stat is None or pid == dead or dead not in (stat.group, stat.session) or stat.state == "Z":
            continue
        adopter = read_stat(stat.parent)
        adopted = stat.parent == dead or adopter is None or adopter.session != stat.session
        if adopted and os.access(f"/proc/{pid}/fd", os.R_OK) and looks_like_python(pid):
            found.append(pid)
    return found
