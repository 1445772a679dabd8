"""What a loader did so far: counted while it runs, read whenever somebody asks.

The ledger is what iterators write to (a few additions per batch); the report is a frozen copy of it with a verdict.
"""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

from antifreeze.delivery.bad_samples import DONE, BadSampleRecord
from antifreeze.delivery.crowding import crowded_loop, crowded_workers
from antifreeze.delivery.growth import growth_finding
from antifreeze.delivery.ledger import Ledger, Timing
from antifreeze.linux import PAST_CACHES_BYTES, fresh_page_ns, past_caches
from antifreeze.supervisor.work import Costs
from antifreeze.verdict import Counted, verdict, waited_for, waiting_now
from antifreeze.worker.journal import Used

_SHOWN_BAD = 10
_LINE = 116
_SHOWN_SHARE = 0.01
_FEW_FAULTS = 8  # a sample in workers, or a batch in the loop's process: what they cost is not even asked
_DEAR_SHARE, _DEAR_S = 0.05, 0.1  # of the work, and in all: what workers touch for the first time is fresh in any run
_DEAR_IN_WORKERS = (
    "a fresh page costs {cost_us:.1f} µs here, in workers about {share:.0%} of their work: they keep what is freed, up to 32 MB a "
    "piece, but larger arrays, mapped files and what a library maps for itself are paid for each time; a buffer that is used again is not"
)
_DEAR_HERE = (
    "a fresh page costs {cost_us:.1f} µs here, in your process about {each} a batch: memory that is used again costs nothing, and worker "
    "processes keep what is freed"
)
_TURNS = (
    "worker threads load one sample at a time, and only while the loop waits: the data set draws from random generators that the whole "
    'process shares; workers="process" does not have to'
)


@dataclass(frozen=True, repr=False)
class Report:
    """Times in seconds, sizes in bytes, shares from 0 to 1.

    What the kernel counted: `worker_faults` (pages that were not there when they were touched) and `worker_switches` (times that a core
    was given away, to wait or to somebody else) of all worker processes since each was ready, and the `worker_samples` they have begun,
    those loaded twice or in vain included. A worker looks every 20 ms at the end of a task, and when it is told to end: of one that was
    killed, or is still there, what came after its last look is missing. `own_faults`, `own_switches` are of the loop's whole process,
    your code and worker threads included, in `own_batches`: from the first batch of an epoch on, as of the last look, every 64 batches at
    most. `fault_s` is what a page's first touch costs here, measured where there were many faults, else None; `worker_fault_share` is how
    much of the workers' work that comes to, were every fault of that kind.

    How often batches were copied, each being one of three: `as_rows` (workers wrote its rows straight into the slot, and that is what you
    get), `as_parcels` (collated, then copied into the slot), `as_made` (by the loop itself or a worker thread, and not copied); of those
    `copied_out` (of the slot, because you keep so many, or because bad rows were left out), and `copied_to_pinned` (because slots could not
    be page-locked).

    While the loop loaded batches itself, `loading_threads` threads of its process computed at the same time, or would have; the one of them
    that stood longest without a core, the loop's own aside, did so for `threads_without_core` of that time. `crowding` is what that means,
    or what the thread pools of workers do, where they fight over cores; else None.
    """

    epochs: int
    batches: int
    samples: int
    delivered_bytes: int
    waited_s: float
    waited_for_s: dict[str, float]
    loop_s: float
    longest_wait_s: float
    first_batch_s: float | None
    workers: int
    worker_busy: float | None
    fetch_s: float
    collate_s: float
    transport_s: float
    cpu_s: float
    queued_s: float
    in_flight_bytes: int
    restarts: int
    hedges: int
    made_by_loop: int
    keeps_memory: str
    loaded_ahead: int
    loaded_ahead_in_vain: int
    loaded_ahead_no_more: str
    streams_continued: int
    streams_ended: int
    taking_turns: str
    worker_bytes: int
    worker_samples: int
    worker_faults: int
    worker_switches: int
    own_batches: int
    own_faults: int
    own_switches: int
    fault_s: float | None
    worker_fault_share: float
    as_rows: int
    as_parcels: int
    as_made: int
    copied_out: int
    copied_to_pinned: int
    loading_threads: int
    threads_without_core: float
    crowding: str | None
    growth: str | None
    decided: tuple[str, ...]
    bad_samples: tuple[BadSampleRecord, ...]
    raised: tuple[BadSampleRecord, ...]
    quarantined: int
    story: tuple[str, ...]
    verdict: str

    @classmethod
    def of(cls, ledger: Ledger, workers: int, cores: int, *, persistent: bool = False, dataset: Any = None, quarantined: int = 0) -> Report:
        """`cores`: how many this rank may use; `dataset` is looked at where workers have grown, for what makes them grow; `quarantined`:
        how many samples the list has that are left out."""
        timing, costs = ledger.timing, ledger.costs
        own, used, copies = timing.own, costs.tally.used(), costs.copies
        many = used.faults > _FEW_FAULTS * used.samples or own.faults > _FEW_FAULTS * own.batches
        fault_s = fresh_page_ns() / 1e9 if many else None
        if ledger.decided:
            workers = ledger.decided[-1].workers
        threads, pools = costs.own_threads, [worker.busy_threads for worker in costs.memory.workers.values()]
        fight = crowded_loop(threads.most, threads.without_core, cores)
        counted = _counted(timing, costs, workers, cores, persistent)
        counted = replace(counted, auto=bool(ledger.decided), undecided=ledger.undecided)
        counted = replace(counted, loaded_ahead=ledger.warmth.used, fight=fight is not None)
        if timing.waiting_since_ns is not None:
            counted = waiting_now(counted, (time.perf_counter_ns() - timing.waiting_since_ns) / 1e9)
        return cls(
            epochs=timing.epochs,
            batches=timing.batches,
            samples=timing.samples,
            delivered_bytes=timing.delivered_bytes,
            waited_s=counted.waited_s,
            waited_for_s={cause.value: seconds for cause, seconds in waited_for(counted).items()},
            loop_s=counted.loop_s,
            longest_wait_s=counted.longest_wait_s,
            first_batch_s=None if timing.first_batch_ns is None else timing.first_batch_ns / 1e9,
            workers=workers,
            worker_busy=counted.busy,
            fetch_s=counted.fetch_s,
            collate_s=counted.collate_s,
            transport_s=counted.write_s,
            cpu_s=counted.cpu_s,
            queued_s=counted.queued_s,
            in_flight_bytes=ledger.most_in_flight_bytes,
            restarts=costs.restarts,
            hedges=costs.hedges,
            made_by_loop=ledger.made_by_loop,
            keeps_memory=ledger.keeps_memory,
            loaded_ahead=ledger.warmth.used,
            loaded_ahead_in_vain=ledger.warmth.dropped,
            loaded_ahead_no_more=ledger.warmth.why_not,
            streams_continued=costs.streams_continued,
            streams_ended=costs.streams_ended,
            taking_turns=costs.taking_turns,
            worker_bytes=sum(worker.pss_bytes for worker in costs.memory.workers.values()),
            worker_samples=used.samples,
            worker_faults=used.faults,
            worker_switches=used.switches,
            own_batches=own.batches,
            own_faults=own.faults,
            own_switches=own.switches,
            fault_s=fault_s,
            worker_fault_share=_fault_share(used, costs, fault_s or 0.0),
            as_rows=copies.rows,
            as_parcels=copies.parcels,
            as_made=copies.made,
            copied_out=copies.again,
            copied_to_pinned=copies.pinned,
            loading_threads=threads.most,
            threads_without_core=threads.without_core,
            crowding=fight or crowded_workers(pools, cores),
            growth=growth_finding(costs.memory.most_grown, dataset, costs.memory.hoards),
            decided=tuple(map(str, ledger.decided)),
            bad_samples=tuple(ledger.bad_samples),
            raised=tuple(ledger.raised),
            quarantined=quarantined,
            story=tuple(map(str, ledger.story.lines())),
            verdict=verdict(counted),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        plain = asdict(self)
        plain["bad_samples"] = [bad.as_dict() for bad in self.bad_samples]
        plain["raised"] = [bad.as_dict() for bad in self.raised]
        plain["story"] = list(self.story)
        plain["decided"] = list(self.decided)
        return plain

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self._rows())
        lines = []
        for name, text in self._rows():
            first, *more = textwrap.wrap(text, _LINE - width) or [""]
            lines += [f"  {name:<{width}}  {first}", *(f"  {'':<{width}}  {line}" for line in more)]
        return "\n".join(["antifreeze report", *lines])

    def _repr_html_(self) -> str:
        from html import escape  # for notebooks only: it brings a table of 2,231 entities

        rows = "".join(f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self._rows())
        return f"<table><caption>antifreeze report</caption>{rows}</table>"

    def _rows(self) -> list[tuple[str, str]]:
        elapsed_s = self.waited_s + self.loop_s
        share = self.waited_s / elapsed_s if elapsed_s else 0.0
        first = "" if self.first_batch_s is None else f", first batch after {_seconds(self.first_batch_s)}"
        rows = [
            ("delivered", self._delivered_row()),
            ("loop", f"{_seconds(self.loop_s)} in your code, {_seconds(self.waited_s)} ({share:.0%}) waiting for data"),
            ("waits", f"the longest {_seconds(self.longest_wait_s)}{first}"),
            *([("waited for", self._waited_row())] if self.waited_s else []),
            ("workers", self._workers_row()),
            ("memory", self._memory_row()),
            *([("kernel", self._kernel_row()), *self._dear_faults()] if self.worker_samples or self.own_batches else []),
            *([("copies", self._copies_row())] if self.as_rows or self.as_parcels or self.as_made else []),
            ("bad samples", self._bad_row()),
        ]
        for records, where in ((self.bad_samples, ".bad_samples"), (self.raised, ".raised")):
            rows += [("", str(bad)) for bad in records[:_SHOWN_BAD]]
            if len(records) > _SHOWN_BAD:
                rows.append(("", f"… and {len(records) - _SHOWN_BAD} more in {where}"))
        if self.quarantined:
            rows.append(("quarantine", f"{_several(self.quarantined, 'listed sample')} of an earlier run not loaded"))
        if self.decided:
            before = (
                f" (before that: {_several(len(self.decided) - 1, 'other choice')}, in report().decided)" if len(self.decided) > 1 else ""
            )
            rows.append(("auto", f"{self.decided[-1]}{before}"))
        if self.made_by_loop:
            rows.append(
                ("helped", f"{_several(self.made_by_loop, 'batch', 'es')} made by the loop itself while it waited for those of workers")
            )
        if self.restarts:
            rows.append(("restarts", f"{_several(self.restarts, 'worker')} replaced"))
        if self.hedges:
            rows.append(("hedges", f"{_several(self.hedges, 'late task')} loaded a second time"))
        if self.loaded_ahead or self.loaded_ahead_in_vain or self.loaded_ahead_no_more:
            rows.append(("next epoch", self._ahead_row()))
        if self.streams_continued:
            rows.append(("streams", f"{self.streams_continued} began anew after their worker ended; samples on their way were lost"))
        if self.streams_ended:
            rows.append(("streams", f"{self.streams_ended} ended at a bad sample that they could not be led past"))
        if self.taking_turns:
            rows.append(("turns", f"{_TURNS} ({self.taking_turns})"))
        if self.crowding:
            rows.append(("threads", self.crowding))
        if self.growth:
            rows.append(("growth", self.growth))
        return [*rows, ("verdict", self.verdict)]

    def _delivered_row(self) -> str:
        samples, batches, epochs = _several(self.samples, "sample"), _several(self.batches, "batch", "es"), _several(self.epochs, "epoch")
        size = f", {_bytes(self.delivered_bytes)}" if self.delivered_bytes else ""
        if size and self.as_made:
            size = f", at least {_bytes(self.delivered_bytes)}"  # what this process makes itself is weighed only under a memory_budget
        return f"{samples} in {batches}, {epochs}{size}"

    def _ahead_row(self) -> str:
        vain = f", {self.loaded_ahead_in_vain:,} in vain" if self.loaded_ahead_in_vain else ""
        no_more = f"; not ahead now: {self.loaded_ahead_no_more}" if self.loaded_ahead_no_more else ""
        return f"{_several(self.loaded_ahead, 'batch', 'es')} loaded before the epoch began{vain}{no_more}"

    def _bad_row(self) -> str:
        counts = Counter(bad.done for bad in (*self.bad_samples, *self.raised))
        return ", ".join(f"{counts[done]:,} {word}" for done, word in DONE.items() if counts[done]) or "none"

    def _memory_row(self) -> str:
        workers = f", {_bytes(self.worker_bytes)} in workers at the last look" if self.worker_bytes else ""
        batches = f"{_bytes(self.in_flight_bytes)} in batches at most" if self.in_flight_bytes else "none in flight"
        keeps = f"; your process keeps what it frees, because there were {self.keeps_memory}" if self.keeps_memory else ""
        return f"{batches}{workers}{keeps}"

    def _kernel_row(self) -> str:
        said = []
        if self.worker_samples:
            faults, switches = self.worker_faults / self.worker_samples, self.worker_switches / self.worker_samples
            said.append(f"{_few(faults)} page faults and {_few(switches)} context switches a sample in workers")
        if self.own_batches:
            faults, switches = self.own_faults / self.own_batches, self.own_switches / self.own_batches
            counts = f"{_few(faults)} and {_few(switches)}" if said else f"{_few(faults)} page faults and {_few(switches)} context switches"
            said.append(f"{counts} a batch in your process, your own code included")
        return "; ".join(said)

    def _dear_faults(self) -> list[tuple[str, str]]:
        """What they cost, where that is much, and what to do."""
        if self.fault_s is None:
            return []
        found, cost_us = [], self.fault_s * 1e6
        if self.worker_fault_share >= _DEAR_SHARE and self.worker_faults * self.fault_s >= _DEAR_S:
            found.append(("", _DEAR_IN_WORKERS.format(cost_us=cost_us, share=self.worker_fault_share)))
        each_s = self.own_faults * self.fault_s / self.own_batches if self.own_batches else 0.0
        if each_s * self.batches > _DEAR_SHARE * (self.waited_s + self.loop_s):
            found.append(("", _DEAR_HERE.format(cost_us=cost_us, each=_seconds(each_s))))
        return found

    def _copies_row(self) -> str:
        ways = (
            (self.as_rows, "written once, straight into the slot"),
            (self.as_parcels, "collated and copied into the slot"),
            (self.as_made, "handed over as made"),
        )
        more = (
            (self.copied_out, "copied out of the slot, because many are kept or bad rows were left out"),
            (self.copied_to_pinned, "copied to pinned memory, because slots could not be page-locked"),
        )
        said = ", ".join(f"{_several(count, 'batch', 'es')} {how}" for count, how in ways if count)
        again = ", ".join(f"{count:,} {how}" for count, how in more if count)
        return f"{said}; of those {again}" if again else said

    def _waited_row(self) -> str:
        causes = [(name, seconds / self.waited_s, seconds) for name, seconds in self.waited_for_s.items()]
        return " · ".join(f"{name} {share:.0%} ({_seconds(seconds)})" for name, share, seconds in causes if share >= _SHOWN_SHARE)

    def _workers_row(self) -> str:
        work_s = self.fetch_s + self.collate_s + self.transport_s
        shares = ""
        if work_s:
            shares = (
                f": fetch {self.fetch_s / work_s:.0%}, collate {self.collate_s / work_s:.0%}, transport {self.transport_s / work_s:.0%}"
            )
            no_core = min(self.queued_s, max(0.0, work_s - self.cpu_s)) / work_s
            shares += f"; computing {min(1.0, self.cpu_s / work_s):.0%} of it"
            shares += f", without a core {no_core:.0%}" if no_core >= _SHOWN_SHARE else ""
        if not self.workers:
            return f"none, loaded in the loop{shares}"
        busy = "" if self.worker_busy is None else f", busy {self.worker_busy:.0%}"
        return f"{self.workers}{busy}{shares}"


def _counted(timing: Timing, costs: Costs, workers: int, cores: int, persistent: bool) -> Counted:
    return Counted(
        waited_s=timing.waited_ns / 1e9,
        loop_s=timing.loop_ns / 1e9,
        startup_s=timing.startup_ns / 1e9,
        growth_s=timing.growth_ns / 1e9,
        restarts_s=timing.restarts_ns / 1e9,
        stalls_s=timing.stalls_ns / 1e9,
        in_stages_s=max(0.0, costs.in_stages_s - timing.in_stages_elsewhere_ns / 1e9),
        fetch_s=costs.fetch_ns / 1e9,
        collate_s=costs.collate_ns / 1e9,
        write_s=costs.write_ns / 1e9,
        cpu_s=costs.cpu_ns / 1e9,
        queued_s=costs.queued_ns / 1e9,
        batches=timing.batches,
        samples=timing.samples,
        epochs=timing.epochs,
        longest_wait_s=timing.longest_wait_ns / 1e9,
        workers=workers,
        cores=cores,
        persistent=persistent,
        taking_turns=bool(costs.taking_turns),
        first_batch_s=(timing.first_batch_ns or 0) / 1e9,
        past_caches=past_caches() if timing.delivered_bytes >= PAST_CACHES_BYTES * max(1, timing.samples) else "",
    )


def _fault_share(used: Used, costs: Costs, fault_s: float) -> float:
    """Of the time that workers were at work. Where the loop loaded some samples itself, these are taken to last as long as the others."""
    if not used.samples or not costs.sample_ns:
        return 0.0
    return min(1.0, used.faults * fault_s / used.samples / (costs.sample_ns / 1e9))


def _several(count: int, what: str, ending: str = "s") -> str:
    return f"{count:,} {what}{'' if count == 1 else ending}"


def _few(count: float) -> str:
    """A count per sample or batch, with as many digits as matter."""
    if 0 < count < 0.01:
        return "<0.01"
    return f"{count:,.0f}" if count >= 100 or not count else f"{count:.1f}" if count >= 1 else f"{count:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1000:.1f} ms"


def _bytes(value: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
