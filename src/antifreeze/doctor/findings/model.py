"""What the doctor says: one Finding per diagnosed cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from antifreeze.doctor.facts.model import Frame


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


def finding(
    code: str,
    verdict: str,
    *,
    evidence: Iterable[str | None],
    advice: Iterable[str],
    severity: Severity = Severity.DISEASE,
    confidence: Confidence = Confidence.CERTAIN,
    where: Frame | None = None,
    pid: int | None = None,
    worker: int | None = None,
    stalled_s: float | None = None,
) -> Finding:
    """`where` gives file and line; evidence that is None or empty is left out, so that a rule can list what it may have."""
    kept = tuple(line for line in evidence if line)
    file, line = (where.file, where.line) if where else (None, None)
    return Finding(code, verdict, severity, confidence, kept, tuple(advice), pid, worker, file, line, stalled_s)


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

    @property
    def is_undecided(self) -> bool:
        """A longer watch may tell more."""
        return self.verdict.severity is Severity.NOTE and self.verdict.confidence is Confidence.POSSIBLE
