"""The profile as lines of text: the line to paste first, then what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from antifreeze.doctor.findings.words import bytes_text, percent
from antifreeze.doctor.report.text import Line
from antifreeze.profiling.compare import Change
from antifreeze.profiling.gil import gil_text
from antifreeze.profiling.model import Kind, Profile, Samples, Trial
from antifreeze.profiling.recommend import DEFAULT_DEPTH, Recommendation, Stage, all_depths, all_sizes

WIDTH = 40
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def text_lines(profile: Profile, advice: Recommendation, compared: Sequence[Change] = (), left_out: str = "") -> Iterator[Line]:
    """`left_out`: what the earlier profile and this one do not both have."""
    yield "bold green", verdict(profile, advice)
    yield "bold", f"  {advice.line}"
    if advice.step:
        yield "", f"  {advice.step}"
    yield from (("", f"  {hint}") for hint in advice.hints)
    yield from (("dim", f"  {note}") for note in profile.notes)
    yield from _samples(profile.samples)
    yield "", ""
    yield "bold", "the pipeline, per sample, with the recommended workers"
    yield from (("bold yellow" if stage.is_bottleneck else "", f"  {text}") for stage, text in _pipeline(advice.stages))
    yield "", ""
    fastest = max((trial.rate for trial in profile.trials), default=1.0)
    for title, of_kind in (("throughput over workers", in_processes(profile)), ("throughput over threads", in_threads(profile))):
        if of_kind:
            yield from _trials(title, of_kind, advice.chosen, kind_text, fastest)
    if profile.present is not None:
        yield "dim", f"  {present_text(profile)}: {rate_text(profile.present.rate)}"
    if profile.depths:
        yield from _trials(f"prefetch depth, with {kind_text(profile.depths[0])}", all_depths(profile), None, _depth_text)
    if profile.sizes:
        yield from _trials(f"batch size, with {kind_text(profile.sizes[0])}", all_sizes(profile), None, lambda t: f"{t.batch_size} a batch")
    yield from _memory(advice.chosen)
    if compared:
        yield "", ""
        yield "bold", "compared with the earlier profile"
        yield from (("", f"  {text}") for text in compared_texts(compared))
        if left_out:
            yield "dim", f"  {left_out}"


def verdict(profile: Profile, advice: Recommendation) -> str:
    if advice.chosen.kind is Kind.TORCH:
        return f"{present_text(profile)}: {rate_text(advice.rate)} ({advice.why})"
    gain = f", {advice.gain:.1f} × {present_text(profile)}" if advice.gain is not None else ""
    return f"{kind_text(advice.chosen)}: {rate_text(advice.rate)}{gain} ({advice.why})"


def present_text(profile: Profile) -> str:
    workers = profile.present_workers
    return f"torch's loader with {plural_workers(workers)}"


def plural_workers(count: int) -> str:
    return "no workers" if count == 0 else f"{count} worker{'' if count == 1 else 's'}"


def kind_text(trial: Trial) -> str:
    if trial.kind is Kind.THREAD:
        return f"{trial.workers} thread{'' if trial.workers == 1 else 's'}"
    return plural_workers(trial.workers)


def in_processes(profile: Profile) -> list[Trial]:
    """And without workers, which their curve begins with."""
    return [trial for trial in profile.trials if trial.kind is not Kind.THREAD]


def in_threads(profile: Profile) -> list[Trial]:
    return [trial for trial in profile.trials if trial.kind is Kind.THREAD]


def _depth_text(trial: Trial) -> str:
    return f"{trial.prefetch} ahead{' (default)' if trial.prefetch == DEFAULT_DEPTH else ''}"


def rate_text(rate: float) -> str:
    return f"{rate:,.0f} samples/s" if rate >= 10 else f"{rate:.2g} samples/s"


def time_text(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _samples(samples: Samples) -> Iterator[Line]:
    yield "", ""
    yield "bold", f"samples ({len(samples.times)} measured, one after another)"
    yield from (("", f"  {name:<14} {text}") for name, text in sample_rows(samples))
    yield from (("", f"  {'':<14} {text}") for text in _histogram(samples))


def sample_rows(samples: Samples) -> list[tuple[str, str]]:
    quantiles = ", ".join(f"{name} {time_text(samples.quantile(share))}" for name, share in (("half", 0.5), ("90 %", 0.9), ("99 %", 0.99)))
    slowest = ", ".join(f"{index} ({time_text(took)})" for index, took in samples.slowest[:3])
    faster = f", {samples.pickle_s / samples.slot_s:.1f} × less" if samples.pickle_s and samples.slot_s else ""
    rows = [
        ("time", f"{quantiles}; the first {time_text(samples.first_s)}"),
        ("slowest", f"sample {slowest}"),
        ("computing", f"{percent(samples.cpu_share)}, waiting {percent(max(0.0, 1 - samples.cpu_share))}; {gil_text(samples.two_threads)}"),
        ("size", f"{bytes_text(samples.sample_bytes)} a sample"),
        ("collate", f"{time_text(samples.collate_s)} a sample"),
        ("transport", f"pickle {time_text(samples.pickle_s)}, ours {time_text(samples.slot_s)} ({samples.path}) a sample{faster}"),
    ]
    return [*rows, ("failed", f"{samples.failed} samples, left out")] if samples.failed else rows


def bins(times: Sequence[float], most: int = 12) -> list[tuple[float, float, int]]:
    """(from, to, how many) in steps of equal ratio; one bin where all are alike."""
    low, high = min(times), max(times)
    if high <= low * 1.02 or low <= 0:
        return [(low, high, len(times))]
    count = min(most, max(3, round(math.sqrt(len(times)))))
    factor = (high / low) ** (1 / count)
    found = [0] * count
    for each in times:
        found[min(count - 1, int(math.log(each / low) / math.log(factor)))] += 1
    return [(low * factor**number, low * factor ** (number + 1), many) for number, many in enumerate(found)]


def _histogram(samples: Samples) -> Iterator[str]:
    found = bins(samples.times, 8) if samples.times else []
    largest = max((many for _, _, many in found), default=1)
    for low, high, many in found:
        yield f"{time_text(low):>8} – {time_text(high):<8} {bar(many / largest, 24)} {many}"


def bar(share: float, width: int = WIDTH) -> str:
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def _pipeline(stages: Sequence[Stage]) -> Iterator[tuple[Stage, str]]:
    total = sum(stage.seconds for stage in stages if stage.name != "model") or 1.0
    for number, stage in enumerate(stages):
        arrow = "└▶" if number else "  "
        mark = "  ◀ the bottleneck" if stage.is_bottleneck else ""
        rate = "" if math.isinf(stage.rate) else f"{stage.rate:>12,.0f} samples/s"
        yield (
            stage,
            f"{arrow} {stage.name:<10}{time_text(stage.seconds):>9}{rate}  {bar(min(1.0, stage.seconds / total), 20)}{mark}"
            if stage.seconds
            else f"{arrow} {stage.name:<10}{stage.detail}",
        )


def _trials(
    title: str, trials: Sequence[Trial], chosen: Trial | None, name: Callable[[Trial], str], longest: float | None = None
) -> Iterator[Line]:
    """`longest`: the rate of the longest bar, where several lists are to be compared."""
    largest = longest or max((trial.rate for trial in trials), default=1.0) or 1.0
    yield "bold", title
    width = max(len(name(trial)) for trial in trials)
    for trial in trials:
        mark = "  ◀ recommended" if trial is chosen else ""
        pss = f", {bytes_text(trial.worker_pss)} a worker" if trial.worker_pss else ""
        numbers = f"{rate_text(trial.rate):>18}, first batch {time_text(trial.first_batch_s)}{pss}"
        yield "bold" if mark else "", f"  {name(trial):>{width}} {bar(trial.rate / largest, 24):<24} {numbers}{mark}"


def _memory(chosen: Trial) -> Iterator[Line]:
    if not chosen.worker_pss:
        return
    grows = chosen.growth is not None and chosen.growth > 100_000
    growth = f", growing {bytes_text(chosen.growth)} per 1000 samples" if grows else ", not growing" if chosen.growth is not None else ""
    together = f"{bytes_text(chosen.worker_pss * chosen.workers)} in {plural_workers(chosen.workers)}"
    yield "bold", "memory"
    yield "", f"  {together} ({bytes_text(chosen.worker_pss)} each, PSS{growth}), and {bytes_text(chosen.in_flight)} in batches at most"


def compared_texts(compared: Sequence[Change]) -> Iterator[str]:
    width = max(len(change.name) for change in compared)
    for change in compared:
        before, arrow, after, ratio, word = change_parts(change)
        yield f"{change.name:<{width}}  {before:>16} {arrow} {after:>16}  {ratio:>8}  {word}"


def change_parts(change: Change) -> tuple[str, str, str, str, str]:
    ratio = f"{change.ratio:.2f} ×" if change.ratio is not None else ""
    return _number(change.before, change.unit), "→", _number(change.after, change.unit), ratio, change.word


def _number(value: float, unit: str) -> str:
    if unit == "bytes":
        return bytes_text(value)
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"
