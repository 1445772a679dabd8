"""Reads the map: the first code block below the heading of docs/architecture.md that has the word "map" in it.

    src/antifreeze/            a word that ends in "/" at the head of a line is a folder ...
      loader.py    DataLoader  ... and each word that ends in ".py" names a file, in the folder above it
      slots/       memory      with less indentation, or at the head of its own line
        ring.py  lease.py
      worker/      main.py, fetch.py

Lines of a drawn tree (│ ├ └ ─) count as indentation. Paths are given from the root of the repository.
"""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

_HEADING = re.compile(r"#+ .*\bmap\b", re.IGNORECASE)
_INDENT = " \t│├└─|"
_FOLDER = re.compile(r"`?((?:[\w.-]+/)+)`?(?=\s|$)")
_FILE = re.compile(r"(?<![\w/.-])((?:[\w-]+/)*\w+\.py)\b")


class Map(NamedTuple):
    folders: set[str]
    files: set[str]


def read_map(text: str) -> Map | None:
    """None when there is no map to read."""
    block = _map_block(text.splitlines())
    if block is None:
        return None
    seen = Map(set(), set())
    open_folders: list[tuple[int, str]] = []
    for line in filter(str.strip, block):
        indent = len(line) - len(line.lstrip(_INDENT))
        while open_folders and open_folders[-1][0] >= indent:
            open_folders.pop()
        folder = _FOLDER.match(line, indent)
        if folder:
            path = _inside(open_folders) + folder.group(1)
            open_folders.append((indent, path))
            seen.folders.add(path)
        seen.files.update(_inside(open_folders) + name for name in _FILE.findall(line))
    return seen


def _map_block(lines: list[str]) -> list[str] | None:
    heading = next((number for number, line in enumerate(lines) if _HEADING.match(line)), len(lines))
    for start, line in enumerate(lines[heading + 1 :], heading + 1):
        if line.startswith("#"):
            return None
        if line.startswith("```"):
            return list(itertools.takewhile(lambda inner: not inner.startswith("```"), lines[start + 1 :]))
    return None


def missing_from_map(seen: Map, modules: list[str]) -> list[str]:
    """`modules` as paths from the root; a package's __init__.py stands on the map when its folder does."""
    folders = seen.folders
    return [
        path
        for path in modules
        if path not in seen.files and not (path.endswith("/__init__.py") and path[: -len("__init__.py")] in folders)
    ]


def _inside(open_folders: list[tuple[int, str]]) -> str:
    return open_folders[-1][1] if open_folders else ""
