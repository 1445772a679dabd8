"""Rows of text as a table: for a terminal, or as markdown for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]


def render(head: Row, rows: Sequence[Row], markdown: bool) -> str:
    """The first column is set left, the others right; a terminal row that repeats its first cell leaves it empty."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    if markdown:
        rule = [":--", *("--:" for _ in head[1:])]
        return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))
    lines = [_line(head, widths), _line(["-" * width for width in widths], widths)]
    for number, row in enumerate(rows):
        repeats = number > 0 and row[0] == rows[number - 1][0]
        lines.append(_line(["", *row[1:]] if repeats else row, widths))
    return "\n".join(lines)


def _line(cells: Row, widths: Sequence[int]) -> str:
    first, *others = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join((first.strip().ljust(widths[0]), *others)).rstrip()


def quantity(value: float) -> str:
    """Three digits that matter: 1.23M, 45.6k, 789, 0.0123."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def ratio(value: float) -> str:
    return f"{value:.2f}×"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"
