"""A call after a module's first import, with real modules in a folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from antifreeze.running.hook import after_import, forget


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "late_module"]:
        del sys.modules[name]
    assert sys.meta_path == before, "the finder is gone"


def test_it_is_called_once_after_the_module_ran_and_leaves_no_trace(folder: Path) -> None:
    (folder / "late_module").mkdir()
    (folder / "late_module" / "__init__.py").write_text("import late_module.inner\ndone = True\n")
    (folder / "late_module" / "inner.py").write_text("")
    seen = []
    after_import("late_module", lambda: seen.append(getattr(sys.modules["late_module"], "done", False)))
    assert seen == []
    module = importlib.import_module("late_module.inner")
    assert seen == [True]
    assert type(sys.modules["late_module"].__spec__.loader) is SourceFileLoader  # type: ignore[union-attr]
    assert "exec_module" not in vars(sys.modules["late_module"].__spec__.loader)  # type: ignore[union-attr]
    importlib.reload(module)
    assert seen == [True]


def test_a_module_that_fails_is_tried_again(folder: Path) -> None:
    (folder / "late_module.py").write_text("raise OSError('a library is missing')")
    seen = []
    after_import("late_module", lambda: seen.append("called"))
    with pytest.raises(OSError, match="a library is missing"):
        importlib.import_module("late_module")
    assert seen == []
    (folder / "late_module.py").write_text("good = 1  # longer than before, so that no cache is believed\n")
    importlib.invalidate_caches()
    importlib.import_module("late_module")
    assert seen == ["called"]


def test_a_module_that_is_not_there_is_not_there(folder: Path) -> None:
    after_import("late_module", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("late_module")
    forget("late_module")


def test_a_module_that_is_there_already() -> None:
    seen = []
    after_import("json", lambda: seen.append("called"))
    assert seen == ["called"]
