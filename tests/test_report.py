"""The report: a frozen copy of the ledger with its numbers in seconds, bytes and shares, and one verdict."""

from __future__ import annotations

import json

import pytest

from antifreeze import DataLoader
from antifreeze import report as module
from antifreeze.delivery.bad_samples import BadSampleRecord
from antifreeze.delivery.ledger import Decided, Ledger, OwnUse, Timing
from antifreeze.events import Happening
from antifreeze.options import OnBadSample
from antifreeze.report import Report
from antifreeze.supervisor.memory import Grown
from antifreeze.supervisor.work import Copies, Costs
from antifreeze.worker.failure import Failure
from antifreeze.worker.journal import Used

SECOND = 10**9


def bad(number: int, done: OnBadSample = OnBadSample.SKIP, message: str = "broken <file>") -> BadSampleRecord:
    try:
        raise ValueError(message)
    except ValueError as error:
        failure = Failure.of(error, stage="__getitem__", worker=1, index=number, row=2, position=number)
    return BadSampleRecord(epoch=1, batch=4, failure=failure, done=done, seed=77)


def ledger(bad_samples: int = 2, **timing: int) -> Ledger:
    made = Ledger(
        timing=Timing(
            **{
                "waited_ns": 2 * SECOND,
                "loop_ns": 6 * SECOND,
                "epochs": 2,
                "batches": 10,
                "samples": 640,
                "delivered_bytes": 3_500_000,
                "first_batch_ns": SECOND // 20,
                "longest_wait_ns": SECOND // 2,
            }
            | timing
        ),
        costs=Costs(fetch_ns=6 * SECOND, collate_ns=SECOND, write_ns=SECOND, samples=640, restarts=3),
        bad_samples=[bad(number) for number in range(bad_samples)],
        most_in_flight_bytes=12_000_000,
    )
    made.story.tell(1.5, Happening.WORKER_ENDED, "worker 1 was ended by SIGKILL")
    return made


def test_the_numbers() -> None:
    report = Report.of(ledger(), cores=4, workers=2)
    assert (report.epochs, report.batches, report.samples, report.delivered_bytes) == (2, 10, 640, 3_500_000)
    assert (report.waited_s, report.loop_s, report.longest_wait_s, report.first_batch_s) == (2.0, 6.0, 0.5, 0.05)
    assert (report.fetch_s, report.collate_s, report.transport_s) == (6.0, 1.0, 1.0)
    assert (report.workers, report.worker_busy, report.restarts, report.in_flight_bytes) == (2, 0.5, 3, 12_000_000)
    assert [record.failure.index for record in report.bad_samples] == ["0", "1"]
    assert report.story == ("    1.50 s  worker ended: worker 1 was ended by SIGKILL",)


def test_workers_are_never_busier_than_always_and_nothing_is_said_of_none() -> None:
    assert Report.of(ledger(waited_ns=1, loop_ns=1), cores=4, workers=2).worker_busy == 1.0
    assert Report.of(ledger(), cores=4, workers=0).worker_busy is None
    assert Report.of(ledger(waited_ns=0, loop_ns=0), cores=4, workers=2).worker_busy is None


def test_as_dict_is_ready_for_json() -> None:
    report = Report.of(ledger(), cores=4, workers=2)
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["samples"] == 640
    assert plain["story"] == list(report.story)
    assert plain["verdict"] == report.verdict
    first = plain["bad_samples"][0]
    assert (first["index"], first["seed"], first["row"], first["position"], first["worker"]) == ("0", 77, 2, 0, 1)
    assert (first["exception"], first["message"], first["stage"], first["done"]) == ("ValueError", "broken <file>", "__getitem__", "skip")
    assert (first["epoch"], first["batch"]) == (1, 4)
    assert "Traceback" in first["traceback"]
    assert set(plain) == set(Report.__dataclass_fields__)


def test_a_report_does_not_change_with_the_ledger() -> None:
    source = ledger()
    report = Report.of(source, cores=4, workers=2)
    source.bad_samples.append(bad(9))
    source.timing.samples = 0
    source.story.tell(2.0, Happening.GAVE_UP, "later")
    assert (len(report.bad_samples), report.samples, len(report.story)) == (2, 640, 1)


def test_what_was_not_weighed_is_not_said_to_weigh_nothing() -> None:
    """Without workers batches are made where they are used."""
    source = ledger()
    source.timing.delivered_bytes, source.most_in_flight_bytes = 0, 0
    text = str(Report.of(source, cores=4, workers=0))
    assert "0 B" not in text and "none in flight" in text


def test_what_was_weighed_in_part_is_said_to_be_a_part() -> None:
    """Some batches came through slots, the others were made by the loop."""
    source = ledger()
    source.costs.copies.made = 3
    assert "2 epochs, at least 3.5 MB loop" in " ".join(str(Report.of(source, cores=4, workers=2)).split())


def test_nothing_is_advised_while_auto_looks_around() -> None:
    source = ledger()
    source.costs.blocked_s = 2.0
    source.decided.append(Decided(0, "no workers", 0, "nothing is measured yet"))
    source.undecided = True
    assert "has not measured enough yet" in " ".join(Report.of(source, cores=4, workers=0).verdict.split())


def test_the_text() -> None:
    lines = str(Report.of(ledger(), cores=4, workers=2)).splitlines()
    assert lines[0] == "antifreeze report"
    text = "\n".join(lines)
    assert "640 samples in 10 batches, 2 epochs, 3.5 MB" in text
    assert "6.00 s in your code, 2.00 s (25%) waiting for data" in text
    assert "the longest 0.50 s, first batch after 50.0 ms" in text
    assert "2, busy 50%: fetch 75%, collate 12%, transport 12%; computing 0% of it" in text
    assert "12.0 MB in batches at most" in text
    assert "sample 1: ValueError: broken <file> (in __getitem__); skipped in batch 4 of epoch 1" in text
    assert "3 workers replaced" in text


def test_of_many_bad_samples_some_are_shown_and_all_are_kept() -> None:
    report = Report.of(ledger(bad_samples=25), cores=4, workers=2)
    assert "… and 15 more in .bad_samples" in str(report)
    assert str(report).count("skipped in batch") == 10
    assert len(report.as_dict()["bad_samples"]) == 25


def test_what_was_replaced_is_called_so() -> None:
    assert "replaced in batch" in str(bad(1, OnBadSample.REPLACE))


def test_an_empty_ledger_has_a_report() -> None:
    report = Report.of(Ledger(), cores=4, workers=0)
    assert report.verdict == "nothing was loaded yet"
    assert "none, loaded in the loop" in str(report)
    assert json.dumps(report.as_dict())
    assert report.first_batch_s is None


def test_the_notebook_shows_a_table_and_no_foreign_markup() -> None:
    shown = Report.of(ledger(), cores=4, workers=2)._repr_html_()
    assert shown.startswith("<table>")
    assert shown.endswith("</table>")
    assert "broken &lt;file&gt;" in shown
    assert "<file>" not in shown
    assert shown.count("<tr>") == shown.count("</tr>") == len(Report.of(ledger(), cores=4, workers=2)._rows())


def test_what_the_loop_loaded_itself_beside_workers_is_no_handing_over() -> None:
    source = ledger(waited_ns=4 * SECOND)
    source.costs.add_own(100, 2 * SECOND, SECOND, 0, 3 * SECOND, 0)
    source.costs.blocked_s = 0.5
    report = Report.of(source, workers=1, cores=2)
    assert report.waited_for_s["hand-over"] == pytest.approx(0.5)
    assert sum(report.waited_for_s.values()) == pytest.approx(report.waited_s)


@pytest.mark.parametrize(("num_workers", "says"), [(2, True), ("auto", False)])
def test_persistent_workers_are_advised_where_workers_do_not_stay_anyway(num_workers: int | str, says: bool) -> None:
    loader = DataLoader(list(range(8)), num_workers=num_workers)
    with loader:
        assert len(list(loader)) == 8
        loader._ledger = ledger(startup_ns=2 * SECOND)
        loader._ledger.decided.append(Decided(0, "1 worker process", 1, "of a test"))
        assert ("persistent_workers=True" in loader.report().verdict) == says


def test_what_the_loop_waited_for_adds_up_and_is_shown() -> None:
    source = ledger(startup_ns=SECOND // 2, restarts_ns=SECOND // 4)
    source.costs.cpu_ns, source.costs.blocked_s = 3 * SECOND, 1.0
    report = Report.of(source, workers=2, cores=4)
    assert sum(report.waited_for_s.values()) == pytest.approx(report.waited_s)
    assert json.loads(json.dumps(report.as_dict()))["waited_for_s"]["start-up"] == 0.5
    shown = "fetch, waiting 31% (0.62 s) · start-up 25% (0.50 s)"
    assert shown in str(report)
    assert shown in report._repr_html_()
    assert report.verdict in " ".join(str(report).split())
    assert max(map(len, str(report).splitlines())) <= 120


# --- what the kernel counted, and copies ---


def counted(monkeypatch: pytest.MonkeyPatch, used: Used, own: OwnUse, fault_ns: float = 2000.0) -> Ledger:
    """Workers that worked 8 s for 640 samples in 10 batches of 0.8 s each."""
    monkeypatch.setattr(module, "fresh_page_ns", lambda: fault_ns)
    source = ledger()
    source.costs.tally._closed, source.timing.own = used, own
    return source


def row_of(report: Report, name: str) -> str:
    """Its text and that of the rows without a name below it."""
    rows = report._rows()
    at = [each for each, _ in rows].index(name)
    more = [text for each, text in rows[at + 1 :]]
    names = [each for each, _ in rows[at + 1 :]]
    return " | ".join([rows[at][1], *more[: next(number for number, each in enumerate(names) if each)]])


def test_faults_and_switches_are_told_per_sample_and_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    source = counted(monkeypatch, Used(640, 13, 200), OwnUse(8, 11, 1200))
    report = Report.of(source, cores=4, workers=2)
    assert (report.worker_samples, report.worker_faults, report.worker_switches) == (640, 13, 200)
    assert (report.own_batches, report.own_faults, report.own_switches, report.fault_s) == (8, 11, 1200, None)
    said = "0.02 page faults and 0.31 context switches a sample in workers; 1.4 and 150 a batch in your process, your own code included"
    assert row_of(report, "kernel") == said
    assert row_of(report, "kernel") in report._repr_html_()


def test_without_workers_the_process_is_all_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    text = row_of(Report.of(counted(monkeypatch, Used(), OwnUse(8, 0, 4)), cores=4, workers=0), "kernel")
    assert text == "0 page faults and 0.50 context switches a batch in your process, your own code included"


def test_nothing_is_told_where_nothing_was_counted() -> None:
    text = str(Report.of(ledger(), cores=4, workers=2))
    assert "kernel" not in text and "copies" not in text


def test_many_faults_have_a_price_and_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    source = counted(monkeypatch, Used(320, 320 * 1000, 320), OwnUse(5, 5 * 100_000, 5))
    source.costs.samples = 640  # the loop loaded the others
    report = Report.of(source, cores=4, workers=2)
    assert report.fault_s == 2e-6
    assert report.worker_fault_share == pytest.approx(0.16)  # 2 ms of 12.5 ms
    workers, here = row_of(report, "kernel").split(" | ")[1:]
    assert "a fresh page costs 2.0 µs here, in workers about 16% of their work" in workers
    assert "a buffer that is used again is not" in workers
    assert "in your process about 0.20 s a batch" in here


def test_faults_that_cost_little_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    source = counted(monkeypatch, Used(640, 640 * 100, 320), OwnUse(10, 10 * 1000, 5))  # 0.2 ms of 12.5, 2 ms of 800
    report = Report.of(source, cores=4, workers=2)
    assert report.fault_s == 2e-6 and 0 < report.worker_fault_share < 0.05
    assert " | " not in row_of(report, "kernel")


def test_faults_of_a_short_run_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's first samples touch its memory for the first time, whatever they are."""
    report = Report.of(counted(monkeypatch, Used(32, 32 * 1000, 32), OwnUse()), cores=4, workers=2)
    assert report.worker_fault_share > 0.05
    assert " | " not in row_of(report, "kernel")


def test_what_cannot_be_measured_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = counted(monkeypatch, Used(640, 640 * 1000, 320), OwnUse(), fault_ns=0.0)
    assert " | " not in row_of(Report.of(source, cores=4, workers=2), "kernel")


def test_a_fresh_page_costs_something() -> None:
    assert 0 < module.fresh_page_ns() < 1e6


def test_copies_are_told() -> None:
    source = ledger()
    source.costs.copies = Copies(rows=1200, parcels=34, made=1)
    said = "1,200 batches written once, straight into the slot, 34 batches collated and copied into the slot, 1 batch handed over as made"
    assert row_of(Report.of(source, cores=4, workers=2), "copies") == said
    source.costs.copies = Copies(parcels=34, again=3, pinned=34)
    report = Report.of(source, cores=4, workers=2)
    assert (report.as_rows, report.as_parcels, report.as_made, report.copied_out, report.copied_to_pinned) == (0, 34, 0, 3, 34)
    assert row_of(report, "copies") == (
        "34 batches collated and copied into the slot; of those 3 copied out of the slot, because many are kept or bad rows were left out, "
        "34 copied to pinned memory, because slots could not be page-locked"
    )


def test_counts_are_shown_with_as_many_digits_as_matter() -> None:
    shown = {0: "0", 0.004: "<0.01", 0.02: "0.02", 1.44: "1.4", 99.6: "99.6", 1003.2: "1,003"}
    assert {count: module._few(count) for count in shown} == shown


def test_threads_that_fight_have_a_row_and_the_verdict_leads_there() -> None:
    source = ledger()
    source.costs.own_threads.add(threads=2, looked_ns=200, queued_ns=100)
    source.costs.cpu_ns, source.costs.own_ns = 10**12, 10**12
    report = Report.of(source, cores=2, workers=0)
    assert (report.loading_threads, report.threads_without_core) == (2, 0.5)
    assert "2 threads of this process computed on 2 cores, and one of them had no core for 50% of that time" in (report.crowding or "")
    assert row_of(report, "threads").startswith("while the loop loaded batches itself") and "(see threads)" in report.verdict


def test_thread_pools_of_workers_that_fight_have_a_row() -> None:
    source = ledger()
    for number in range(2):
        source.costs.memory.workers[number] = Grown(pid=number, first_bytes=0, first_samples=0, busy_threads=8)
    assert row_of(Report.of(source, cores=4, workers=2), "threads").startswith("the 2 workers have 16 threads that compute, on 4 cores")


def test_threads_that_do_not_fight_are_not_mentioned() -> None:
    source = ledger()
    source.costs.own_threads.add(threads=2, looked_ns=200, queued_ns=10)
    report = Report.of(source, cores=2, workers=0)
    assert report.crowding is None and "\n  threads" not in str(report) and "(see threads)" not in report.verdict
