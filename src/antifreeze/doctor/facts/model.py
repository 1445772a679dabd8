"""What was seen of a patient: plain frozen records, no judgement, no clock, nothing that reads.

    Examination ─┬─ Process ─┬─ Thread ─── ThreadSample (first, last) ─── Frame, Call ─── Futex
                 │           ├─ Descriptor ─── Socket
                 │           └─ Memory, CpuSample (first, last)
                 ├─ Cgroup, Machine
                 ├─ FileLock, Holder          who has what somebody waits for
                 └─ Blindness                 what could not be seen, why, and what would allow it

`first` and `last` are the two looks, `window_s` apart. A thread or process that came or went between them has one of them as None.
"""

from __future__ import annotations

from dataclasses import dataclass, field

REST_SHARE = 0.75


@dataclass(frozen=True)
class Frame:
    function: str
    file: str
    line: int
    values: tuple[tuple[str, str], ...] = ()
    """Only what names the work at hand (indices, worker numbers): never the user's data."""

    @property
    def name(self) -> str:
        return self.function.rsplit(".", 1)[-1]

    def value(self, name: str) -> str | None:
        return dict(self.values).get(name)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclass(frozen=True)
class Futex:
    address: int
    private: bool
    """A private futex can be woken by threads of its own process only."""
    mapping: str = ""
    inode: int = 0


@dataclass(frozen=True)
class Call:
    """The system call a thread is in, with what its arguments point at."""

    name: str
    descriptors: tuple[int, ...] = ()
    path: str | None = None
    filesystem: str = ""
    """Of `path`."""
    futex: Futex | None = None
    limit_s: float | None = None
    """None: it waits for ever."""
    stack_pointer: int = 0


@dataclass(frozen=True)
class ThreadSample:
    state: str
    cpu_s: float
    delayed_s: float = 0.0
    """Was runnable, but no core was free."""
    switches: int = 0
    asleep_s: float | None = None
    """Since it last ran; None where the kernel does not tell."""
    wchan: str = ""
    call: Call | None = None
    frames: tuple[Frame, ...] = ()
    """Innermost first; empty where Python's stack is not known."""
    libraries: tuple[str, ...] = ()
    """Native libraries on its stack, innermost first."""
    native: tuple[Frame, ...] = ()
    """Python and native frames together; only where they were asked for, because reading them stops the process for a moment."""
    owns_gil: bool = False
    age_s: float | None = None
    journal: JournalEntry | None = None
    """Of a thread that is an antifreeze worker."""


@dataclass(frozen=True)
class Thread:
    tid: int
    name: str
    python_name: str = ""
    first: ThreadSample | None = None
    last: ThreadSample | None = None

    @property
    def cpu_used_s(self) -> float:
        return self.last.cpu_s - self.first.cpu_s if self.first and self.last else 0.0

    def rested(self, window_s: float) -> bool:
        """It did not run once in the window, or slept for most of it, up to now."""
        if self.first is None or self.last is None or self.last.state == "R":
            return False
        if self.first.switches == self.last.switches and not self.cpu_used_s:
            return True  # whatever clock says since when: those of two cores may be half a second apart
        return self.last.asleep_s is not None and self.last.asleep_s >= REST_SHARE * window_s

    def cpu_share(self, window_s: float) -> float:
        return min(1.0, self.cpu_used_s / window_s) if window_s > 0 else 0.0

    def delayed_share(self, window_s: float) -> float:
        """The kernel's clocks may differ between cores: more than there was time for is a mistake of theirs, and not counted."""
        delayed_s = self.last.delayed_s - self.first.delayed_s if self.first and self.last else 0.0
        if window_s <= 0 or self.cpu_used_s + delayed_s > 1.25 * window_s:
            return 0.0
        return min(1.0 - self.cpu_share(window_s), delayed_s / window_s)


@dataclass(frozen=True)
class Socket:
    family: str
    state: str = ""
    local: str = ""
    remote: str = ""
    remote_inode: int = 0
    """The other end, where it is on this machine."""


@dataclass(frozen=True)
class Descriptor:
    number: int
    target: str
    kind: str
    """file, pipe, fifo, socket, device, shared memory, memfd, epoll, or other"""
    inode: int = 0
    device: int = 0
    readable: bool = True
    writable: bool = False
    filesystem: str = ""
    socket: Socket | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes. `pss` shares what is shared fairly among the sharers, `private` is what would be freed if the process ended; `swap` is its
    fair part too, where that is known."""

    rss: int
    anonymous: int = 0
    file: int = 0
    shared: int = 0
    swap: int = 0
    pss: int | None = None
    private: int | None = None


@dataclass(frozen=True)
class JournalEntry:
    """What an antifreeze worker last wrote about itself."""

    worker: int
    stage: str
    batch: int
    sample: str
    since_s: float | None = None
    samples: int = 0
    """How many it has loaded so far."""


@dataclass(frozen=True)
class ProcessSample:
    state: str
    cpu_s: float
    at_s: float = 0.0
    major_faults: int = 0
    memory: Memory | None = None
    journal: JournalEntry | None = None


@dataclass(frozen=True)
class ShmSpace:
    """/dev/shm as this process sees it."""

    total: int
    free: int


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    name: str
    command: tuple[str, ...]
    is_python: bool
    age_s: float
    group: int = 0
    session: int = 0
    user: int = 0
    tracer: int = 0
    exit_status: int | None = None
    """Of a zombie, as waitpid() would give it."""
    cores: tuple[int, ...] = ()
    descriptors: tuple[Descriptor, ...] = ()
    descriptor_count: int = 0
    descriptor_limit: int | None = None
    rank: str | None = None
    cgroup: str = ""
    frozen_by: str = ""
    """The file of a cgroup that pauses it; empty where none does."""
    shm: ShmSpace | None = None
    stderr_tail: str = ""
    first: ProcessSample | None = None
    last: ProcessSample | None = None
    threads: tuple[Thread, ...] = ()
    glances: tuple[tuple[Frame, ...], ...] = ()
    """The main thread's stack, seen several times between the two looks."""

    def descriptor(self, number: int) -> Descriptor | None:
        return next((each for each in self.descriptors if each.number == number), None)

    @property
    def main(self) -> Thread | None:
        return next((thread for thread in self.threads if thread.tid == self.pid), None)

    @property
    def state(self) -> str:
        return self.last.state if self.last else "gone"

    @property
    def window_s(self) -> float:
        """Between its own two samples: on a busy machine the looks take their time."""
        return self.last.at_s - self.first.at_s if self.first and self.last else 0.0

    @property
    def cpu_share(self) -> float:
        """In cores: 1.0 is one core, all the time."""
        return sum(thread.cpu_used_s for thread in self.threads) / self.window_s if self.window_s > 0 else 0.0

    @property
    def delayed_share(self) -> float:
        """Of the thread that waited longest for a free core."""
        return max((thread.delayed_share(self.window_s) for thread in self.threads), default=0.0)


@dataclass(frozen=True)
class FileLock:
    """A line of /proc/locks; those who wait carry the number of the lock they wait for."""

    number: int
    kind: str
    pid: int
    device: int
    inode: int
    waiting: bool = False


@dataclass(frozen=True)
class Holder:
    """A process outside the patient's tree that has something the patient waits for."""

    pid: int
    command: tuple[str, ...]
    frames: tuple[Frame, ...] = ()
    inodes: tuple[int, ...] = ()
    """Pipes it can write to, and the other ends of sockets."""
    reads: tuple[int, ...] = ()
    """Pipes it can read from."""


@dataclass(frozen=True)
class Cgroup:
    """Counters are what grew during the window, but `oom_kills`, which counts since the cgroup was made."""

    path: str
    cpu_quota_cores: float | None = None
    throttled_s: float = 0.0
    throttled_periods: int = 0
    periods: int = 0
    memory_limit: int | None = None
    memory_used: int | None = None
    oom_kills: int = 0


@dataclass(frozen=True)
class OomKill:
    pid: int
    text: str
    cgroup: str | None = None
    """As the host names it; older kernels do not say."""

    def was_in(self, cgroup: str) -> bool:
        """Inside a container, which has a name of its own for it, the path is the end of the host's, or just "/"."""
        return self.cgroup is None or self.cgroup.endswith(cgroup.rstrip("/"))


@dataclass(frozen=True)
class Machine:
    cores: int
    memory_total: int = 0
    memory_available: int = 0
    swap_total: int = 0
    swapped_in: int = 0
    swapped_out: int = 0
    load: float = 0.0
    """Threads that wanted to run, averaged over the last minute."""
    kernel: str = ""
    oom_kills: tuple[OomKill, ...] = ()


@dataclass(frozen=True)
class Blindness:
    what: str
    why: str
    allow: str


@dataclass(frozen=True)
class Examination:
    patient: int
    """The root of the examined tree."""
    window_s: float
    processes: tuple[Process, ...]
    asked: int = 0
    """The process the user named, where it was a worker of the patient."""
    taken_at: str = ""
    machine: Machine = field(default_factory=lambda: Machine(cores=1))
    cgroups: tuple[Cgroup, ...] = ()
    file_locks: tuple[FileLock, ...] = ()
    holders: tuple[Holder, ...] = ()
    orphans: tuple[Process, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    """The text of the user's own files that appear in a stack."""
    blindness: tuple[Blindness, ...] = ()

    def process(self, pid: int) -> Process | None:
        return next((each for each in (*self.processes, *self.orphans) if each.pid == pid), None)

    def source(self, file: str) -> str | None:
        return dict(self.sources).get(file)
