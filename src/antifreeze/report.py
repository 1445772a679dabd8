"""What a loader did so far: counted while it runs, read whenever somebody asks.

The ledger is what iterators write to (a few additions per batch); the report is a frozen copy of it with a verdict.
"""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import Any

from antifreeze.delivery.bad_samples import BadSampleRecord
from antifreeze.delivery.ledger import Ledger

_WAITING_MATTERS = 0.05
_SHOWN_BAD = 10


@dataclass(frozen=True)
class Report:
    """Times in seconds, sizes in bytes, shares from 0 to 1."""

    epochs: int
    batches: int
    samples: int
    delivered_bytes: int
    waited_s: float
    loop_s: float
    longest_wait_s: float
    first_batch_s: float | None
    workers: int
    worker_busy: float | None
    fetch_s: float
    collate_s: float
    transport_s: float
    in_flight_bytes: int
    restarts: int
    hedges: int
    bad_samples: tuple[BadSampleRecord, ...]
    story: tuple[str, ...]
    verdict: str

    @classmethod
    def of(cls, ledger: Ledger, workers: int) -> Report:
        timing, costs = ledger.timing, ledger.costs
        waited_s, loop_s = timing.waited_ns / 1e9, timing.loop_ns / 1e9
        work_s = (costs.fetch_ns + costs.collate_ns + costs.write_ns) / 1e9
        elapsed_s = waited_s + loop_s
        busy = min(1.0, work_s / (elapsed_s * workers)) if workers and elapsed_s else None
        return cls(
            epochs=timing.epochs,
            batches=timing.batches,
            samples=timing.samples,
            delivered_bytes=timing.delivered_bytes,
            waited_s=waited_s,
            loop_s=loop_s,
            longest_wait_s=timing.longest_wait_ns / 1e9,
            first_batch_s=None if timing.first_batch_ns is None else timing.first_batch_ns / 1e9,
            workers=workers,
            worker_busy=busy,
            fetch_s=costs.fetch_ns / 1e9,
            collate_s=costs.collate_ns / 1e9,
            transport_s=costs.write_ns / 1e9,
            in_flight_bytes=ledger.most_in_flight_bytes,
            restarts=costs.restarts,
            hedges=costs.hedges,
            bad_samples=tuple(ledger.bad_samples),
            story=tuple(map(str, ledger.story.lines())),
            verdict=_verdict(waited_s, elapsed_s, workers, busy, costs.fetch_ns, costs.collate_ns, costs.write_ns),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        plain = asdict(self)
        plain["bad_samples"] = [bad.as_dict() for bad in self.bad_samples]
        plain["story"] = list(self.story)
        return plain

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self._rows())
        return "\n".join(["antifreeze report", *(f"  {name:<{width}}  {text}" for name, text in self._rows())])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in self._rows()
        )
        return f"<table><caption>antifreeze report</caption>{rows}</table>"

    def _rows(self) -> list[tuple[str, str]]:
        elapsed_s = self.waited_s + self.loop_s
        share = self.waited_s / elapsed_s if elapsed_s else 0.0
        first = "" if self.first_batch_s is None else f", first batch after {_seconds(self.first_batch_s)}"
        rows = [
            ("delivered", f"{self.samples:,} samples in {self.batches:,} batches, {self.epochs} epochs, {_bytes(self.delivered_bytes)}"),
            ("loop", f"{_seconds(self.loop_s)} in your code, {_seconds(self.waited_s)} ({share:.0%}) waiting for data"),
            ("waits", f"the longest {_seconds(self.longest_wait_s)}{first}"),
            ("workers", self._workers_row()),
            ("memory", f"{_bytes(self.in_flight_bytes)} in batches at most"),
            ("bad samples", str(len(self.bad_samples)) if self.bad_samples else "none"),
        ]
        rows += [("", str(bad)) for bad in self.bad_samples[:_SHOWN_BAD]]
        if len(self.bad_samples) > _SHOWN_BAD:
            rows.append(("", f"… and {len(self.bad_samples) - _SHOWN_BAD} more in .bad_samples"))
        if self.restarts:
            rows.append(("restarts", f"{self.restarts} workers replaced"))
        if self.hedges:
            rows.append(("hedges", f"{self.hedges} late tasks loaded a second time"))
        return [*rows, ("verdict", self.verdict)]

    def _workers_row(self) -> str:
        work_s = self.fetch_s + self.collate_s + self.transport_s
        shares = ""
        if work_s:
            shares = (
                f": fetch {self.fetch_s / work_s:.0%}, collate {self.collate_s / work_s:.0%}, transport {self.transport_s / work_s:.0%}"
            )
        if not self.workers:
            return f"none, loaded in the loop{shares}"
        busy = "" if self.worker_busy is None else f", busy {self.worker_busy:.0%}"
        return f"{self.workers}{busy}{shares}"


def _verdict(waited_s: float, elapsed_s: float, workers: int, busy: float | None, fetch_ns: int, collate_ns: int, write_ns: int) -> str:
    if not elapsed_s:
        return "nothing was loaded yet"
    share = waited_s / elapsed_s
    if share < _WAITING_MATTERS:
        return f"the data is not the bottleneck: the loop waited {share:.1%} of the time"
    stage = max((fetch_ns, "the data set's __getitem__"), (collate_ns, "the collate function"), (write_ns, "copying"))[1]
    if not workers:
        return f"the loop spent {share:.0%} of its time loading, most of it in {stage}; num_workers would do that beside it"
    if busy is not None and busy > 0.8:
        return f"the loop waited {share:.0%} of the time: the workers are the bottleneck, most of it in {stage}; more of them would help"
    busy_text = f"{0 if busy is None else busy:.0%} busy"
    return f"the loop waited {share:.0%} of the time though the workers were {busy_text}: look at the longest waits and at epoch starts"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1000:.1f} ms"


def _bytes(value: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
