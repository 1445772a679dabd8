"""Every program of `antifreeze selftest`, for real, against what issue 3 demands.

All chosen programs run before the first test, several at a time, each in a fresh process with nothing of pytest in it.
"""

from __future__ import annotations

from typing import Any

import pytest

from antifreeze.selftest.fault import Fault, Outcome, Variant, all_faults
from antifreeze.selftest.judge import Verdict
from antifreeze.selftest.runner import Run, Runner

JOBS = 4
SLACK = 5.0
"""`antifreeze selftest` looks at the clock; here two lanes of tests keep the machine busy meanwhile."""
Verdicts = dict[tuple[str, str], Verdict]

NOT_YET = {}
"""What issue 3 demands and ours does not do: a run that does it is a reason to take it off this list."""


def waits_for_all(number: int, fault: Fault, variant: Variant) -> bool:
    """Of a fault that is run in several variants, ./check runs one, of its neighbour another; ./check --all runs all of them."""
    return fault.heavy or variant is not fault.variants[number % len(fault.variants)]


CASES = [
    pytest.param(
        fault, variant, id=f"{fault.name}-{variant.value}", marks=[pytest.mark.slow] if waits_for_all(number, fault, variant) else []
    )
    for number, fault in enumerate(all_faults().values())
    for variant in fault.variants
]


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> Verdicts:
    chosen: list[dict[str, Any]] = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    runs = [Run(one["fault"], "antifreeze", one["variant"], slack=SLACK) for one in chosen if "fault" in one and "variant" in one]
    with Runner(JOBS) as runner:
        return {(one.fault, one.variant): one for one in runner.verdicts(runs)}


@pytest.mark.limit(1800)
@pytest.mark.parametrize(("fault", "variant"), CASES)
def test_fault(fault: Fault, variant: Variant, verdicts: Verdicts) -> None:
    verdict = verdicts[fault.name, variant.value]
    if verdict.outcome is Outcome.SKIPPED:
        pytest.skip(verdict.record.not_here or "")
    assert not verdict.problems, "\n".join((fault.what, *verdict.problems, "its stderr:", verdict.record.stderr[-3000:]))
