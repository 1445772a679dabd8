"""The profile as one page: no script, no network, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from antifreeze.doctor.findings.words import bytes_text
from antifreeze.doctor.report.page import listed_items, page_foot, page_head
from antifreeze.doctor.report.style import STYLE
from antifreeze.profiling.compare import Change
from antifreeze.profiling.curves import Series, curve, histogram, pipeline
from antifreeze.profiling.model import Profile, Trial
from antifreeze.profiling.recommend import DEFAULT_DEPTH, Recommendation, all_depths, all_sizes
from antifreeze.profiling.text import (
    bins,
    change_parts,
    in_processes,
    in_threads,
    kind_text,
    present_text,
    rate_text,
    sample_rows,
    time_text,
    verdict,
)

MORE_STYLE = """
.charts.pair { grid-template-columns: 1fr; }
@media (min-width: 760px) { .charts.pair { grid-template-columns: 1fr 1fr; } }
.charts.pair figure { justify-content: flex-start; }
.paste { font-size: .95rem; white-space: pre-wrap; overflow-wrap: anywhere; }
svg .line { stroke-width: 2; }
svg .line.part0, svg .dot.part0 { stroke: var(--bar); } svg .line.part1, svg .dot.part1 { stroke: var(--bar2); }
svg .line.ideal { stroke: var(--soft); stroke-dasharray: 4 4; }
svg .marked { stroke: var(--healthy); stroke-width: 2; stroke-dasharray: 2 3; }
.key i.marked { background: var(--healthy); width: 3px; }
.key i.ideal { background: var(--soft); height: 2px; vertical-align: middle; }
svg .frame { fill: none; stroke: var(--line); } svg .stage { fill: var(--bar); } svg .stage.bottleneck { fill: var(--disease); }
table.plain tr { display: table-row; } table.plain td { padding: 5px 10px 5px 0; }
table.plain td:first-child { overflow-wrap: normal; color: var(--soft); }
@media (max-width: 620px) { table.plain tr { grid-template-columns: none; } table.plain td { padding: 4px 8px 4px 0; font-size: .85rem; } }
"""


def html_page(profile: Profile, advice: Recommendation, compared: Sequence[Change] = (), left_out: str = "") -> str:
    length = f"{profile.length:,} samples" if profile.length is not None else "a stream"
    place = profile.place
    cores = f"{place.usable_cores} of {place.cores} cores"
    about = (
        f"{profile.target}: {profile.dataset}, {length}, batch_size={profile.batch_size}; {cores}, torch {place.torch}, {place.taken_at}"
    )
    told = [text for text in (advice.step, *advice.hints, *profile.notes) if text]
    return "\n".join(
        (
            *page_head(f"antifreeze profile: {profile.target}", STYLE + MORE_STYLE),
            f'<header class="healthy"><h1>{escape(verdict(profile, advice))}</h1><p>{escape(about)}</p></header>',
            f'<section><h2>To paste</h2><pre class="paste">{escape(advice.line)}</pre>{listed_items(told)}</section>',
            f'<section class="charts pair">{_throughput(profile, advice)}{_memory(profile, advice)}</section>',
            f'<section class="charts pair">{_pipeline(advice)}{_times(profile)}</section>',
            f"<section><h2>A sample</h2>{_table(sample_rows(profile.samples))}</section>",
            f'<section class="charts pair">{_depths(profile)}{_sizes(profile)}</section>' if profile.depths or profile.sizes else "",
            f"<section><h2>Trials</h2>{_trial_table(profile)}</section>",
            f"<section><h2>Compared with the earlier profile</h2>{_compared(compared)}<p>{escape(left_out)}</p></section>"
            if compared
            else "",
            page_foot("antifreeze profile"),
        )
    )


def _number(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:,.0f}" if value >= 10 else f"{value:g}"


def _throughput(profile: Profile, advice: Recommendation) -> str:
    own, threads = in_processes(profile), in_threads(profile)
    series = [Series("processes", tuple((trial.workers, trial.rate) for trial in own), "part0")]
    one = next((trial for trial in own if trial.workers == 1), None)
    if profile.step_s and profile.batch_size:
        wanted = profile.batch_size / profile.step_s
        every = sorted({trial.workers for trial in profile.trials})
        series.append(Series("what the model takes", tuple((workers, wanted) for workers in every), "ideal"))
    elif one is not None and len(own) > 2:
        cores = profile.place.usable_cores
        series.append(Series("one worker × cores", tuple((t.workers, one.rate * min(t.workers, cores)) for t in own if t.workers), "ideal"))
    if threads:
        series.append(Series("threads", tuple((trial.workers, trial.rate) for trial in threads), "part1"))
    return curve(
        "Throughput over workers", ("workers (processes or threads)", "samples per second"), series, advice.chosen.workers, _number
    )


def _memory(profile: Profile, advice: Recommendation) -> str:
    known = [trial for trial in profile.trials if trial.worker_pss]
    if not known:
        return ""
    points = tuple((trial.workers, trial.workers * (trial.worker_pss or 0) / 1e6) for trial in known)
    flight = tuple((trial.workers, (trial.in_flight or 0) / 1e6) for trial in known)
    series = [Series("workers (PSS, all together)", points, "part0"), Series("batches in flight", flight, "part1")]
    marked = advice.chosen.workers if advice.chosen in known else None
    return curve("Memory over workers", ("workers (processes)", "megabytes (MB)"), series, marked, _number)


def _times(profile: Profile) -> str:
    return histogram("Time per sample", ("time per sample, in steps of equal ratio", "samples"), bins(profile.samples.times), time_text)


def _pipeline(advice: Recommendation) -> str:
    return pipeline("The pipeline with the recommended workers", advice.stages, time_text, rate_text)


def _depths(profile: Profile) -> str:
    if not profile.depths:
        return ""
    points = tuple((float(trial.prefetch or 0), trial.rate) for trial in all_depths(profile))
    return curve(
        f"Prefetch depth, with {kind_text(profile.depths[0])}",
        ("batches ahead, per worker", "samples per second"),
        [Series("measured", points, "part0")],
        float(DEFAULT_DEPTH),
        _number,
        "the default",
    )


def _sizes(profile: Profile) -> str:
    if not profile.sizes:
        return ""
    points = tuple((float(trial.batch_size or 0), trial.rate) for trial in all_sizes(profile))
    return curve(
        f"Batch size, with {kind_text(profile.sizes[0])}",
        ("samples per batch", "samples per second"),
        [Series("measured", points, "part0")],
        profile.batch_size,
        _number,
        "as it is now",
    )


def _table(rows: Sequence[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in rows)
    return f'<table class="plain">{body}</table>'


def _trial_table(profile: Profile) -> str:
    rows = [(kind_text(trial), _told(trial)) for trial in profile.trials]
    if profile.present is not None:
        rows.append((present_text(profile), _told(profile.present)))
    return _table(rows)


def _told(trial: Trial) -> str:
    sure = f" ± {trial.spread:.0%}" if trial.spread < 1 else ""
    parts = [f"{rate_text(trial.rate)}{sure}", f"first batch {time_text(trial.first_batch_s)}"]
    if trial.worker_pss:
        growth = f", {bytes_text(trial.growth)} more per 1000 samples" if trial.growth and trial.growth > 100_000 else ""
        parts.append(f"{bytes_text(trial.worker_pss)} a worker{growth}")
    return "; ".join(parts)


def _compared(compared: Sequence[Change]) -> str:
    return _table([(change.name, " ".join(change_parts(change))) for change in compared])
