"""docs/check-rules.md, made from the rules themselves: `antifreeze check --rules`."""

from __future__ import annotations

from antifreeze.checks.code.all_rules import MODULES
from antifreeze.checks.code.rule import PREAMBLE, RULES, Rule

assert MODULES


def rules_page() -> str:
    head = [
        "# The rules of `antifreeze check`",
        "",
        "Made by `antifreeze check --rules > docs/check-rules.md`; a test holds this page to the rules, and each rule to its examples.",
        f"Silence one on a line with `# antifreeze: ignore[{next(iter(RULES))}]`.",
        "",
        "| rule | finds | severity, confidence |",
        "| --- | --- | --- |",
        *(f"| [`{rule.id}`](#{rule.id}) | {rule.title} | {rule.severity.value}, {rule.confidence.value} |" for rule in RULES.values()),
        "",
        "Above every example stand these lines:",
        "",
        f"```python\n{PREAMBLE.strip()}\n```",
        "",
    ]
    return "\n".join(head) + "\n" + "\n".join(rule_text(rule) for rule in RULES.values())


def rule_text(rule: Rule) -> str:
    return (
        f"## {rule.id}\n\nFinds {rule.title}. {rule.why[0].upper()}{rule.why[1:]}.\n\n"
        f"Wrong:\n\n```python\n{rule.wrong}```\n\nRight:\n\n```python\n{rule.right}```\n"
    )
