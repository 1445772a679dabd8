"""Every rule speaks up on its own wrong example, at a line of it, and no rule on any right one."""

from __future__ import annotations

import pytest

from antifreeze.checks.code.all_rules import code_findings
from antifreeze.checks.code.program import Program, follow_imports
from antifreeze.checks.code.rule import PREAMBLE, RULES, Rule
from antifreeze.checks.code.source import parse_source


def program(text: str, default_start: str = "fork") -> Program:
    return follow_imports(parse_source("nowhere/script.py", text), default_start)


def found(text: str, default_start: str = "fork") -> dict[str, list[int]]:
    lines: dict[str, list[int]] = {}
    for each in code_findings(program(text, default_start)):
        lines.setdefault(each.code, []).append(each.line or 0)
    return lines


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_it_speaks_up_on_its_wrong_example(rule: Rule) -> None:
    findings = list(rule.findings(program(PREAMBLE + rule.wrong)))
    assert findings
    for each in findings:
        assert (each.line or 0) > PREAMBLE.count("\n")
        assert each.verdict.startswith(f"{each.file}:{each.line}: ")
        assert each.advice


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_no_rule_speaks_up_on_a_right_example(rule: Rule) -> None:
    assert found(PREAMBLE + rule.right) == {}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_comment_silences_it_and_only_it(rule: Rule) -> None:
    text = PREAMBLE + rule.wrong
    (first, *_) = rule.findings(program(text))
    lines = text.splitlines()
    silenced = [*lines]
    silenced[(first.line or 1) - 1] += f"  # antifreeze: ignore[{rule.id}]"
    assert first.line not in [each.line for each in rule.findings(program("\n".join(silenced)))]
    other = [*lines]
    other[(first.line or 1) - 1] += "  # antifreeze: ignore[batch-size-two, unknown]"
    assert first.line in [each.line for each in rule.findings(program("\n".join(other)))]
