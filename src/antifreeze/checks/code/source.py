"""One file of Python: its text, its tree, and the lines on which a finding was silenced.

x = DataLoader(ds, num_workers=os.cpu_count())  # antifreeze: ignore[workers-cpu-count]
x = DataLoader(ds, num_workers=os.cpu_count())  # antifreeze: ignore            (every rule)
# antifreeze: ignore[workers-cpu-count]         alone on a line: for the statement below
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
from dataclasses import dataclass

from antifreeze.checks.errors import NotCheckable

_IGNORE = re.compile(r"#\s*antifreeze:\s*ignore(?:\[([^\]]*)\])?")
EVERY_RULE = "*"


@dataclass(frozen=True)
class Source:
    path: str
    text: str
    tree: ast.Module
    ignores: dict[int, frozenset[str]]
    """line -> ids of the rules that are silenced there"""

    def is_silenced(self, rule: str, first: int, last: int) -> bool:
        return any({rule, EVERY_RULE} & self.ignores.get(line, frozenset()) for line in range(first, last + 1))


def read_source(path: str) -> Source:
    try:
        with tokenize.open(path) as file:  # honours the coding line
            return parse_source(path, file.read())
    except FileNotFoundError:
        raise NotCheckable(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise NotCheckable(f"{path} is a folder: give the script that is run") from None
    except OSError as error:
        raise NotCheckable(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, SyntaxError) as error:
        raise NotCheckable(f"{path} is no Python text: {error}") from None


def parse_source(path: str, text: str) -> Source:
    if path.endswith(".ipynb"):
        raise NotCheckable(f"{path} is a notebook: `jupyter nbconvert --to script {os.path.basename(path)}` makes a script of it")
    try:
        tree = ast.parse(text, filename=path)
    except SyntaxError as error:
        raise NotCheckable(f"{path}:{error.lineno or 0}: this is no Python {_version()} ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise NotCheckable(f"{path} is no Python text: {error}") from None
    return Source(path, text, tree, _ignores(text))


def _version() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def _ignores(text: str) -> dict[int, frozenset[str]]:
    found: dict[int, frozenset[str]] = {}
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if match is None:
            continue
        rules = frozenset(name.strip() for name in (match.group(1) or EVERY_RULE).split(",") if name.strip())
        line = token.start[0]
        found[line] = found.get(line, frozenset()) | rules
        if lines[line - 1].lstrip().startswith("#"):
            below = _next_code_line(lines, line)
            found[below] = found.get(below, frozenset()) | rules
    return found


def _next_code_line(lines: list[str], line: int) -> int:
    while line < len(lines) and (not lines[line].strip() or lines[line].lstrip().startswith("#")):
        line += 1
    return line + 1
