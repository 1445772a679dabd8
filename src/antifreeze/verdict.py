"""From what was counted to one sentence: how long the loop waited for data, what for, and what would change it. Pure.

    next() ─┬─ start-up     workers start, the first batch of an epoch; the end of an epoch
            ├─ restarts     a worker was replaced in the meantime
            ├─ stalls       nobody came for so long that a stall report was printed
            ├─ the stages of loading, where the loop had nothing to do but wait for workers or did it itself, by what took the time:
            │     fetch computing · fetch waiting · fetch without a core · collate · transport
            └─ hand-over    our own work in next(): messages, tensors over the slot, pinning

1. The causes add up to what the loop waited.
2. A cause is not blamed for less than WAITING_MATTERS of the time: then the data is not the bottleneck.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from antifreeze.tuning.window import HAND_OVER_S

WAITING_MATTERS = 0.05
WORKERS_ARE_IDLE = 0.6
MOST_WAITING_WORKERS = 32
WORTH_IT = 1.1
MOSTLY = 0.8
OURS = 0.75
"""Of the cores: who has less, and stands in a queue for more, stands there behind others."""
A_STALL_S, A_STALL_TIMES = 1.0, 10.0


class Cause(Enum):
    COMPUTING = "fetch, computing"
    WAITING = "fetch, waiting"
    NO_CORE = "fetch, without a core"
    COLLATE = "collate"
    TRANSPORT = "transport"
    HAND_OVER = "hand-over"
    START_UP = "start-up"
    RESTARTS = "restarts"
    STALLS = "stalls"


@dataclass(frozen=True)
class Counted:
    """Seconds, all of them sums; `in_stages_s` is the part of next() in which there was nothing to do but wait for workers, or in which the
    loop loaded batches itself, without start-up, restarts and stalls. `cores` are those this rank may use."""

    waited_s: float
    loop_s: float
    startup_s: float
    restarts_s: float
    stalls_s: float
    in_stages_s: float
    fetch_s: float
    collate_s: float
    write_s: float
    cpu_s: float
    queued_s: float
    batches: int
    samples: int
    epochs: int
    longest_wait_s: float
    workers: int
    cores: int
    persistent: bool  # workers stay from one epoch to the next
    taking_turns: bool = False  # threads, because of random generators
    auto: bool = False  # the number of workers is ours to choose
    undecided: bool = False  # and is still being looked for
    loaded_ahead: int = 0  # batches that were there before their epoch began
    fight: bool = False  # threads of the loop's process, over cores, while it loads
    growth_s: float = 0.0  # of startup_s: more workers were begun, in the middle of an epoch
    past_caches: str = ""  # what would let its copies go there
    first_batch_s: float = 0.0  # of the very first epoch
    waiting_now_s: float = 0.0
    """Of waited_s, what the loop is at while it is asked."""

    @property
    def elapsed_s(self) -> float:
        return self.waited_s + self.loop_s

    @property
    def work_s(self) -> float:
        return self.fetch_s + self.collate_s + self.write_s

    @property
    def busy(self) -> float | None:
        """The workers' share of the time in which they had work."""
        if not self.workers or not self.elapsed_s:
            return None
        return min(1.0, self.work_s / (self.elapsed_s * self.workers))


def waiting_now(counted: Counted, seconds: float) -> Counted:
    """With the wait that is still going on: a stall, where it is far longer than those before it."""
    more = replace(
        counted,
        waited_s=counted.waited_s + seconds,
        waiting_now_s=seconds,
        longest_wait_s=max(counted.longest_wait_s, seconds),
    )
    if not counted.batches:
        return replace(more, startup_s=counted.startup_s + seconds)
    if seconds > max(A_STALL_S, A_STALL_TIMES * counted.waited_s / counted.batches):
        return replace(more, stalls_s=counted.stalls_s + seconds)
    return replace(more, in_stages_s=counted.in_stages_s + seconds)


def waited_for(counted: Counted) -> dict[Cause, float]:
    """Seconds by cause, the largest first; they add up to `waited_s`."""
    found = {Cause.START_UP: counted.startup_s, Cause.RESTARTS: counted.restarts_s, Cause.STALLS: counted.stalls_s}
    left_s = max(0.0, counted.waited_s - sum(found.values()))
    stages = _stages(counted)
    in_stages_s = min(left_s, counted.in_stages_s) if counted.work_s else 0.0
    found |= {cause: in_stages_s * (seconds / counted.work_s) if in_stages_s else 0.0 for cause, seconds in stages.items()}
    found[Cause.HAND_OVER] = left_s - in_stages_s
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _stages(counted: Counted) -> dict[Cause, float]:
    """What the work was made of. Collating and copying wait for nothing but a core; the rest of the time that something ran, or stood in
    the queue for a core, is the data set's, in the same proportion."""
    needs_core_s = counted.cpu_s + counted.queued_s
    of_fetch_s = min(counted.fetch_s, max(0.0, needs_core_s - counted.collate_s - counted.write_s))
    computing_s = of_fetch_s * (counted.cpu_s / needs_core_s) if needs_core_s else 0.0
    no_core_s = of_fetch_s - computing_s
    return {
        Cause.COMPUTING: computing_s,
        Cause.NO_CORE: no_core_s,
        Cause.WAITING: counted.fetch_s - of_fetch_s,
        Cause.COLLATE: counted.collate_s,
        Cause.TRANSPORT: counted.write_s,
    }


def verdict(counted: Counted) -> str:
    if not counted.elapsed_s:
        return "nothing was loaded yet"
    share = counted.waited_s / counted.elapsed_s
    if share < WAITING_MATTERS:
        return (
            f"the data is not the bottleneck: the loop waited {share:.1%} of the time ({_s(counted.waited_s)} of {_s(counted.elapsed_s)})"
        )
    causes = waited_for(counted)
    cause, seconds = next(iter(causes.items()))
    said = f"the loop waited {share:.0%} of the time ({_s(counted.waited_s)} of {_s(counted.elapsed_s)})"
    if counted.waiting_now_s > A_STALL_S:
        said = f"the loop is waiting now, for {_s(counted.waiting_now_s)}; in all it {said.removeprefix('the loop ')}"
    of_it = seconds / counted.waited_s if counted.waited_s else 0.0
    return f"{said}, {of_it:.0%} of it for {_name(cause, counted)}; {_advice(cause, counted)}"


def _name(cause: Cause, counted: Counted) -> str:
    if cause is Cause.NO_CORE and not counted.workers:
        return "a core to load on"
    return "starting workers" if cause is Cause.START_UP and _mostly_grew(counted) else _NAMED[cause]


def _mostly_grew(counted: Counted) -> bool:
    """Rather than to begin its epochs."""
    return counted.growth_s > counted.startup_s / 2


_NAMED = {
    Cause.COMPUTING: "the data set's __getitem__, which computes",
    Cause.WAITING: "the data set's __getitem__, which itself waits (files, network, locks, sleep)",
    Cause.NO_CORE: "workers that had no core to run on",
    Cause.COLLATE: "the collate function",
    Cause.TRANSPORT: "copying batches into shared memory",
    Cause.HAND_OVER: "handing batches over",
    Cause.START_UP: "the beginnings and ends of epochs",
    Cause.RESTARTS: "workers that were replaced",
    Cause.STALLS: "samples that did not come",
}


def _advice(cause: Cause, counted: Counted) -> str:
    if cause is Cause.START_UP:
        return _about_start_up(counted)
    if cause is Cause.RESTARTS:
        return "report().story says why they ended; sample_timeout_s bounds what a stuck sample costs"
    if cause is Cause.STALLS:
        return "sample_timeout_s with on_bad_sample ends such waits; while one lasts, `antifreeze doctor PID` says what it is"
    if cause is Cause.HAND_OVER:
        per_batch_s = waited_for(counted)[cause] / max(1, counted.batches)
        said = f"that is {_s(per_batch_s)} for each of {counted.batches:,} batches: larger batches need fewer of them"
        times = counted.elapsed_s / max(1e-9, counted.work_s + counted.loop_s + counted.startup_s)  # if the loop did all of it itself
        without = f", and num_workers=0, which needs none, would be about {times:.1f}× as fast"
        return said + without if counted.workers and not counted.auto and times >= WORTH_IT else said
    if counted.fight and not counted.workers and cause is not Cause.WAITING:
        return "threads of this process fight over the cores (see threads): torch.set_num_threads(1) or OMP_NUM_THREADS=1 ends that"
    if cause is Cause.NO_CORE and (counted.workers <= max(1, counted.cores - 1) or _had(counted) < OURS * counted.cores):
        return _about_others(counted)
    if counted.auto:
        there = f"{counted.workers} worker{'s' if counted.workers > 1 else ''}" if counted.workers else "no workers"
        if counted.undecided:
            return f'num_workers="auto" has {there} so far on {_cores(counted.cores)}, and has not measured enough yet to choose'
        found = f'num_workers="auto" has chosen {there} on {_cores(counted.cores)}'
        if _has_small_batches(counted):
            return f"{found}; {_about_small_batches(counted)}"
        return f"{found}, so {_cheaper(cause, counted)}"
    if cause is Cause.NO_CORE:
        return f"{counted.workers} workers share {_cores(counted.cores)}: num_workers={max(1, counted.cores - 1)} would not fight over them"
    if not counted.workers:
        return _without_workers(cause, counted)
    if counted.busy is not None and counted.busy < WORKERS_ARE_IDLE:
        return (
            f"yet the workers were only {counted.busy:.0%} busy: batches come unevenly, the longest wait was {_s(counted.longest_wait_s)}; "
            "hedge=True, in_order=False or a larger prefetch_factor evens that out"
        )
    return _more_workers(cause, counted)


def _had(counted: Counted) -> float:
    """Cores that the workers and the loop had; the loop at most, and one of its threads."""
    elapsed_s = counted.elapsed_s - counted.startup_s
    return (counted.cpu_s + elapsed_s - min(elapsed_s, counted.in_stages_s)) / elapsed_s if elapsed_s > 0 else math.inf


def _about_others(counted: Counted) -> str:
    """There are cores for all that this loader runs, or it did not have those that there are: so others have them."""
    who = f"{counted.workers} worker{'s' if counted.workers > 1 else ''} and the loop" if counted.workers else "the loop"
    each_has_one = counted.workers <= max(1, counted.cores - 1)
    needed = f"need{'' if counted.workers else 's'} {counted.workers + 1}" if each_has_one else f"had {_had(counted):.1f}"
    there = f"{who} {needed} of {_cores(counted.cores)}"
    return f"other programs, or other threads of this one, take the cores ({there}), and no setting of the loader brings more of them"


def _about_start_up(counted: Counted) -> str:
    if _mostly_grew(counted):
        return f'{_s(counted.growth_s)} of that while num_workers="auto" began more of them: a longer run pays that once'
    each_s = counted.startup_s / max(1, counted.epochs)
    if counted.workers and not counted.persistent and counted.epochs > 1:
        return f"{_s(each_s)} for each of {counted.epochs} epochs: persistent_workers=True keeps the workers from one epoch to the next"
    if counted.epochs > 1 and counted.first_batch_s >= MOSTLY * counted.startup_s:
        return f"{_s(counted.first_batch_s)} of it until the very first batch: a longer run pays that once"
    if counted.epochs > 1 and counted.loaded_ahead:
        return f"{_s(each_s)} for each of {counted.epochs} epochs, though the first batches of most were loaded ahead of them"
    if counted.epochs > 1:
        return f"{_s(each_s)} for each of {counted.epochs} epochs: the first batch of an epoch has nothing loaded ahead of it"
    return f"{_s(each_s)} until the first batch and after the last: a longer run pays that once"


def _without_workers(cause: Cause, counted: Counted) -> str:
    wanted = min(_needed(counted), _limit(cause, counted))
    times = _times_as_fast(counted, wanted)
    if times >= WORTH_IT:
        return f"num_workers={wanted} would do that beside the loop, about {times:.1f}× as fast in all"
    if _has_small_batches(counted):
        return _about_small_batches(counted)
    return f"workers would hardly change that on {_cores(counted.cores)}, so {_cheaper(cause, counted)}"


def _has_small_batches(counted: Counted) -> bool:
    """Of which one takes less time than a worker's does for being one."""
    return counted.work_s < HAND_OVER_S * counted.batches


def _about_small_batches(counted: Counted) -> str:
    each_s, samples = counted.work_s / counted.batches, round(counted.samples / counted.batches)
    return (
        f"a batch of {samples:,} sample{'s' if samples != 1 else ''} takes {_s(each_s)}, and one by a worker costs "
        f"{_s(HAND_OVER_S)} more: a larger batch_size shares among more samples what each batch costs"
    )


def _more_workers(cause: Cause, counted: Counted) -> str:
    if counted.taking_turns:
        return (
            'its threads take turns, because the data set draws from random generators that they share: workers="process" would not have to'
        )
    wanted = min(_needed(counted), _limit(cause, counted))
    if wanted > counted.workers:
        times = _times_as_fast(counted, wanted)
        return f"num_workers={wanted} instead of {counted.workers} would be about {times:.1f}× as fast in all"
    if cause is Cause.WAITING:
        nearer = "from nearer (antifreeze.cached keeps samples in local files)"
        return f"more workers are seldom worth it: read larger pieces at once, or {nearer}: {_per_sample(counted)} per sample now"
    there = f"{counted.workers} worker{'s' if counted.workers > 1 else ''} on {_cores(counted.cores)}"
    return f"{there} are all there can be, so {_cheaper(cause, counted)}"


def _cheaper(cause: Cause, counted: Counted) -> str:
    how = ""
    if cause is Cause.WAITING:
        how = ": antifreeze.cached keeps samples in local files"
    elif cause is Cause.TRANSPORT and counted.past_caches and counted.workers:  # without any nothing was gained
        gain = "1.1× to 1.5× as fast to a GPU where that was measured"
        how = f": with {counted.past_caches} before `python`, copies go past the processor's caches: {gain}"
    return f"a sample itself must become cheaper ({_per_sample(counted)} now){how}"


def _limit(cause: Cause, counted: Counted) -> int:
    """Workers that compute need a core each, and the loop one too; of those that mostly wait, as many as the cores can carry."""
    if cause is not Cause.WAITING:
        return max(1, counted.cores - 1)
    computing = min(1.0, counted.cpu_s / counted.work_s)
    return max(1, min(MOST_WAITING_WORKERS, int(counted.cores / max(computing, 1e-3))))


def _needed(counted: Counted) -> int:
    """So many workers would load a batch in the time the loop needs for one."""
    if counted.loop_s * MOST_WAITING_WORKERS <= counted.work_s:
        return MOST_WAITING_WORKERS
    return max(1, math.ceil(counted.work_s / counted.loop_s))


def _times_as_fast(counted: Counted, workers: int) -> float:
    """If the work is shared evenly, the slower of loading and training sets the pace; epochs still have their beginnings."""
    then_s = max(counted.work_s / workers, counted.loop_s + HAND_OVER_S * counted.batches) + counted.startup_s
    return counted.elapsed_s / then_s if then_s else 1.0


def _per_sample(counted: Counted) -> str:
    return _s(counted.work_s / max(1, counted.samples))


def _cores(count: int) -> str:
    return f"{count} core{'s' if count > 1 else ''}"


def _s(seconds: float) -> str:
    if seconds >= 0.1:
        return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} µs"
