"""Who is stuck: the journal's rows looked at again and again while the loop waits; and what is said about it.

1. A worker is stuck since the first look at which its row was the same as now.
2. A sample's deadline is sample_timeout_s, or ten times the slowest sample so far where that is more: honest slowness is no fault.
   All samples of a batch that is loaded in one call have that time together at first; where it is not enough they are tried singly,
   each in time of its own, and all together again then have the time of all of them.
3. A worker that was stopped (SIGSTOP) is at fault itself; its sample is not.
4. Of the time in which nobody looked, half a deadline counts at most: the loop may have computed, but the whole job may have been
   suspended just as well (a paused container, a scheduler), and its samples with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from antifreeze.supervisor.crew import AnyWorker
from antifreeze.supervisor.observe import kernel_function, lock_holder, process_state, system_call, waits_for_own_lock
from antifreeze.worker.journal import Entry, Journal, Stage

HONEST_FACTOR = 10
STOPPED_S = 1.0
FORGOTTEN_S = 20.0
AWAY_S = 2.0
"""Who waits looks several times a second: past that nobody has looked."""
INHERITED_LOCK_S = 5.0
STARTING_S = 60.0
"""What a process may need at least before it is one of ours: a fresh interpreter imports torch and whatever the data set needs."""

_MOST_FRAMES = 12
_MOST_OTHERS = 6
_MOST_FRAMES_OF_OTHERS = 4
_BUSY = (Stage.STARTING, Stage.INITIALISING, Stage.FETCH, Stage.COLLATE, Stage.WRITE, Stage.SEND)


@dataclass(frozen=True)
class Look:
    entry: Entry
    since_s: float
    seen_s: float
    unseen_s: float = 0.0
    """Of the time since then: when nobody looked."""

    def again(self, now_s: float) -> Look:
        away_s = now_s - self.seen_s
        return replace(self, seen_s=now_s, unseen_s=self.unseen_s + (away_s if away_s > AWAY_S else 0.0))

    def has_had(self, limit_s: float) -> bool:
        return self.seen_s - self.since_s - max(0.0, self.unseen_s - limit_s / 2) > limit_s


class Watch:
    """Remembers for each worker since when its journal row has not changed."""

    def __init__(self, journal: Journal, workers: int) -> None:
        self._journal = journal
        self._looks: list[Look | None] = [None] * workers
        self.slowest_sample_s = 0.0

    def look(self, worker: int, now_s: float) -> Look:
        entry = self._journal.row(worker).read()
        last = self._looks[worker]
        if last is None or last.entry != entry:
            # a task's own start is the better clock for its first sample
            began_s = entry.since_ns / 1e9 if last is not None and last.entry.task != entry.task else now_s
            since_s = min(now_s, began_s) if entry.since_ns else now_s
            last = Look(entry, since_s, seen_s=since_s)
        self._looks[worker] = last = last.again(now_s)
        return last

    def forget(self, worker: int) -> None:
        self._looks[worker] = None

    def limit_s(self, sample_timeout_s: float, samples: int = 1, each: bool = True) -> float:
        return max(sample_timeout_s * (samples if each else 1), HONEST_FACTOR * self.slowest_sample_s * samples)

    def overdue(self, look: Look, sample_timeout_s: float | None, samples: int, each: bool) -> bool:
        """Whether the sample (or the `samples` that are loaded in one call, with time for `each` of them) had its time."""
        if sample_timeout_s is None or look.entry.stage not in _BUSY:
            return False
        limit_s = self.limit_s(sample_timeout_s, samples, each)
        if look.entry.stage is Stage.STARTING:
            limit_s = max(limit_s, STARTING_S)
        return look.has_had(limit_s)

    def may_be_forks_fault(self, worker: AnyWorker, look: Look, sample_timeout_s: float | None, curable: bool) -> bool:
        """Whether a forked worker waits for a lock of its own before it has done its first task: whoever held it, or was to open it, may
        not have been forked along. A sample has half its time until that is asked, and all of it in a clean process. Who may as well wait
        for a thread that it began itself is only suspected where a clean process can follow (`curable`), and not in worker_init_fn."""
        entry, patience_s = look.entry, INHERITED_LOCK_S
        if entry.samples or entry.stage not in (Stage.STARTING, Stage.INITIALISING, Stage.FETCH):
            return False
        if sample_timeout_s is not None and entry.stage is not Stage.STARTING:
            patience_s = min(patience_s, self.limit_s(sample_timeout_s) / 2)
        alone = entry.stage is Stage.INITIALISING or not curable
        return look.has_had(patience_s) and waits_for_own_lock(worker.pid, alone)

    def stopped(self, worker: AnyWorker, look: Look, now_s: float, overdue: bool) -> bool:
        """Asked once its time is over, whichever time that is: what does not run has not had its sample's."""
        return (overdue or now_s - look.since_s > STOPPED_S) and process_state(worker.pid) in "Tt"

    def forgotten(self, worker: AnyWorker, look: Look) -> bool:
        """It sleeps until it is given something, for so long that nothing can be on its way."""
        if look.entry.stage is not Stage.IDLE or not look.has_had(FORGOTTEN_S) or process_state(worker.pid) != "S":
            return False
        call = system_call(worker.pid)
        return call is None or call.startswith("recv")  # None: nobody may look


def where_is(worker: AnyWorker) -> str:
    """A few lines: the Python line, the system call and file, the state; from inside where it can still answer, else from outside."""
    state, call = process_state(worker.pid), system_call(worker.pid)
    if state in "ZX?":
        return "    it has ended, or is about to"
    stacks = worker.stacks()
    lines = []
    if state in "Tt":
        lines.append("it is stopped (SIGSTOP or a debugger)")
    elif state == "D":
        lines.append("it is in uninterruptible sleep: the kernel waits for a device or a network file system")
    elif call is None:
        lines.append("it is computing" if state == "R" else "it is running")
    if call is not None:
        lines.append(f"in the system call {call}")
        holder = lock_holder(worker.pid) if call.startswith(("flock", "fcntl")) else None
        if holder is not None:
            lines.append(f"process {holder} has that lock")
    if state in "TtD" and (function := kernel_function(worker.pid)) is not None:
        lines.append(f"in the kernel's {function}")
    lines += _interesting(stacks)
    return "\n".join(f"    {line}" for line in lines)


def _interesting(stacks: str) -> list[str]:
    """The stacks of all threads, innermost frame first: the one that loads in full, without our own frames below the data set's;
    of the others the innermost frames."""
    threads: list[list[str]] = []
    for line in stacks.splitlines():
        if not line.strip():
            continue
        if not threads or not line.startswith(" "):
            threads.append([line.strip()])
        else:
            threads[-1].append(line.rstrip())
    if not threads:
        return ["its Python stack could not be had: the process does not run, or has only just started"]
    loads = next((thread for thread in threads if any(map(_is_ours, thread))), threads[-1])
    ours = next((at for at, line in enumerate(loads) if _is_ours(line)), len(loads))
    lines = loads[: max(ours, 2)][:_MOST_FRAMES]
    others = [thread for thread in threads if thread is not loads]
    for thread in others[:_MOST_OTHERS]:
        lines += thread[: _MOST_FRAMES_OF_OTHERS + 1]
    return lines + ([f"… and {len(others) - _MOST_OTHERS} more threads"] if len(others) > _MOST_OTHERS else [])


def _is_ours(line: str) -> bool:
    return "antifreeze/worker/" in line
