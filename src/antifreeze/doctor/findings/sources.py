"""The user's source, asked about locks: which lock a line takes, and which locks are held on a line. Nothing is run or imported."""

from __future__ import annotations

import ast
from functools import lru_cache

Held = tuple[str, int]
"""(the lock's expression, the line of its `with`)"""


@lru_cache(maxsize=64)
def _tree(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def lock_taken_at(source: str | None, line: int) -> str | None:
    """ "self.lock" for `with self.lock:` and for `self.lock.acquire()` on that line."""
    tree = _tree(source) if source else None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, (ast.With, ast.AsyncWith)) and _header(node)[0] <= line <= _header(node)[1]:
            return next((ast.unparse(item.context_expr) for item in node.items if _spans(item.context_expr, line)), None)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "acquire" and _spans(node, line):
            return ast.unparse(node.func.value)
    return None


def locks_held_at(source: str | None, line: int) -> tuple[Held, ...]:
    """The `with` statements around a line, innermost first."""
    tree = _tree(source) if source else None
    found = [
        (ast.unparse(item.context_expr), node.lineno)
        for node in ast.walk(tree or ast.Module([], []))
        if isinstance(node, (ast.With, ast.AsyncWith)) and _header(node)[1] < line <= (node.end_lineno or node.lineno)
        for item in node.items
    ]
    return tuple(sorted(found, key=lambda held: -held[1]))


def same_lock(one: str, other: str) -> bool:
    """By its last name: what one file calls `self.lock` another may call `dataset.lock`."""
    return one.rsplit(".", 1)[-1] == other.rsplit(".", 1)[-1]


def _header(node: ast.With | ast.AsyncWith) -> tuple[int, int]:
    return node.lineno, max(item.context_expr.end_lineno or node.lineno for item in node.items)


def _spans(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
