"""The findings and the facts behind them, for other programs. `schema` changes when a key changes its meaning or goes away."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum
from typing import Any

from antifreeze.doctor.facts.model import Examination
from antifreeze.doctor.findings.model import Diagnosis

SCHEMA = "antifreeze-doctor/1"


def as_dict(exam: Examination, diagnosis: Diagnosis) -> dict[str, Any]:
    facts = asdict(exam)
    facts.pop("sources")
    for process in (*facts["processes"], *facts["orphans"]):
        process.pop("stderr_tail")
    return {
        "schema": SCHEMA,
        "verdict": diagnosis.verdict.verdict,
        "code": diagnosis.verdict.code,
        "disease": diagnosis.is_disease,
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "facts": facts,
    }


def json_text(exam: Examination, diagnosis: Diagnosis, *, one_line: bool = False) -> str:
    return json.dumps(as_dict(exam, diagnosis), default=plain, indent=None if one_line else 2)


def plain(value: object) -> object:
    """For json.dumps(default=…): an enum by its value."""
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
