"""Curves, a histogram and the drawing of the pipeline, as SVG that stretches: across in percent, down and letters in pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from antifreeze.doctor.report.charts import nice_ticks
from antifreeze.profiling.recommend import Stage

HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 232, 28, 46, 15.0, 97.0
Text = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    name: str
    points: tuple[tuple[float, float], ...]
    style: str
    """A class of the style sheet: part0, part1 or ideal."""


def curve(
    title: str, axes: tuple[str, str], series: Sequence[Series], marked: float | None, y_text: Text, mark: str = "recommended"
) -> str:
    """`axes`: what runs across and what runs up, with units; `marked`: the x that stands out, and `mark` why."""
    xs = sorted({x for each in series for x, _ in each.points})
    high = nice_ticks(max((y for each in series for _, y in each.points), default=1.0))
    body = [_frame(high, y_text), *(_x_tick(x, xs, f"{x:g}") for x in xs), _axis_names(axes)]
    marked = marked if marked in xs else None  # what was not measured has no place
    if marked is not None:
        place = _across(marked, xs)
        body.append(f'<line class="marked" x1="{place:.2f}%" x2="{place:.2f}%" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    body += [_drawn(each, xs, high[-1], y_text) for each in series]
    legend = [(each.name, each.style) for each in series]
    return _figure(title, "".join(body), [*legend, (mark, "marked")] if marked is not None else legend, HEIGHT)


def histogram(title: str, axes: tuple[str, str], found: Sequence[tuple[float, float, int]], x_text: Text) -> str:
    high = nice_ticks(max((many for _, _, many in found), default=1))
    width = (RIGHT - LEFT) / max(1, len(found))
    body = [_frame(high, lambda value: f"{value:g}"), _axis_names(axes)]
    for number, (low, _, many) in enumerate(found):
        x, y = LEFT + number * width, _down(many, high[-1])
        body.append(f'<rect class="part0" x="{x + 0.15:.2f}%" y="{y:.1f}" width="{width - 0.3:.2f}%" height="{HEIGHT - BOTTOM - y:.1f}"/>')
        if number == 0 or (number == len(found) // 2 and len(found) > 3):
            body.append(_tick(x, x_text(low), "start"))
    if found:
        body.append(_tick(RIGHT, x_text(found[-1][1]), "end"))
    return _figure(title, "".join(body), [], HEIGHT)


def pipeline(title: str, stages: Sequence[Stage], seconds_text: Text, rate_text: Text) -> str:
    """One box below the other, as wide as its share of the time; the bottleneck in its own colour."""
    row, gap = 54, 16
    longest = max((stage.seconds for stage in stages), default=1.0) or 1.0
    body = []
    for number, stage in enumerate(stages):
        y = number * (row + gap)
        kind = "stage bottleneck" if stage.is_bottleneck else "stage"
        width = 97 * stage.seconds / longest
        rate = "" if math.isinf(stage.rate) else rate_text(stage.rate)
        mark = " ◀ the bottleneck" if stage.is_bottleneck else ""
        body.append(f'<rect class="frame" x="1%" y="{y}" width="97%" height="{row}" rx="6"/>')
        body.append(f'<rect class="{kind}" x="1%" y="{y + row - 8}" width="{width:.2f}%" height="8" rx="3"/>')
        body.append(f'<text class="label" x="3%" y="{y + 20}">{escape(stage.name)}{mark}</text>')
        body.append(f'<text class="value" x="96%" y="{y + 20}" text-anchor="end">{escape(seconds_text(stage.seconds))} a sample</text>')
        body.append(f'<text class="tick" x="3%" y="{y + 38}">{escape(stage.detail)}</text>')
        body.append(f'<text class="tick" x="96%" y="{y + 38}" text-anchor="end">{escape(rate)}</text>')
        if number:
            body.append(f'<text class="tick" x="50%" y="{y - 4}" text-anchor="middle">▼</text>')
    return _figure(title, "".join(body), [], len(stages) * (row + gap))


def _figure(title: str, body: str, legend: Sequence[tuple[str, str]], height: int) -> str:
    keys = "".join(f'<span class="key"><i class="{style}"></i>{escape(name)}</span>' for name, style in legend)
    shown = f'<span class="legend">{keys}</span>' if len(legend) > 1 else ""
    svg = f'<svg role="img" aria-label="{escape(title)}" width="100%" height="{height}">{body}</svg>'
    return f"<figure><figcaption>{escape(title)}{shown}</figcaption>{svg}</figure>"


def _across(x: float, xs: Sequence[float]) -> float:
    """Places in equal steps: worker counts double, and the first steps matter most."""
    return LEFT + 3 + (RIGHT - LEFT - 6) * (xs.index(x) / max(1, len(xs) - 1) if x in xs else 0.0)


def _down(y: float, high: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * y / high


def _frame(ticks: Sequence[float], y_text: Text) -> str:
    lines = []
    for tick in ticks:
        y = _down(tick, ticks[-1])
        lines.append(f'<line class="grid" x1="{LEFT}%" x2="{RIGHT}%" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text class="tick" x="{LEFT - 1}%" y="{y + 4:.1f}" text-anchor="end">{escape(y_text(tick))}</text>')
    return "".join(lines)


def _x_tick(x: float, xs: Sequence[float], text: str) -> str:
    return _tick(_across(x, xs), text, "middle")


def _tick(place: float, text: str, anchor: str) -> str:
    return f'<text class="tick" x="{place:.2f}%" y="{HEIGHT - BOTTOM + 16}" text-anchor="{anchor}">{escape(text)}</text>'


def _axis_names(axes: tuple[str, str]) -> str:
    across, up = axes
    return (
        f'<text class="axis" x="{RIGHT}%" y="{HEIGHT - 6}" text-anchor="end">{escape(across)}</text>'
        f'<text class="axis" x="1%" y="11">{escape(up)}</text>'
    )


def _drawn(series: Series, xs: Sequence[float], high: float, y_text: Text) -> str:
    places = [(_across(x, xs), _down(y, high), y) for x, y in series.points]
    lines = [
        f'<line class="line {series.style}" x1="{a[0]:.2f}%" y1="{a[1]:.1f}" x2="{b[0]:.2f}%" y2="{b[1]:.1f}"/>'
        for a, b in pairwise(places)
    ]
    dots = [
        f'<circle class="dot {series.style}" cx="{x:.2f}%" cy="{y:.1f}" r="4"><title>{escape(y_text(value))}</title></circle>'
        for x, y, value in places
    ]
    return "".join(lines + ([] if series.style == "ideal" else dots))
