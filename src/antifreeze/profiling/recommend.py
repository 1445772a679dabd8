"""PURE: one setting from the measurements, what it gains, where the bottleneck is, and which worker count to try next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from antifreeze.profiling.model import Kind, Profile, Samples, Trial

GOOD_ENOUGH = 0.95
"""Of the best rate: fewer workers that reach it are better."""
HEADROOM = 1.1
BETTER = 1.05
CLEARLY_BETTER, UNSURE = 1.15, 0.1
"""What it takes to leave a default: a difference, and a measurement that can show it."""
WAITS_LITTLE = 0.05
MEMORY_SHARE = 0.8
DEFAULT_DEPTH = 2
"""Batches ahead per worker where prefetch_factor is not given, as torch has it."""
MUCH_BETTER = 1.5
"""What it takes to leave a default where the measurements are unsure."""
THREADS_ARE = (
    "threads share your process: the data set must be thread-safe (handles that it keeps are used by all threads at once), and a crash "
    "or os._exit() in a sample ends the process, not a worker (docs/threads.md)"
)
WORTH_KEEPING_S = 0.001
_COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_THREAD_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_WAITS = 0.5


@dataclass(frozen=True)
class Stage:
    name: str
    detail: str
    seconds: float
    """Per sample."""
    rate: float
    """Samples per second that it lets through, with the recommended workers."""
    is_bottleneck: bool = False


@dataclass(frozen=True)
class Recommendation:
    chosen: Trial
    line: str
    """To paste."""
    rate: float
    """Samples per second to expect."""
    gain: float | None
    """Times the rate of the loader as it is used now."""
    why: str
    stages: tuple[Stage, ...]
    step: str
    """Whether the model will wait, in a sentence; empty where its step is not known."""
    hints: tuple[str, ...] = ()


# --- which count to try next ---


def next_count(
    done: Sequence[Trial], usable_cores: int, cpu_share: float, most: int | None, memory_available: int, kind: Kind = Kind.PROCESS
) -> int | None:
    """The next number of workers worth trying, after those of this kind; None when more will not help, do not fit, or are not wanted."""
    counts = [trial.workers for trial in done]
    ahead = [count for count in (_THREAD_COUNTS if kind is Kind.THREAD else _COUNTS) if count > max(counts, default=-1)]
    if not ahead:
        return None
    count = ahead[0]
    if most is not None:
        count = min(count, most)
        if count in counts:
            return None
    elif count > limit_of(usable_cores, cpu_share, kind):
        return None
    if _has_flattened(done) or _does_not_fit(done, count, memory_available):
        return None
    return count


def limit_of(usable_cores: int, cpu_share: float, kind: Kind = Kind.PROCESS) -> int:
    """Workers that compute need a core each; those that mostly wait do not, and threads that wait cost next to nothing."""
    if kind is Kind.THREAD and cpu_share <= _WAITS:
        return _THREAD_COUNTS[-1]
    return 2 * usable_cores if cpu_share > _WAITS else min(32, max(8, 8 * usable_cores))


def _has_flattened(done: Sequence[Trial]) -> bool:
    """Two counts in a row that did not beat the best before them."""
    working = [trial for trial in done if trial.workers]
    if len(working) < 3:
        return False
    best = max(trial.rate for trial in working[:-2])
    return all(trial.rate < best * BETTER for trial in working[-2:])


def _does_not_fit(done: Sequence[Trial], count: int, memory_available: int) -> bool:
    """A thread costs the batches it has in flight, a process itself."""
    each = [(trial.in_flight or 0) // (trial.workers or 1) if trial.kind is Kind.THREAD else trial.worker_pss for trial in done]
    known = [cost for cost in each if cost]
    return bool(known) and max(known) * count > MEMORY_SHARE * memory_available


# --- what to do ---


def recommend(profile: Profile) -> Recommendation:
    wanted = _wanted_rate(profile)
    chosen, why = _choose(profile, wanted)
    depth = better_depth(profile, chosen)
    stages = stages_of(profile, chosen)
    baseline = profile.present.rate if profile.present else None
    rate = max(chosen.rate, depth.rate) if depth else chosen.rate
    return Recommendation(
        chosen=chosen,
        line=_line(profile, chosen, depth),
        rate=rate,
        gain=rate / baseline if baseline else None,
        why=why,
        stages=stages,
        step=_step(profile, chosen, wanted),
        hints=tuple(_hints(profile, chosen, rate) + _wait_hints(stages)),
    )


def _wanted_rate(profile: Profile) -> float | None:
    """Samples per second that the model eats."""
    return (profile.batch_size or 1) / profile.step_s if profile.step_s else None


def clearly_faster(one: Trial, rate: float, spread: float = 0.0) -> bool:
    return one.rate > rate * (CLEARLY_BETTER if max(one.spread, spread) < UNSURE else MUCH_BETTER)


def _candidates(profile: Profile, wanted: float | None) -> list[Trial]:
    """Processes and none, which survive more; threads only where they are clearly faster and that is needed."""
    fitting = [trial for trial in profile.trials if not _too_large(trial, profile.place.memory_available)] or list(profile.trials[:1])
    threads = [trial for trial in fitting if trial.kind is Kind.THREAD]
    others = [trial for trial in fitting if trial.kind is not Kind.THREAD]
    if not threads or not others:
        return fitting
    best, fastest = (max(trials, key=lambda trial: trial.rate) for trials in (others, threads))
    enough = wanted is not None and any(_feeds(trial, wanted) for trial in others)
    return threads if not enough and clearly_faster(fastest, best.rate, best.spread) else others


def _choose(profile: Profile, wanted: float | None) -> tuple[Trial, str]:
    fitting = _candidates(profile, wanted)
    best = max(fitting, key=lambda trial: trial.rate)
    if wanted is None and profile.present is not None and profile.present.rate > best.rate * BETTER:
        return profile.present, "faster than all that was tried: leave it as it is"
    tried = _chosen_with_step(profile)
    if wanted is not None and tried is not None:
        fed = any(_is_same(trial, tried) and (trial.waited_share or 0.0) <= WAITS_LITTLE for trial in profile.with_steps)
        which = "the fewest workers that feed" if fed else "the least waiting of what was tried with the step of"
        return tried, f"{which} a model which takes {wanted:,.0f} samples/s"
    if wanted is not None:
        enough = [trial for trial in fitting if _feeds(trial, wanted)]
        if enough:
            chosen = min(enough, key=lambda trial: trial.workers)
            return chosen, f"the fewest workers that feed a model which takes {wanted:,.0f} samples/s"
        return _fewest(fitting, best), f"the fastest that was measured, though the model takes {wanted:,.0f} samples/s"
    chosen = _fewest(fitting, best)
    if chosen.kind is Kind.THREAD:
        others = max((trial.rate for trial in profile.trials if trial.kind is not Kind.THREAD), default=0.0)
        return chosen, f"{chosen.rate / others:.1f} × the best without threads" if others else "the fastest that was measured"
    if chosen.workers == best.workers:
        return chosen, "the fastest that was measured"
    more = "1 worker" if best.workers == 1 else f"{best.workers} workers"
    return chosen, f"as fast as {more} to within 5 %, with fewer processes"


def next_with_step(profile: Profile) -> Trial | None:
    """More workers to try with the step, where the loop waited and more are faster; three tries in all."""
    last = profile.with_steps[-1]
    if (last.waited_share or 0.0) <= WAITS_LITTLE or len(profile.with_steps) >= 3:
        return None
    now = next((trial for trial in profile.trials if _is_same(trial, last)), None)
    alike = [trial for trial in profile.trials if (trial.kind is Kind.THREAD) == (last.kind is Kind.THREAD)]
    more = [trial for trial in alike if now and trial.workers > now.workers and trial.rate > now.rate * BETTER]
    fitting = [trial for trial in more if not _too_large(trial, profile.place.memory_available)]
    return min(fitting, key=lambda trial: trial.workers) if fitting else None


def _chosen_with_step(profile: Profile) -> Trial | None:
    """What the loop showed with the step between batches counts more than rates: the fewest workers it hardly waited for."""
    if not profile.with_steps:
        return None
    good = [trial for trial in profile.with_steps if (trial.waited_share or 0.0) <= WAITS_LITTLE]
    best = good[0] if good else min(profile.with_steps, key=lambda trial: trial.waited_share or 0.0)
    return next((trial for trial in profile.trials if _is_same(trial, best)), None)


def _is_same(one: Trial, other: Trial) -> bool:
    return (one.workers, one.kind) == (other.workers, other.kind)


def _feeds(trial: Trial, wanted: float) -> bool:
    """Without workers the loop loads between its steps, so loading must be a small part of the step."""
    return trial.rate >= wanted * (HEADROOM if trial.workers else 50)


def _fewest(trials: Sequence[Trial], best: Trial) -> Trial:
    good = [trial for trial in trials if trial.rate >= GOOD_ENOUGH * best.rate]
    return min(good, key=lambda trial: (trial.workers, -trial.rate))


def _too_large(trial: Trial, memory_available: int) -> bool:
    return (trial.worker_pss or 0) * trial.workers > MEMORY_SHARE * memory_available


def better_depth(profile: Profile, chosen: Trial) -> Trial | None:
    deeper = [
        trial
        for trial in profile.depths
        if _is_same(trial, chosen) and trial.rate > chosen.rate * CLEARLY_BETTER and max(trial.spread, chosen.spread) < UNSURE
    ]
    return max(deeper, key=lambda trial: trial.rate) if deeper else None


def all_depths(profile: Profile) -> list[Trial]:
    """By depth, with the default among them: it was measured with the worker counts."""
    known = {trial.prefetch for trial in profile.depths}
    default = [trial for trial in profile.trials if profile.depths and _is_same(trial, profile.depths[0])]
    others = [replace(trial, prefetch=DEFAULT_DEPTH) for trial in default[:1] if DEFAULT_DEPTH not in known]
    return sorted([*profile.depths, *others], key=lambda trial: trial.prefetch or 0)


def all_sizes(profile: Profile) -> list[Trial]:
    """By batch size, with the present one among them."""
    present = [trial for trial in profile.trials if profile.sizes and _is_same(trial, profile.sizes[0])]
    return sorted([*profile.sizes, *present[:1]], key=lambda trial: trial.batch_size or 0)


def _line(profile: Profile, chosen: Trial, depth: Trial | None) -> str:
    left_out = "multiprocessing_context" if chosen.kind is Kind.THREAD else ""
    words = [f"batch_size={profile.batch_size}", *(f"{name}={value}" for name, value in profile.arguments if name != left_out)]
    words.append(f"num_workers={chosen.workers}")
    if chosen.kind is Kind.THREAD:
        words.append('workers="thread"')
    if chosen.workers and chosen.kind is Kind.PROCESS:
        words.append("persistent_workers=True")
    if depth is not None:
        words.append(f"prefetch_factor={depth.prefetch}")
    name = "torch.utils.data.DataLoader" if chosen.kind is Kind.TORCH else "antifreeze.DataLoader"
    return f"loader = {name}(dataset, {', '.join(words)})"


def needed_workers(profile: Profile) -> int | None:
    """From what one worker does alone; the cores for them are another matter."""
    wanted = _wanted_rate(profile)
    one = next((trial for trial in profile.trials if trial.workers == 1 and trial.kind is not Kind.THREAD), None)
    return math.ceil(wanted * HEADROOM / one.rate) if wanted and one and one.rate else None


def _step(profile: Profile, chosen: Trial, wanted: float | None) -> str:
    if wanted is None or profile.step_s is None:
        return ""
    tried = next((trial for trial in profile.with_steps if _is_same(trial, chosen)), None)
    measured = tried.waited_share if tried else None
    step = f"a step of {1000 * profile.step_s:.4g} ms takes {wanted:,.0f} samples/s"
    word = "thread" if chosen.kind is Kind.THREAD else "worker"
    workers = f"1 {word} gives" if chosen.workers == 1 else f"{chosen.workers or 'no'} {word}s give"
    told = f"{step}, and {workers} {chosen.rate:,.0f}"
    if measured is not None:
        told += f"; tried with that step, the loop waited {measured:.0%} of the time"
    if measured <= WAITS_LITTLE if measured is not None else _feeds(chosen, wanted):
        return f"the model will not wait: {told}"
    share = measured if measured is not None else _share_waited(chosen, wanted)
    needed = needed_workers(profile)
    want = (
        f"; it needs about {needed} workers, and there are {profile.place.usable_cores} cores" if needed and needed > chosen.workers else ""
    )
    return f"the model will wait {share:.0%} of the time: {told}{want}"


def _share_waited(chosen: Trial, wanted: float) -> float:
    return max(0.0, 1 - chosen.rate / wanted) if chosen.workers else wanted / (wanted + chosen.rate)


def stages_of(profile: Profile, chosen: Trial) -> tuple[Stage, ...]:
    """What a sample goes through, with the chosen workers side by side: waiting, computing, collating, transport; then the model."""
    samples, beside = profile.samples, max(1, chosen.workers)
    fetch = chosen.fetch_s if chosen.fetch_s is not None else samples.mean_s
    wait = fetch * max(0.0, 1 - min(1.0, samples.cpu_share))
    collate = chosen.collate_s if chosen.collate_s is not None else samples.collate_s
    transport = chosen.transport_s if chosen.transport_s is not None else samples.slot_s or 0.0
    parts = [
        ("wait", "for storage, locks, sleep", wait),
        ("compute", "read, decode, transform", fetch - wait),
        ("collate", _where_collated(samples, chosen), collate),
        ("transport", samples.path, transport),
    ]
    stages = [Stage(name, detail, seconds, beside / seconds if seconds > 0 else math.inf) for name, detail, seconds in parts]
    if profile.step_s:
        per_sample = profile.step_s / (profile.batch_size or 1)
        stages.append(Stage("model", "the step", per_sample, 1 / per_sample))
    return tuple(_marked(stages, chosen, profile.step_s is not None))


def _where_collated(samples: Samples, chosen: Trial) -> str:
    if samples.path == "rows" and not chosen.collate_s:
        return "none: rows are written where the batch is"
    return "in the worker" if chosen.workers else "in the loop"


def _marked(stages: list[Stage], chosen: Trial, has_step: bool) -> list[Stage]:
    """The worker's stages share the worker's time: the longest of them is the bottleneck, unless the model is slower than all together."""
    longest = max(stages[:4], key=lambda stage: stage.seconds)
    slowest = stages[-1] if has_step and stages[-1].rate < chosen.rate else longest
    return [Stage(s.name, s.detail, s.seconds, s.rate, s is slowest) for s in stages]


def _hints(profile: Profile, chosen: Trial, rate: float) -> list[str]:
    """`rate`: what the recommended line gives, with its prefetch depth."""
    hints = [THREADS_ARE] if chosen.kind is Kind.THREAD else []
    samples = profile.samples
    larger = [
        trial for trial in profile.sizes if trial.rate > rate * CLEARLY_BETTER and (trial.batch_size or 1) > (profile.batch_size or 1)
    ]
    if larger:
        best = max(larger, key=lambda trial: trial.rate)
        hints.append(f"batch_size={best.batch_size} would load {best.rate / rate:.1f} × as fast, if training allows it")
    if chosen.growth is not None and chosen.growth > 5e6 and chosen.workers:
        hints.append(
            f"a worker grows by {chosen.growth / 1e6:.0f} MB per 1000 samples: `antifreeze.check(dataset)` measures what it copies"
        )
    hints += _tail_hints(samples)
    if samples.collate_s > samples.mean_s:
        hints.append("collating takes longer than loading: the collate function is worth a look")
    if chosen.first_batch_s > 5:
        hints.append(f"the first batch takes {chosen.first_batch_s:.1f} s: persistent_workers keeps that to the first epoch")
    return hints


def _wait_hints(stages: Sequence[Stage]) -> list[str]:
    wait = stages[0]
    if not wait.is_bottleneck or wait.seconds < WORTH_KEEPING_S:
        return []
    return [f"samples wait {wait.seconds * 1000:.1f} ms each: antifreeze.cached keeps those of slow storage in local files"]


def _tail_hints(samples: Samples) -> list[str]:
    middle, slow = samples.quantile(0.5), samples.quantile(0.99)
    if middle and slow > 10 * middle and slow > 0.05:
        index, seconds = samples.slowest[0]
        return [
            f"a few samples are much slower than the rest (sample {index}: {seconds:.2f} s, half take less than {middle * 1000:.1f} ms)"
        ]
    return []
