"""Every rule, in the order of the documentation; and what they say about one program."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.checks.code import rules_init, rules_iterable, rules_loader, rules_loading, rules_start
from antifreeze.checks.code.program import Program
from antifreeze.checks.code.rule import RULES
from antifreeze.checks.code.source import EVERY_RULE
from antifreeze.doctor.facts.model import Frame
from antifreeze.doctor.findings.model import Finding, Severity, finding

MODULES = (rules_init, rules_loading, rules_iterable, rules_loader, rules_start)
"""Importing them has filled RULES."""


def code_findings(program: Program) -> list[Finding]:
    found = [each for rule in RULES.values() for each in rule.findings(program)]
    found += _unknown_ignores(program)
    order = list(Severity)
    return sorted(found, key=lambda each: (order.index(each.severity), each.file or "", each.line or 0))


def _unknown_ignores(program: Program) -> Iterator[Finding]:
    """A comment that silences nothing is a typing mistake: what it should silence may come back unseen."""
    for module in program.modules:
        for line, names in sorted(module.source.ignores.items()):
            if not module.source.text.splitlines()[line - 1 : line] or "antifreeze:" not in module.source.text.splitlines()[line - 1]:
                continue
            for name in sorted(names - RULES.keys() - {EVERY_RULE}):
                yield finding(
                    "unknown-rule",
                    f"{module.path}:{line}: there is no rule {name!r} to ignore",
                    evidence=[],
                    advice=["`antifreeze check --rules` lists them"],
                    severity=Severity.NOTE,
                    where=Frame("", module.path, line),
                )
