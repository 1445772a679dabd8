"""A rule: what it looks for, why that hurts, a wrong and a right example, and the function that looks.

The examples are the documentation (`antifreeze check --rules`) and the test: each rule must speak up on its own wrong example,
and no rule on any right one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from antifreeze.checks.code.module import Module
from antifreeze.checks.code.program import Program
from antifreeze.doctor.facts.model import Frame
from antifreeze.doctor.findings.model import Confidence, Finding, Severity, finding


@dataclass(frozen=True)
class Alarm:
    module: Module
    node: ast.AST
    """Where: anything with a line."""
    verdict: str
    """What is wrong here, without the place."""
    advice: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    confidence: Confidence | None = None

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 1)

    @property
    def last_line(self) -> int:
        """Of an expression its end; of a statement with a body its head, or a comment in the body would silence it."""
        if isinstance(self.node, ast.expr):
            return self.node.end_lineno or self.line
        return self.line


Look = Callable[[Program], Iterable[Alarm]]


@dataclass(frozen=True)
class Rule:
    id: str
    title: str
    why: str
    severity: Severity
    confidence: Confidence
    wrong: str
    right: str
    look: Look

    def findings(self, program: Program) -> Iterator[Finding]:
        seen: set[tuple[str, int]] = set()
        for alarm in self.look(program):
            place = alarm.module.path, alarm.line
            if place not in seen and not alarm.module.source.is_silenced(self.id, alarm.line, alarm.last_line):
                seen.add(place)
                yield self._finding(alarm)

    def _finding(self, alarm: Alarm) -> Finding:
        text = (alarm.module.source.text.splitlines() or [""])[alarm.line - 1].strip()
        return finding(
            self.id,
            f"{alarm.module.path}:{alarm.line}: {alarm.verdict}",
            evidence=[f"line {alarm.line}: `{text}`" if "`" not in text else f"line {alarm.line}: {text}", *alarm.evidence, self.why],
            advice=alarm.advice,
            severity=self.severity,
            confidence=alarm.confidence or self.confidence,
            where=Frame("", alarm.module.path, alarm.line),
        )


PREAMBLE = """\
import fcntl, itertools, json, multiprocessing, os, random, subprocess, threading, time
import cv2, h5py, numpy as np, requests, torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

"""
"""What stands above every example."""

RULES: dict[str, Rule] = {}
"""id -> rule, in the order of the documentation; filled as the modules of rules are imported (see all_rules.py)."""


def rule(
    id: str,
    title: str,
    *,
    why: str,
    wrong: str,
    right: str,
    severity: Severity,
    confidence: Confidence = Confidence.LIKELY,
) -> Callable[[Look], Look]:
    def register(look: Look) -> Look:
        assert id not in RULES, id
        RULES[id] = Rule(id, title, why, severity, confidence, wrong.strip("\n") + "\n", right.strip("\n") + "\n", look)
        return look

    return register


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions and classes defined in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield child
            yield from own_nodes(child)
