"""The sentences of the supervisor: what happened, what we know, what to do."""

from __future__ import annotations

import os

from antifreeze.errors import SampleLost, SampleTimeout
from antifreeze.events import Story
from antifreeze.supervisor.observe import open_files
from antifreeze.supervisor.policy import RestartBudget
from antifreeze.supervisor.process import WorkerProcess
from antifreeze.supervisor.watch import where_is
from antifreeze.supervisor.work import StreamStart
from antifreeze.worker.failure import Failure
from antifreeze.worker.journal import Entry, Stage


def sample_lost(number: int, entry: Entry, batch_of: str | None, path: str | None, how: str, forgives: bool) -> Failure:
    """A worker ended while it was at this sample, or at a batch (`batch_of` its samples)."""
    whole = batch_of is not None
    what = f"at batch {entry.batch} ({entry.stage.name.lower()}) {batch_of}" if whole else f"loading {_sample(entry, path)}"
    text = (
        f"worker {number} {how} while {what}, and so did the worker before it\n"
        f"  what to do: {_way_on(entry, whole, forgives)}; the line above says what ended the process"
    )
    return _failure(SampleLost, text, number, entry, whole)


def sample_overdue(
    number: int,
    worker: WorkerProcess,
    entry: Entry,
    batch_of: str | None,
    path: str | None,
    stuck_s: float,
    limit_s: float | None,
    forgives: bool,
) -> Failure:
    whole = batch_of is not None
    what = f"batch {entry.batch} ({entry.stage.name.lower()}) {batch_of}" if whole else _sample(entry, path)
    text = (
        f"{what} took longer than {stuck_s:.1f} s in worker {number} (pid {worker.pid}), so the worker was ended\n{where_is(worker)}\n"
        f"  what to do: {_way_on(entry, whole, forgives)}; sample_timeout_s={limit_s} is the limit"
    )
    return _failure(SampleTimeout, text, number, entry, whole)


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
    if start.state is not None:
        return f"stream {start.stream} goes on from the state that the data set gave after {start.skip_samples:,} samples"
    if start.replay:
        return f"stream {start.stream} is drawn again from its beginning, and its first {start.skip_samples:,} samples are left out"
    return (
        f'stream {start.stream} begins anew after {start.skip_samples:,} samples (lost_stream="continue"): '
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


def start_failed(times: int, story: Story, forks: bool) -> str:
    guard = "" if forks else "\n  a script whose workers are not forked needs `if __name__ == '__main__':` around what starts the training"
    return (
        f"workers ended {times} times before they could load anything\nthe story:\n{story}\n"
        f"  what to do: their own words stand above, on stderr; look at worker_init_fn and __iter__{guard}"
    )


def waiting(reason: str, waited_s: float, seen: list[tuple[WorkerProcess, Entry, float, str | None]], limit_s: float | None) -> str:
    """A stall report: `seen` holds each worker, its journal row, since when that has not changed, and the sample's file if known."""
    lines = [f"the loop has waited {waited_s:.1f} s for {reason}"]
    for worker, entry, stuck_s, path in seen:
        who = f"  worker {worker.number} (pid {worker.pid})"
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


def _way_on(entry: Entry, whole: bool, forgives: bool) -> str:
    if whole and (forgives or entry.stage is not Stage.FETCH):
        return "no sample of it alone can be blamed, so on_bad_sample does not apply; a loop that catches this goes on with the next batch"
    if whole:
        return 'on_bad_sample="skip" tries its samples one by one and goes on without the guilty one'
    return 'on_bad_sample="skip" goes on without the sample'


def _sample(entry: Entry, path: str | None) -> str:
    return f"sample {entry.index}" if path is None else f"sample {entry.index} ({path})"


def _failure(kind: type[BaseException], text: str, number: int, entry: Entry, whole: bool) -> Failure:
    return Failure.without_traceback(
        kind,
        text,
        stage=entry.stage.name.lower(),
        worker=number,
        index=None if whole else entry.index,
        row=None if whole else entry.row,
        position=None,
    )
