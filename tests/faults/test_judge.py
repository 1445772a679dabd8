"""The judge can say no: made-up records as a table, and torch's loader for real."""

from __future__ import annotations

from typing import Any

import pytest

from antifreeze.selftest.fault import Expectation, Fault, Outcome, Variant, all_faults
from antifreeze.selftest.judge import judge
from antifreeze.selftest.record import Record
from antifreeze.selftest.runner import Run, Runner
from antifreeze.selftest.table import Totals, cell, markdown, matching, progress, text_table

FINISHED = Expectation()
ERROR = Expectation((Outcome.ERROR,), "ValueError", "torn", names_sample=True)
OVER: dict[str, Any] = {"ended": True, "exit_code": 0, "plan": [1, 2, 13], "got": [1, 2, 13]}
IGNORED = (
    'a warning\nException ignored in: <f>\nTraceback (most recent call last):\n  File "a.py", line 1, in f\n    close()\nOSError: 9\nmore\n'
)


def said(kind: str, text: str) -> dict[str, str]:
    return {"type": kind, "types": f"{kind} Exception BaseException", "text": text}


def fault_with(expected: Expectation) -> Fault:
    return Fault("made-up", "made up", "here", lambda trial: None, expected, confined=True)


@pytest.mark.parametrize(
    ("expected", "variant", "seen", "outcome", "problem"),
    [
        (FINISHED, "raise", {}, Outcome.FINISHED, ""),
        (FINISHED, "raise", {"got": [1, 2]}, Outcome.FINISHED, "lost without a word: [13]"),
        (FINISHED, "raise", {"got": [1, 2], "excused": [13], "caught": [said("E", "")]}, Outcome.FINISHED, ""),
        (FINISHED, "raise", {"got": [1, 1, 2, 13]}, Outcome.FINISHED, "came twice: [1]"),
        (FINISHED, "raise", {"wrong": ["row 5"]}, Outcome.WRONG_DATA, "wrong data instead of finished"),
        (FINISHED, "raise", {"exit_code": None}, Outcome.FROZEN, "frozen instead of finished"),
        (FINISHED, "raise", {"exit_code": -11}, Outcome.DIED, "died instead of finished"),
        (FINISHED, "raise", {"ended": False}, Outcome.DIED, "died instead of finished"),
        (FINISHED, "raise", {"error": said("E", "x")}, Outcome.ERROR, "error instead of finished: E: x"),
        (FINISHED, "raise", {"left": {"descriptors": ["a", "b"]}}, Outcome.FINISHED, "left behind: 2 descriptors (a)"),
        (FINISHED, "raise", {"orphans": ["sleep 9"]}, Outcome.FINISHED, "left behind: 1 orphans (sleep 9)"),
        (FINISHED, "raise", {"stop_s": 9.0}, Outcome.FINISHED, "stopping took 9.0 s"),
        (FINISHED, "raise", {"exit_s": 9.0}, Outcome.FINISHED, "the interpreter's exit took 9.0 s"),
        (Expectation(said="cores"), "raise", {"report": "2 cores"}, Outcome.FINISHED, ""),
        (Expectation(said="cores"), "raise", {}, Outcome.FINISHED, "nobody was told (cores)"),
        (Expectation(tracebacks=1), "raise", {}, Outcome.FINISHED, "0 tracebacks printed instead of 1"),
        (
            FINISHED,
            "raise",
            {"stderr": IGNORED},
            Outcome.FINISHED,
            "failed where nobody could catch it: Exception ignored in: <f> OSError: 9",
        ),
        (ERROR, "raise", {"error": said("ValueError", "sample 13: torn")}, Outcome.ERROR, ""),
        (ERROR, "raise", {"error": said("ValueError", "torn")}, Outcome.ERROR, "the error does not name sample 13"),
        (ERROR, "raise", {"error": said("ValueError", "sample 13")}, Outcome.ERROR, "the error does not name the cause"),
        (ERROR, "raise", {"error": said("OSError", "sample 13: torn")}, Outcome.ERROR, "OSError instead of ValueError"),
        (ERROR, "raise", {}, Outcome.FINISHED, "finished instead of error"),
        (ERROR, "skip", {"got": [1, 2], "report": "skipped: sample 13"}, Outcome.FINISHED, ""),
        (ERROR, "skip", {"got": [1, 2], "report": "nothing skipped"}, Outcome.FINISHED, "lost without a word: [13]"),
        (ERROR, "skip", {"got": [1, 13], "report": "skipped: sample 2"}, Outcome.FINISHED, "lost without a word: [2]"),
        (ERROR, "skip", {"report": "skipped: sample 13"}, Outcome.FINISHED, "sample 13 was delivered though it is bad"),
        (FINISHED, "raise", {"not_here": "needs root"}, Outcome.SKIPPED, ""),
    ],
)
def test_judge(expected: Expectation, variant: str, seen: dict[str, Any], outcome: Outcome, problem: str) -> None:
    verdict = judge(fault_with(expected), Record("made-up", "antifreeze", variant, **{**OVER, **seen}))
    assert verdict.outcome is outcome
    assert any(one.startswith(problem) for one in verdict.problems) if problem else verdict.ok, verdict.problems


def test_totals_count_what_went_wrong() -> None:
    seen: list[dict[str, Any]] = [
        {},
        {"exit_code": None},
        {"got": [1]},
        {"got": [1, 1, 2, 13]},
        {"left": {"processes": ["sleep"]}},
        {"not_here": "needs root"},
    ]
    totals = Totals.of(judge(fault_with(FINISHED), Record("made-up", "torch", "raise", **{**OVER, **one})) for one in seen)
    assert totals == Totals(runs=5, as_demanded=1, hangs=1, silent_losses=2, doubled_samples=1, leftovers=1, not_run=1)
    nameless = judge(fault_with(ERROR), Record("made-up", "torch", "raise", **OVER, error=said("RuntimeError", "worker 4711 exited")))
    assert Totals.of([nameless]).nameless_errors == 1


def test_tables_show_every_run() -> None:
    fault = fault_with(ERROR)
    lost = judge(fault, Record("made-up", "torch", "raise", **{**OVER, "got": [1]}))
    named = judge(fault, Record("made-up", "antifreeze", "raise", **OVER, error=said("ValueError", "sample 13 is torn")))
    verdicts = {("made-up", "torch", "raise"): lost, ("made-up", "antifreeze", "raise"): named}
    assert "LOST 2 silently" in cell(lost)
    assert "names sample and cause" in cell(named)
    for text in (text_table([fault], verdicts, ["torch", "antifreeze"]), markdown([fault], verdicts, "# Faults")):
        assert cell(lost) in text
        assert cell(named) in text
    assert "XX" in progress(1, 2, lost)


def test_the_collection_is_complete() -> None:
    faults = all_faults()
    assert len(faults) >= 50
    assert all(one.source and one.what for one in faults.values())
    assert [one.name for one in matching(faults, ["^sigkill$"], heavy=False)] == ["sigkill"]
    assert not any(one.heavy for one in matching(faults, [], heavy=False))


@pytest.mark.parametrize(
    ("name", "outcome", "problem"),
    [
        pytest.param("sleep-forever", Outcome.FROZEN, "frozen instead of error", marks=pytest.mark.slow),
        ("parent-killed-workers-sleep", Outcome.DIED, "left behind: 2 orphans"),
        ("sigkill", Outcome.ERROR, "the error does not name sample 13"),
    ],
)
def test_torch_is_found_wanting(name: str, outcome: Outcome, problem: str) -> None:
    with Runner(1) as runner:
        (verdict,) = runner.verdicts([Run(all_faults()[name], "torch", Variant.RAISE)])
    assert verdict.outcome is outcome
    assert any(one.startswith(problem) for one in verdict.problems), verdict.problems
