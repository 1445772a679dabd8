"""Each disease, in a real program under torch's own DataLoader: the right finding, the right process, the right line, in time.

All patients are run once, several at a time, when the first test asks; the tests then read what the doctor said.
"""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.outcomes import Skipped
from cases import DISEASES, HEALTHY
from ward import Patient, Visited, visit_all

# real patients, watched for seconds each: a busy machine changes what is seen, so they run with ./check --all
pytestmark = [pytest.mark.limit(400), pytest.mark.slow]
LIMIT_S = 10.0


@pytest.fixture(scope="module")
def visits(request: pytest.FixtureRequest) -> dict[str, Visited | BaseException]:
    """Of the patients that the tests of this run are about, and no others."""
    mine = [item for item in request.session.items if item.path == request.path]
    return visit_all(list(dict.fromkeys(item.callspec.params["patient"] for item in mine if hasattr(item, "callspec"))))


def each(patients: tuple[Patient, ...]) -> Any:
    marked = [pytest.param(patient, id=patient.name, marks=[pytest.mark.slow] if patient.slow else []) for patient in patients]
    return pytest.mark.parametrize("patient", marked)


def visited(patient: Patient, visits: dict[str, Visited | BaseException]) -> Visited:
    found = visits[patient.name]
    if isinstance(found, Skipped):
        pytest.skip(str(found))
    if isinstance(found, BaseException):
        raise found
    return found


@each(DISEASES)
def test_a_disease_is_found(patient: Patient, visits: dict[str, Visited | BaseException]) -> None:
    found = visited(patient, visits)
    verdict = found.verdict
    assert verdict.code == patient.code, verdict
    assert found.diagnosis.is_disease
    assert verdict.pid in found.pids(patient.whom)
    if patient.line is not None:
        assert verdict.file == str(patient.file)
        assert verdict.line in patient.marked_lines()
    said = {key: value for each in found.said for key, value in each.items()}
    text = "\n".join((verdict.verdict, *verdict.evidence))
    assert [words for words in patient.says if words.format(**said) not in text] == [], text
    assert verdict.advice
    assert found.took_s < LIMIT_S


@each(HEALTHY)
def test_no_wolf_is_cried(patient: Patient, visits: dict[str, Visited | BaseException]) -> None:
    found = visited(patient, visits)
    assert not found.diagnosis.is_disease, found.diagnosis
    if patient.code:
        assert found.verdict.code == patient.code, found.verdict
    text = "\n".join((found.verdict.verdict, *found.verdict.evidence))
    assert [words for words in patient.says if words not in text] == [], text


@each(DISEASES)
def test_the_doctor_saw_all_it_could(patient: Patient, visits: dict[str, Visited | BaseException]) -> None:
    found = visited(patient, visits)
    assert found.exam.blindness == ()
    assert found.verdict.verdict.count("\n") == 0
