"""PURE: from the lines of peers' tables to one picture: a panel per workload, ours above the fastest of the others and torch's own loader.

A file of its own (`peers.py --chart FILE`), so it brings its colours along, for light and for dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from peer_report import OURS, Line, best, comparable, ratio_to
from peers.contract import A_CALL_A_ROW, Task
from peers.torch_loader import BASE, BEST

TORCH = {BASE: "torch, 2 workers", BEST: "torch, its best setting"}
OTHERS_SHOWN = 4
COLUMNS = 2
WIDTH, MARGIN, GAP = 960, 20, 36
HEAD_PX, TITLE_PX, ROW_PX, BAR_PX, FOOT_PX = 64, 34, 20, 13, 24
LABEL_PX, VALUE_PX = 168, 62
STYLE = """
text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#3b4048}
.page{fill:#fff}.head{font-size:17px;font-weight:600;fill:#15181d}.sub{fill:#666d78}.title{font-size:13px;font-weight:600;fill:#15181d}
.ours{fill:#0b7a75}.others{fill:#b9c0ca}.torch{fill:#e08e45}.limit{stroke:#15181d;stroke-dasharray:3 3}.bold{font-weight:600;fill:#15181d}
@media(prefers-color-scheme:dark){text{fill:#b6bdc8}.page{fill:#14171c}.head,.title,.bold{fill:#f1f3f6}.sub{fill:#8d95a1}
.ours{fill:#2fb8ae}.others{fill:#4a525e}.torch{fill:#d98a45}.limit{stroke:#f1f3f6}}
"""


@dataclass(frozen=True)
class Bar:
    label: str
    times: float
    """Of the rate of torch with 2 workers."""
    kind: str


def bars_of(task: Task, lines: Sequence[Line]) -> list[Bar]:
    """Fastest first; of each peer its best row, torch's loader always. Nothing where torch with 2 workers has no figure."""
    base = next((line for line in lines if line.title == BASE and line.rate), None)
    if base is None:
        return []
    of_peer: dict[str, list[Line]] = {}
    for line in comparable(task, lines):
        name = line.title.partition(",")[0] + (", row by row" if line.title.endswith(A_CALL_A_ROW) else "")
        of_peer.setdefault(TORCH.get(line.title, name), []).append(line)
    bars = [Bar(name, ratio_to(top, base) or 0.0, _kind(name)) for name, rows in of_peer.items() if (top := best(rows))]
    bars.sort(key=lambda bar: -bar.times)
    shown = [bar.label for bar in bars if bar.kind == "others"][:OTHERS_SHOWN]
    return [bar for bar in bars if bar.kind != "others" or bar.label in shown]


def limit_of(task: Task, lines: Sequence[Line]) -> float | None:
    """What so many reads at a time can be at the most."""
    rate = next((line.rate for line in lines if line.title == BASE), None)
    return task.limit / rate if task.limit and rate else None


def chart(found: Mapping[str, Sequence[Line]], tasks: Mapping[str, Task], machine: str) -> str:
    panels = [(tasks[name], bars, limit_of(tasks[name], lines)) for name, lines in found.items() if (bars := bars_of(tasks[name], lines))]
    rows = [panels[start:stop] for start, stop in pairwise((*range(0, len(panels), COLUMNS), len(panels)))]
    body, y = [], HEAD_PX
    for row in rows:
        for column, panel in enumerate(row):
            body.append(_panel(*panel, MARGIN + column * (_panel_px() + GAP), y))
        y += TITLE_PX + ROW_PX * max(len(bars) for _, bars, _ in row) + 12
    height = y + FOOT_PX
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">'
        f"<style>{STYLE}</style>"
        f'<rect class="page" width="{WIDTH}" height="{height}"/>'
        f'<text class="head" x="{MARGIN}" y="30">Samples per second, as multiples of torch\'s DataLoader with 2 workers</text>'
        f'<text class="sub" x="{MARGIN}" y="50">Longer is faster. Each panel has its own axis; all ran in turns on one machine.</text>'
        f"{''.join(body)}"
        f'<text class="sub" x="{MARGIN}" y="{height - 10}">{escape(machine)}</text></svg>\n'
    )


def _panel_px() -> int:
    return (WIDTH - 2 * MARGIN - (COLUMNS - 1) * GAP) // COLUMNS


def _panel(task: Task, bars: Sequence[Bar], limit: float | None, x: int, y: int) -> str:
    room, longest = _panel_px() - LABEL_PX - VALUE_PX, max(limit or 0.0, *(bar.times for bar in bars))
    parts = [f'<text class="title" x="{x}" y="{y + 18}">{escape(task.title)}</text>']
    for number, bar in enumerate(bars):
        top = y + TITLE_PX + ROW_PX * number
        width = max(1.0, room * bar.times / longest)
        bold = ' class="bold"' if bar.kind == "ours" else ""
        parts.append(f'<text{bold} x="{x + LABEL_PX - 8}" y="{top + BAR_PX - 2}" text-anchor="end">{escape(bar.label)}</text>')
        parts.append(f'<rect class="{bar.kind}" x="{x + LABEL_PX}" y="{top}" width="{width:.1f}" height="{BAR_PX}" rx="2"/>')
        parts.append(f'<text{bold} x="{x + LABEL_PX + width + 6:.1f}" y="{top + BAR_PX - 2}">{_times(bar.times)}</text>')
    if limit is not None:
        at, bottom = x + LABEL_PX + room * limit / longest, y + TITLE_PX + ROW_PX * len(bars) - 6
        parts.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{y + 24}" y2="{bottom}"/>')
        parts.append(f'<text class="sub" x="{at:.1f}" y="{y + 18}" text-anchor="middle">limit</text>')
    return "".join(parts)


def _kind(name: str) -> str:
    return "ours" if name.startswith(OURS) else "torch" if name in TORCH.values() else "others"


def _times(value: float) -> str:
    return f"{value:.0f}×" if value >= 20 else f"{value:.1f}×" if value >= 2 else f"{value:.2f}×"
