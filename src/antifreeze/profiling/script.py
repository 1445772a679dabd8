"""A script's own loader: the script is run as __main__ until it iterates the loader of that name, and no further.

This is the one place outside `antifreeze run` that changes torch, in a process that lives for this question only.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from antifreeze.checks.errors import NotCheckable
from antifreeze.torch_private import TorchDataLoader


class _Reached(BaseException):
    """Not an Exception: the script's own handlers must not catch it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader


def loader_of_script(path: str, name: str) -> Any:
    if not os.path.isfile(path):
        raise NotCheckable(f"{path}: there is no such file")
    seen: set[str] = set()
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    arguments, sys.argv = sys.argv, [path]
    try:
        with _stopping_at(name, seen):
            runpy.run_path(path, run_name="__main__")
    except _Reached as reached:
        return reached.loader
    except SystemExit as error:
        raise NotCheckable(f"{path} ended (SystemExit {error.code}) before it iterated a loader called {name!r}{_others(seen)}") from None
    except Exception as error:
        raise NotCheckable(f"{path} raises {type(error).__name__}: {error}, before it iterates a loader called {name!r}") from error
    finally:
        sys.argv = arguments
    raise NotCheckable(f"{path} ended without iterating a loader called {name!r}{_others(seen)}")


@contextmanager
def _stopping_at(name: str, seen: set[str]) -> Iterator[None]:
    original = TorchDataLoader.__iter__

    def iterate(loader: Any) -> Any:
        names = set(_names_of(loader, sys._getframe(1)))
        if name in names:
            raise _Reached(loader)
        seen.update(names)
        return original(loader)

    TorchDataLoader.__iter__ = iterate  # type: ignore[method-assign]
    try:
        yield
    finally:
        TorchDataLoader.__iter__ = original  # type: ignore[method-assign]


def _names_of(loader: Any, frame: FrameType | None) -> Iterator[str]:
    """The variables, and the attributes of `self`, that hold it, in all callers."""
    while frame is not None:
        for names in (frame.f_locals, frame.f_globals, getattr(frame.f_locals.get("self"), "__dict__", {})):
            yield from (name for name, value in list(names.items()) if value is loader and name.isidentifier())
        frame = frame.f_back


def _others(seen: set[str]) -> str:
    return f"; it iterated {', '.join(sorted(seen))}" if seen else "; it iterated none"
