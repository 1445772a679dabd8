"""The sentences of the supervisor: what happened, what we know, what to do."""

from __future__ import annotations

import os
from dataclasses import dataclass

from antifreeze.errors import SampleLost, SampleTimeout
from antifreeze.events import Story
from antifreeze.supervisor.crew import AnyWorker
from antifreeze.supervisor.observe import open_files
from antifreeze.supervisor.policy import RestartBudget
from antifreeze.supervisor.watch import where_is
from antifreeze.supervisor.work import StreamStart
from antifreeze.worker.failure import Failure
from antifreeze.worker.journal import ALL_ROWS, Entry, Stage


@dataclass(frozen=True)
class Scene:
    """Where a worker was. `batch_of`: the samples, where not one of them but what was done to all of them is at fault; `item`: the one
    that `stream` cannot be led past, which ends it where it is lost there `again`."""

    worker: int
    entry: Entry
    batch_of: str | None
    path: str | None
    stream: int | None
    item: int | None
    again: bool
    forgives: bool

    @property
    def what(self) -> str:
        if self.batch_of is None or (self.stream is not None and self.entry.stage is Stage.FETCH):
            return _sample(self.entry, self.path)
        batch_of = self.batch_of if self.stream is None else f"of stream {self.stream}"
        return f"batch {self.entry.batch} ({self.entry.stage.name.lower()}) {batch_of}"

    def way_on(self) -> str:
        if self.again:
            return "without this sample nothing after it can be had: a stream cannot be led past one without loading it"
        if self.stream is not None:
            return "a loop that catches this goes on, and the stream with it"
        if self.batch_of is None:
            return 'on_bad_sample="skip" goes on without the sample'
        return "no sample of it alone can be blamed, so on_bad_sample does not apply; a loop that catches this goes on with the next batch"

    def failure(self, kind: type[BaseException], lines: list[str]) -> Failure:
        ends = f"stream {self.stream} ends here, after {self.item:,} samples" if self.again else ""
        index = self.entry.index if self.stream is None else f"{self.item} of stream {self.stream}"
        return Failure.without_traceback(
            kind,
            "\n".join([*lines[:1], *([f"  {ends}"] if ends else []), *lines[1:]]),
            stage=self.entry.stage.name.lower(),
            worker=self.worker,
            index=index if self.batch_of is None or self.item is not None else None,
            row=None if self.batch_of is not None else self.entry.row,
            position=None,
            explanation=ends,
            ends_stream=self.again,
        )


def sample_lost(scene: Scene, how: str) -> Failure:
    """A worker ended while it was at this sample, or at a batch."""
    lines = [
        f"worker {scene.worker} {how} while loading {scene.what}, and so did the worker before it",
        f"  what to do: {scene.way_on()}; the line above says what ended the process",
    ]
    return scene.failure(SampleLost, lines)


def sample_overdue(scene: Scene, worker: AnyWorker, stuck_s: float, limit_s: float | None) -> Failure:
    lines = [
        f"{scene.what} took longer than {stuck_s:.1f} s in worker {scene.worker} ({worker.who}), {worker.fate}",
        where_is(worker),
        f"  what to do: {scene.way_on()}; sample_timeout_s={limit_s} is the limit",
    ]
    return scene.failure(SampleTimeout, lines)


def sample_waits(scene: Scene, worker: AnyWorker, stuck_s: float) -> Failure:
    """In one fork after the other, where no clean process could be had."""
    lines = [
        f"{scene.what} waited {stuck_s:.1f} s for a lock that nobody in worker {scene.worker} ({worker.who}) opens, and so did another one",
        where_is(worker),
        f"  what to do: {scene.way_on()}; a lock that a thread held while workers were forked stays locked in them: make it in the worker "
        "(worker_init_fn), or make the data set one that pickles",
    ]
    return scene.failure(SampleTimeout, lines)


def lock_since_fork(worker: AnyWorker, entry: Entry, path: str | None, stuck_s: float, may_serve: bool) -> str:
    """A forked worker that may wait for somebody who was not forked along, or be stuck by itself: nobody can tell yet."""
    doing = {Stage.STARTING: "at its start", Stage.INITIALISING: "in worker_init_fn"}.get(entry.stage)
    at_sample = doing is None
    doing = doing or f"in {_sample(entry, path)} of batch {entry.batch}"
    next_one = "one from a clean process" if may_serve else "another fork, since the data set does not pickle"
    lines = [
        f"worker {worker.number} ({worker.who}) has waited {stuck_s:.1f} s for a lock or another thread {doing}, and is newly forked",
        "  whoever has that lock, or was to open it, may be a thread of this process: threads are not forked along"
        + ("; or the sample is stuck by itself" if at_sample else ""),
        f"  the worker is replaced by {next_one}" + ("; there the sample is tried once more" if at_sample else ""),
        where_is(worker),
    ]
    return "\n".join(lines)


def sample_stopped(scene: Scene, worker: AnyWorker) -> Failure:
    """Somebody, or the sample itself, stops every worker that is at it."""
    lines = [
        f"worker {scene.worker} ({worker.who}) was stopped by a signal (SIGSTOP) while loading {scene.what}, and so were those before it",
        where_is(worker),
        f"  what to do: {scene.way_on()}",
    ]
    return scene.failure(SampleTimeout, lines)


def left_behind(worker: AnyWorker) -> str:
    return (
        f"worker {worker.number} ({worker.who}) cannot be ended and is left behind, with all it holds: what it may still write to is never "
        f"used again, and another worker takes its place\n{where_is(worker)}"
    )


def was_at(entry: Entry, path: str | None) -> str:
    """Where a worker was when it ended, for the story."""
    if entry.stage not in (Stage.FETCH, Stage.COLLATE, Stage.WRITE, Stage.SEND):
        return ""
    return f" while at {_sample(entry, path)} of batch {entry.batch} ({entry.stage.name.lower()})"


def memory_at_end(peak_bytes: int | None, own_bytes: int | None) -> str:
    said = []
    if peak_bytes:
        said.append(f"its peak memory was {_mib(peak_bytes)}")
    if own_bytes:
        said.append(f"{_mib(own_bytes)} of its own at the last look")
    return f" ({', '.join(said)})" if said else ""


def stream_goes_on(start: StreamStart) -> str:
    """How a stream goes on after its worker has ended."""
    if start.past.state is not None:
        return f"stream {start.stream} goes on from the state that the data set gave after {start.past.samples:,} samples"
    if start.replay:
        return f"stream {start.stream} is drawn again from its beginning, and its first {start.past.samples:,} samples are left out"
    return (
        f'stream {start.stream} begins anew after {start.past.samples:,} samples (lost_stream="continue"): '
        "what its worker had drawn and not delivered is lost"
    )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"


def gave_up(number: int, budget: RestartBudget, story: Story) -> str:
    return (
        f"workers ended more than {budget.allowed} times within {budget.window_s:g} s, the last one was worker {number}\n"
        f"the story:\n{story}\n"
        f"  what to do: look at what ended them above; max_restarts_per_minute={budget.allowed} is the limit"
    )


_GUARD = (
    "\n  a script whose workers are not forked needs `if __name__ == '__main__':` around what starts the training, and its classes and "
    "functions outside of it"
)


def start_failed(times: int, story: Story, forks: bool) -> str:
    return (
        f"workers ended {times} times before they could load anything\nthe story:\n{story}\n"
        f"  what to do: their own words stand above, on stderr; look at worker_init_fn and __iter__{'' if forks else _GUARD}"
    )


def waiting(reason: str, waited_s: float, seen: list[tuple[AnyWorker, Entry, float, str | None]], limit_s: float | None) -> str:
    """A stall report: `seen` holds each worker, its journal row, since when that has not changed, and the sample's file if known."""
    lines = [f"the loop has waited {waited_s:.1f} s for {reason}"]
    for worker, entry, stuck_s, path in seen:
        who = f"  worker {worker.number} ({worker.who})"
        if entry.stage in (Stage.IDLE, Stage.ENDED):
            lines.append(f"{who} is idle")
            continue
        starting = entry.stage in (Stage.STARTING, Stage.INITIALISING)
        doing = "starting" if starting else f"in {_sample(entry, path)} of batch {entry.batch}"
        lines.append(f"{who} has been {doing} ({entry.stage.name.lower()}) for {stuck_s:.1f} s")
        files = [] if path else open_files(worker.pid)
        if files:
            lines.append(f"    it has open: {', '.join(files)}")
        lines.append(where_is(worker))
    doctor = f"`antifreeze doctor {os.getpid()}` shows more"
    lines.append(f"  what to do: sample_timeout_s={limit_s} ends a stuck sample; hedge=True lets an idle worker try too; {doctor}")
    return "\n".join(lines)


def _sample(entry: Entry, path: str | None) -> str:
    if entry.row == ALL_ROWS:
        return f"samples {entry.index} …"
    return f"sample {entry.index}" if path is None else f"sample {entry.index} ({path})"


def closed_by_others(parts: list[str]) -> str:
    named = ", ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")
    return (
        f"descriptors of this loader were closed by other code of this process ({named})\n"
        "    by os.closerange, a library that makes a daemon of the process, or os.close of a wrong number\n"
        "what to do: have that done before the loader is iterated, or let it spare descriptors above 2; the workers are ended, and the "
        "next next() goes on with fresh ones, behind the last batch that was delivered"
    )
