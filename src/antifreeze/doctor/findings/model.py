"""What the doctor says: one Finding per diagnosed cause."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    DISEASE = "disease"
    SLOW = "slow"
    NOTE = "note"
    HEALTHY = "healthy"


class Confidence(Enum):
    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


@dataclass(frozen=True)
class Finding:
    code: str
    verdict: str
    """One sentence: what happened, to whom, where."""
    severity: Severity
    confidence: Confidence
    evidence: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    pid: int | None = None
    worker: int | None = None
    file: str | None = None
    line: int | None = None
    stalled_s: float | None = None


@dataclass(frozen=True)
class Diagnosis:
    """The findings, the one that explains most first."""

    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Finding:
        return self.findings[0]

    @property
    def is_disease(self) -> bool:
        return any(finding.severity is Severity.DISEASE for finding in self.findings)
