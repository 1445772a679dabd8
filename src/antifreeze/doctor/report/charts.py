"""Bars with axes, as SVG that stretches: places are given in percent and letters in pixels, so a phone shows them as well as a screen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

ROW_PX, BAR_PX, AXIS_PX = 38, 14, 44
LEFT, RIGHT = 1.0, 97.0
"""Percent of the width that the bars may use."""


@dataclass(frozen=True)
class Bar:
    label: str
    parts: tuple[float, ...]
    text: str


@dataclass(frozen=True)
class Chart:
    title: str
    axis: str
    """What the numbers are, with the unit."""
    bars: tuple[Bar, ...]
    legend: tuple[str, ...]
    at_least: float
    """The axis reaches this far even when all bars are shorter."""


def svg(chart: Chart, tick_text: Callable[[float], str]) -> str:
    ticks = nice_ticks(max([chart.at_least, *(sum(bar.parts) for bar in chart.bars)]))
    height = ROW_PX * len(chart.bars) + AXIS_PX
    body = [_grid(ticks, height, tick_text), *(_bar(bar, row, ticks[-1]) for row, bar in enumerate(chart.bars))]
    body.append(f'<text class="axis" x="{LEFT}%" y="{height - 4}">{escape(chart.axis)}</text>')
    return (
        f"<figure><figcaption>{escape(chart.title)}{_legend(chart.legend)}</figcaption>"
        f'<svg role="img" aria-label="{escape(chart.title)}" width="100%" height="{height}">{"".join(body)}</svg></figure>'
    )


def nice_ticks(largest: float, most: int = 4) -> list[float]:
    """0 and up to `most` round steps, the last at or above the largest value."""
    if largest <= 0:
        return [0.0, 1.0]
    rough = largest / most
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= rough * 0.999)
    return [step * number for number in range(math.ceil(largest / step - 0.01) + 1)]


def _x(value: float, largest: float) -> float:
    return LEFT + (RIGHT - LEFT) * value / largest


def _grid(ticks: list[float], height: int, tick_text: Callable[[float], str]) -> str:
    bottom = height - AXIS_PX + 6
    lines = []
    for tick in ticks:
        x = _x(tick, ticks[-1])
        anchor = "start" if tick == 0 else "end" if tick == ticks[-1] else "middle"
        lines.append(f'<line class="grid" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="{bottom}"/>')
        lines.append(f'<text class="tick" x="{x:.2f}%" y="{bottom + 14}" text-anchor="{anchor}">{escape(tick_text(tick))}</text>')
    return "".join(lines)


def _bar(bar: Bar, row: int, largest: float) -> str:
    top = ROW_PX * row + 18
    shapes, start = [f'<rect class="track" x="{LEFT}%" y="{top}" width="{RIGHT - LEFT}%" height="{BAR_PX}" rx="2"/>'], 0.0
    for number, part in enumerate(bar.parts):
        width = (RIGHT - LEFT) * part / largest
        shapes.append(f'<rect class="part{number}" x="{_x(start, largest):.2f}%" y="{top}" width="{width:.2f}%" height="{BAR_PX}" rx="2"/>')
        start += part
    label = f'<text class="label" x="{LEFT}%" y="{top - 5}">{escape(bar.label)}</text>'
    value = f'<text class="value" x="{RIGHT}%" y="{top - 5}" text-anchor="end">{escape(bar.text)}</text>'
    return f"<g>{label}{value}{''.join(shapes)}</g>"


def _legend(names: tuple[str, ...]) -> str:
    keys = "".join(f'<span class="key"><i class="part{number}"></i>{escape(name)}</span>' for number, name in enumerate(names))
    return f'<span class="legend">{keys}</span>' if keys else ""
