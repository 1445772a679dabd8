"""Calls a function right after a module was first imported, whoever imports it; touches nothing else of Python's import.

1. Imports nothing that Python has not already: every process that inherits `antifreeze run` pays for this file at its start.
2. The module's own loader and spec stay as they are; only its one exec_module is followed by the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class _After:
    """A finder that finds nothing itself: it asks the others, once, for one module."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            spec = None if finder is self or find_spec is None else find_spec(name, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            loader.__dict__.pop("exec_module", None)
            run(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._call()

        loader.exec_module = exec_module


def after_import(name: str, call: Callable[[], None]) -> None:
    """At once where it is imported already."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _After(name, call))


def forget(name: str) -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not (isinstance(finder, _After) and finder._name == name)]
