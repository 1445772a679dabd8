"""The map in docs/architecture.md is true: every module stands on it, and everything on it exists."""

from __future__ import annotations

from pathlib import Path

from map_rules import Map, missing_from_map, read_map

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"


def the_map() -> Map:
    assert PAGE.exists(), f"{PAGE.relative_to(ROOT)} does not exist"
    seen = read_map(PAGE.read_text(encoding="utf-8"))
    assert seen is not None, "no map found: a code block below a heading with the word 'map' (see map_rules.py)"
    return seen


def test_every_module_stands_on_the_map() -> None:
    modules = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "src" / "antifreeze").rglob("*.py"))
    assert modules
    assert missing_from_map(the_map(), modules) == []


def test_everything_on_the_map_exists() -> None:
    seen = the_map()
    assert [name for name in sorted(seen.files) if not (ROOT / name).is_file()] == []
    assert [name for name in sorted(seen.folders) if not (ROOT / name).is_dir()] == []


EXAMPLE = """
# Architecture
## The map
Top to bottom.
```
src/antifreeze/
  __init__.py      public names
  loader.py        DataLoader         errors.py  exceptions, drawn
  supervisor/      state.py decides, `process.py` acts
  slots/           shared memory
    ring.py  lease.py
  worker/
    main.py
tests/  faults/ and more
```
```
other/elsewhere.py
```
"""


def test_the_reader_knows_folders_and_files() -> None:
    base = "src/antifreeze/"
    files = {"__init__.py", "loader.py", "errors.py", "supervisor/state.py", "supervisor/process.py", "slots/ring.py", "slots/lease.py"}
    seen = read_map(EXAMPLE)
    assert seen is not None
    assert seen.files == {base + name for name in files | {"worker/main.py"}}
    assert seen.folders == {base, base + "supervisor/", base + "slots/", base + "worker/", "tests/"}


def test_the_reader_knows_a_drawn_tree() -> None:
    seen = read_map("## Map\n```\nsrc/\n├── worker/\n│   └── main.py\n└── cli.py\n```\n")
    assert seen == Map({"src/", "src/worker/"}, {"src/worker/main.py", "src/cli.py"})


def test_a_module_that_is_not_on_the_map_is_named() -> None:
    seen = read_map(EXAMPLE)
    assert seen is not None
    there = ["src/antifreeze/loader.py", "src/antifreeze/slots/__init__.py", "src/antifreeze/__init__.py"]
    lost = ["src/antifreeze/slots/loader.py", "src/antifreeze/plan/__init__.py", "src/antifreeze/slots/layout.py"]
    assert missing_from_map(seen, there + lost) == lost


def test_a_page_without_a_map_has_none() -> None:
    assert read_map("# Architecture\n## The way of a batch\n```\nloader.py\n```\n") is None
    assert read_map("# The map\nno block\n## Other\n```\nloader.py\n```\n") is None
