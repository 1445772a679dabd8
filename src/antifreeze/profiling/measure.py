"""All measurements of one workload, in order, within a budget of seconds.

    samples ─> counts of workers ─> torch's own ─> the best counts again ─> threads ─> depths ─> batch sizes ─> with the step

1. The counts and torch's own are always measured, the rest as far as the time goes; what it did not suffice for is a note.
2. A trial has its share of the budget, and is not cut short by the end of it: a slow data set takes longer than it was given.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from antifreeze import __version__
from antifreeze.checks.errors import NotCheckable
from antifreeze.doctor.findings.words import listed
from antifreeze.errors import AntifreezeError
from antifreeze.profiling.apart import ThreadsFailed, is_apart, run_apart
from antifreeze.profiling.model import Kind, Place, Profile, Trial
from antifreeze.profiling.recommend import better_depth, clearly_faster, next_count, next_with_step, recommend
from antifreeze.profiling.sampling import measure_samples
from antifreeze.profiling.trials import Tell, loader_name, run_trial
from antifreeze.profiling.workload import Workload
from antifreeze.supervisor.cgroup import available_memory_bytes
from antifreeze.tuning.cores import usable_cores

SHARES = 56
"""The budget is shared among so many parts: about 25 measurements, and starting and ending what they measure."""
CURVE = 0.7
"""Of the budget: later than this no further count of workers is tried."""
CONTENDER = 0.85
"""Of the best rate: what comes near it is measured again."""
DOUBTFUL = 0.5
FEWEST = 3
"""Counts that are always tried: none, one and two."""
DEPTHS = (1, 4, 8)


@dataclass(frozen=True)
class Plan:
    seconds: float = 30.0
    most_workers: int | None = None
    step_s: float | None = None
    step: Callable[[Any], Any] | None = None

    @property
    def each_s(self) -> float:
        return max(0.1, self.seconds / SHARES)


def measure(workload: Workload, plan: Plan, tell: Tell) -> Profile:
    """Raises NotCheckable with a sentence where the data set cannot be measured."""
    clock = _Clock(plan.seconds)
    tell("samples, one after another")
    samples = measure_samples(workload, plan.each_s)
    notes = _other_work()
    size = _bearable_size(workload, samples.mean_s, plan.each_s, notes)
    run = _Runner(workload, plan, tell, size, clock, is_slow=samples.mean_s > plan.each_s / 2)
    step_s = run.time_step(plan.step) if plan.step is not None else plan.step_s  # now: one that raises should say so at once
    if run.is_slow:
        notes.append("samples are slow, so each trial ran once, and depth and batch size were not tried")
    memory = available_memory_bytes() or 0
    trials: list[Trial] = []
    count = next_count(trials, usable_cores(), samples.cpu_share, plan.most_workers, memory)
    while count is not None:
        trials.append(run(Kind.PROCESS if count else Kind.INLINE, count))
        count = next_count(trials, usable_cores(), samples.cpu_share, plan.most_workers, memory)
        if count is not None and len(trials) >= FEWEST and clock.share() > CURVE:
            clock.lacked(f"more than {trials[-1].workers} workers")
            break
    present = _present(workload, run, notes)
    if not run.is_slow:
        trials = _again(run, trials, samples.mean_s)
    trials += _threads(run, samples.cpu_share, max(trial.rate for trial in trials), memory, notes)
    profile = Profile(
        target=workload.name,
        dataset=type(workload.subject.dataset).__name__,
        length=workload.length,
        batch_size=workload.batch_size,
        arguments=workload.arguments,
        present_workers=workload.present_workers,
        place=read_place(memory),
        samples=samples,
        trials=tuple(trials),
        present=present,
        step_s=step_s,
        notes=tuple(notes),
    )
    try:
        found = _around(profile, run, plan)
    except ThreadsFailed as error:  # though they went well until then: luck
        processes = tuple(trial for trial in trials if trial.kind is not Kind.THREAD)
        found = _around(replace(profile, trials=processes, notes=(*notes, str(error))), run, plan)
    return replace(found, notes=(*found.notes, *clock.notes()))


class _Clock:
    """How much of the budget is used, and what it did not suffice for."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began, self._lacking = seconds, time.perf_counter(), list[str]()

    def share(self) -> float:
        return (time.perf_counter() - self._began) / self._seconds

    def lacked(self, what: str) -> None:
        if what not in self._lacking:
            self._lacking.append(what)

    def is_over(self, for_what: str) -> bool:
        if self.share() < 1.0:
            return False
        self.lacked(for_what)
        return True

    def notes(self) -> list[str]:
        if not self._lacking:
            return []
        return [f"--seconds {self._seconds:g} did not suffice for {listed(self._lacking)}: give it more to have them too"]


def _again(run: _Runner, trials: list[Trial], sample_s: float) -> list[Trial]:
    """What is worth a second try, once more: of two measurements the faster one counts."""
    found = list(trials)
    for trial in worth_again(trials, sample_s):
        if run.clock.is_over("a second try of the best"):
            break
        found[trials.index(trial)] = faster(trial, run(trial.kind, trial.workers))
    return found


def worth_again(trials: Sequence[Trial], sample_s: float) -> list[Trial]:
    """Pure: those that may turn out to be the best, the best first; and those that cannot be right, because something else ran meanwhile:
    far slower than the samples were one by one, or than with fewer workers and with more."""
    best = max(trial.rate for trial in trials)
    near = sorted((trial for trial in trials if trial.rate >= CONTENDER * best), key=lambda trial: -trial.rate)
    beside = [max(one.rate for one in trials[max(0, place - 1) : place + 2]) for place in range(len(trials))]
    alone = 1 / sample_s if sample_s else 0.0
    odd = [
        trial
        for trial, neighbour in zip(trials, beside, strict=True)
        if trial.rate < DOUBTFUL * (alone if trial.kind is Kind.INLINE else min(neighbour, alone * trial.workers))
    ]
    return near + [trial for trial in odd if trial not in near]


def _threads(run: _Runner, cpu_share: float, to_beat: float, memory: int, notes: list[str]) -> list[Trial]:
    """Their own curve. What fails there says something of threads only: it is a note, and the rest is measured all the same."""
    trials: list[Trial] = []
    try:
        while (count := next_count(trials, usable_cores(), cpu_share, run.plan.most_workers, memory, Kind.THREAD)) is not None:
            if run.clock.is_over("more threads" if trials else "threads"):
                break
            trials.append(run(Kind.THREAD, count))
        best = max(trials, key=lambda trial: trial.rate, default=None)
        if best is None:
            return []
        if not run.is_slow and clearly_faster(best, to_beat):  # only then does it matter
            trials[trials.index(best)] = faster(best, run(Kind.THREAD, best.workers))
    except ThreadsFailed as error:
        notes.append(str(error))
        return []  # what one count did not survive is not to be recommended with another
    return trials


def _around(profile: Profile, run: _Runner, plan: Plan) -> Profile:
    """Depth, batch size and the step, each with the workers that were best."""
    chosen = recommend(profile).chosen
    sizes: list[Trial] = []
    if run.is_slow:
        return _with_step(profile, run, plan) if plan.step is not None or plan.step_s is not None else profile
    if chosen.workers:
        depths = [run(chosen.kind, chosen.workers, prefetch=depth) for depth in DEPTHS if not run.clock.is_over("prefetch depths")]
        profile = confirm_depth(replace(profile, depths=tuple(depths)), chosen, run)
    if "batch_sampler" not in dict(profile.arguments) and run.size is not None:
        sizes = [
            run(chosen.kind, chosen.workers, batch_size=size)
            for size in around_size(run.size, profile.length)
            if not run.clock.is_over("batch sizes")
        ]
    found = replace(profile, sizes=tuple(sizes))
    return _with_step(found, run, plan) if plan.step is not None or plan.step_s is not None else found


def confirm_depth(profile: Profile, chosen: Trial, run: Callable[[Kind, int], Trial]) -> Profile:
    """Where a depth seems better: the default once more, beside it. The machine may only have been busier while that was measured."""
    if better_depth(profile, chosen) is None or chosen not in profile.trials:
        return profile
    again = faster(chosen, run(chosen.kind, chosen.workers))
    return replace(profile, trials=tuple(again if trial is chosen else trial for trial in profile.trials))


def _with_step(profile: Profile, run: _Runner, plan: Plan) -> Profile:
    """The loader with the step between batches; with more workers while the loop waits."""
    step = plan.step or (lambda batch: time.sleep(plan.step_s or 0.0))
    following = recommend(profile).chosen if run.size == profile.batch_size else None
    while following is not None:
        done = run(following.kind, following.workers, step=step)
        profile = replace(profile, with_steps=(*profile.with_steps, done))
        following = next_with_step(profile)
    return profile


def _present(workload: Workload, run: _Runner, notes: list[str]) -> Trial | None:
    if workload.skip_bad:
        notes.append("torch's own loader was not measured: it stops at the first bad sample")
        return None
    once = run(Kind.TORCH, workload.present_workers)
    if run.is_slow or run.clock.is_over("a second try of torch's loader"):
        return once
    return faster(once, run(Kind.TORCH, workload.present_workers))


def faster(one: Trial, other: Trial) -> Trial:
    """Whatever else runs on the machine can only slow a trial down: of two, the faster one tells more."""
    return max(one, other, key=lambda trial: trial.rate)


def _other_work() -> list[str]:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < 0.5 * cores:
        return []
    return [f"other work was running (load {load:.1f} on {cores} cores): the numbers are lower and less certain than on a quiet machine"]


class _Runner:
    def __init__(self, workload: Workload, plan: Plan, tell: Tell, size: int | None, clock: _Clock, is_slow: bool) -> None:
        self.workload, self.plan, self.tell, self.size, self.clock, self.is_slow = workload, plan, tell, size, clock, is_slow

    def __call__(self, kind: Kind, workers: int, **options: Any) -> Trial:
        options.setdefault("batch_size", self.size)
        in_our_process = options.get("step") is not None and self.plan.step is not None  # a forked child has no GPU for the user's step
        if is_apart(kind, workers) and not in_our_process:
            return run_apart(self.workload, kind, workers, self.plan.each_s, self.tell, **options)
        try:
            return run_trial(self.workload, kind, workers, self.plan.each_s, self.tell, **options)
        except Exception as error:
            raise self._cannot(kind, workers, error) from error

    def _cannot(self, kind: Kind, workers: int, error: Exception) -> NotCheckable:
        told = str(error) if isinstance(error, AntifreezeError) else f"{type(error).__name__}: {error}"
        return NotCheckable(self.workload.cannot_be_loaded(loader_name(kind, workers), told))

    def time_step(self, step: Callable[[Any], Any]) -> float:
        """The step's own time, without the loader: on one batch, again and again, the first time not counted."""
        batch = self._one_batch()
        try:
            step(batch)
            began, count = time.perf_counter(), 0
            while count < 3 or (time.perf_counter() - began < self.plan.each_s and count < 200):
                step(batch)
                count += 1
            return (time.perf_counter() - began) / count
        except Exception as error:
            raise NotCheckable(f"the step raises {type(error).__name__}: {error}") from error

    def _one_batch(self) -> Any:
        """From a worker: a sample that hangs or kills does that to it alone."""
        loader = self.workload.loader(Kind.PROCESS, 1, self.size, None)
        try:
            return next(iter(loader))
        except Exception as error:
            raise self._cannot(Kind.PROCESS, 1, error) from error
        finally:
            loader.close()


def _bearable_size(workload: Workload, sample_s: float, each_s: float, notes: list[str]) -> int | None:
    """The batch size of the trials: smaller where one batch would take longer than a trial may."""
    size = workload.batch_size
    if size is None or "batch_sampler" in workload.options:
        return size
    if workload.length is not None:
        size = max(1, min(size, workload.length))
    bearable = max(1, int(each_s / 2 / sample_s)) if sample_s else size
    if bearable < size:
        notes.append(f"samples are slow ({sample_s:.2g} s each), so trials used batches of {bearable} instead of {size}")
        return bearable
    return size


def around_size(size: int, length: int | None) -> list[int]:
    """Batch sizes to try beside this one."""
    others = {max(1, size // 4), size * 2, size * 4} - {size}
    return sorted(other for other in others if length is None or other <= length)


def read_place(memory_available: int) -> Place:
    return Place(
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        memory_available=memory_available,
        python=platform.python_version(),
        torch=torch.__version__,
        version=__version__,
        taken_at=time.strftime("%Y-%m-%d %H:%M:%S"),
    )
