"""`module:object` or `script.py:object` on a command line, made into the object; each way to fail has its sentence."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from typing import Any

from antifreeze.checks.errors import NotCheckable
from antifreeze.torch_private import TorchDataLoader


def load_target(name: str, *, call: bool = True) -> Any:
    """A data set, a loader, or (`call`) what a function of no arguments makes. The module is imported, not run as a script."""
    module_name, _, path = name.rpartition(":")
    if not module_name or not path:
        raise NotCheckable(f"{name!r}: expected MODULE:OBJECT, such as mypackage.data:train_set or train.py:train_set")
    sys.path.insert(0, os.getcwd())
    found: Any = _import(module_name)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise NotCheckable(f"{module_name} has no {path!r}{_candidates(found)}") from None
    return _made(found, path) if call else found


def _import(name: str) -> Any:
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        if not os.path.isfile(name):
            raise NotCheckable(f"{name}: there is no such file")
        sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
        stem = os.path.basename(name)[:-3]
        spec = importlib.util.spec_from_file_location(stem, name)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[stem] = module  # so that its classes pickle by name
        spec.loader.exec_module(module)
        return module
    except NotCheckable:
        raise
    except SystemExit as error:
        raise NotCheckable(f"{name} ended the program as it was imported (SystemExit {error.code}): put that below a main guard") from None
    except Exception as error:
        raise NotCheckable(f"{name} does not import: {_told(error)}") from error


def _made(found: Any, path: str) -> Any:
    is_dataset = hasattr(type(found), "__getitem__") or isinstance(found, TorchDataLoader)
    if is_dataset or not callable(found) or hasattr(type(found), "__iter__"):
        return found
    try:
        return found()
    except Exception as error:
        raise NotCheckable(f"{path}() did not make a data set: {_told(error)}") from error


def _told(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and os.path.abspath(frame.filename) != os.path.abspath(__file__)]
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {error}{where}"


def _candidates(module: Any) -> str:
    names = (
        [name for name, value in vars(module).items() if _looks_right(value) and not name.startswith("_")]
        if hasattr(module, "__dict__")
        else []
    )
    return f"; it has {', '.join(sorted(names)[:8])}" if names else ""


def _looks_right(value: Any) -> bool:
    return isinstance(value, TorchDataLoader) or (
        hasattr(type(value), "__getitem__") and hasattr(type(value), "__len__") and not isinstance(value, (str, dict, list, tuple))
    )
