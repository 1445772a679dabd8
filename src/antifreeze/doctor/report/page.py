"""The frame of a page and how a finding stands in it: no script, no network, light or dark as the reader's system is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from html import escape

from antifreeze.doctor.findings.model import Finding
from antifreeze.doctor.report.style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page_head(name: str, style: str = STYLE) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
    yield f'<link rel="icon" href="data:,"><title>{escape(name)}</title><style>{style}</style></head><body><main>'


def page_foot(command: str) -> str:
    return f"<footer>made by <code>{escape(command)}</code>; nothing in this page leaves your machine</footer></main></body></html>\n"


def prose(text: str) -> str:
    """Escaped; what stands between backticks becomes code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def tags(finding: Finding) -> str:
    return f'<b class="tag">{escape(finding.code)}</b><b class="tag">{finding.confidence.value}</b>'


def finding_section(finding: Finding) -> str:
    return f'<section class="two">{_list("Evidence", finding.evidence)}{_list("What to do", finding.advice)}</section>'


def folded_finding(finding: Finding, before: str = "Also: ", opened: bool = False) -> str:
    summary = f"<summary>{before}{prose(finding.verdict)} {tags(finding)}</summary>"
    return f'<details class="also {finding.severity.value}"{" open" if opened else ""}>{summary}{finding_section(finding)}</details>'


def _list(heading: str, lines: Iterable[str]) -> str:
    items = listed_items(lines)
    return f"<div><h2>{heading}</h2>{items}</div>" if items else ""


def listed_items(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{prose(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def write_whole(path: str, text: str) -> None:
    """Whole or not at all: a reader of the file never sees half of it. Raises OSError."""
    path = os.path.realpath(path)  # a link stays one
    if os.path.exists(path) and not os.path.isfile(path):  # /dev/stdout, /dev/null, a pipe: written to, never replaced
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    part = f"{path}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except OSError:
        if os.path.isfile(part):
            os.unlink(part)
        raise


def why_not_writable(path: str) -> str | None:
    """Asked before hours of work whose result goes there; nothing is made or changed."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        return "it is a folder"
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    asked = path if os.path.exists(path) else folder
    return None if os.access(asked, os.W_OK) else f"{asked} may not be written"
