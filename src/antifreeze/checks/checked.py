"""`antifreeze.check(loader_or_dataset)`, and what it gives: findings that print themselves, as text, JSON or a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any

from antifreeze.checks.errors import NotCheckable
from antifreeze.doctor.findings.model import Finding, Severity
from antifreeze.doctor.findings.words import plural
from antifreeze.doctor.report.as_json import plain
from antifreeze.doctor.report.page import folded_finding, page_foot, page_head
from antifreeze.doctor.report.text import Line, finding_lines

SCHEMA = "antifreeze-check/1"


@dataclass(frozen=True)
class Checked:
    """What was found, the worst first; true when nothing was."""

    subject: str
    """What was looked at, and how."""
    findings: tuple[Finding, ...]
    unread: tuple[str, ...] = ()
    """What could not be looked at, and why."""

    def __bool__(self) -> bool:
        return not self.findings

    @property
    def verdict(self) -> str:
        counts = [(sum(each.severity is kind for each in self.findings), name) for kind, name in _NAMES.items()]
        told = ", ".join(plural(count, name) for count, name in counts if count)
        return f"{told or 'nothing found'}: {self.subject}"

    def lines(self) -> Iterator[Line]:
        for each in self.findings:
            yield from finding_lines(each)
            yield "", ""
        for reason in self.unread:
            yield "bold", f"not seen: {reason}"
        yield "bold" if self.findings else "bold green", self.verdict

    def __str__(self) -> str:
        return "\n".join(text for _, text in self.lines())

    def as_dict(self) -> dict[str, Any]:
        found = [asdict(each) for each in self.findings]
        return {"schema": SCHEMA, "verdict": self.verdict, "findings": found, "unread": list(self.unread)}

    def json(self) -> str:
        return json.dumps(self.as_dict(), default=plain, indent=2)

    def html(self) -> str:
        tone = self.findings[0].severity if self.findings else Severity.HEALTHY
        head = f'<header class="{tone.value}"><h1>{escape(self.verdict)}</h1></header>'
        found = (folded_finding(each, before="", opened=True) for each in self.findings)
        unread = (f'<section class="blind"><h2>Not seen: {escape(reason)}</h2></section>' for reason in self.unread)
        return "\n".join((*page_head(f"antifreeze check: {self.subject}"), head, *found, *unread, page_foot("antifreeze check")))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


_NAMES = {Severity.DISEASE: "error", Severity.SLOW: "warning", Severity.NOTE: "note"}


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """The worst first; the same finding at the same place once."""
    once: dict[tuple[str, str], Finding] = {}
    for each in findings:
        once.setdefault((each.code, each.verdict), replace(each))
    order = list(Severity)
    return tuple(sorted(once.values(), key=lambda each: (order.index(each.severity), each.file or "", each.line or 0)))


def check(target: Any, *, fetch: bool = True) -> Checked:
    """Looks at a loader or data set before the run: what freezes, repeats, copies or wastes.

    A few samples are fetched in forked children with a deadline, as workers would (`fetch=False`: none).
    """
    if not sys.platform.startswith("linux"):
        raise NotCheckable(
            f"a live object can be checked on Linux only (fork, /proc), not on {sys.platform}; `antifreeze check SCRIPT` works here"
        )
    from antifreeze.checks.live.probe import probe
    from antifreeze.checks.live.subject import subject_of
    from antifreeze.checks.machine import read_surroundings

    subject = subject_of(target)
    return Checked(subject.describe(), ordered(list(probe(subject, read_surroundings(), fetch=fetch))))
