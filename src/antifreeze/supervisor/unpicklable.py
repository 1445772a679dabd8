"""What keeps a data set from being sent to a fresh process, named by its path: `dataset.reader.handle`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from antifreeze.parts import named_parts

_DEPTH = 6
_WIDTH = 200


def name_culprit(error: Exception, parts: dict[str, Any], dumps: Callable[[Any], Any] = pickle.dumps) -> Exception:
    """The same kind of error, with the path of what did not pickle among `parts` (name -> object) and what to do."""
    found = next((path for name, part in parts.items() if (path := find(part, name, dumps)) is not None), None)
    if found is None:
        return error
    text = (
        f"{error}\n  antifreeze: it cannot be sent to a worker because of {found}\n"
        "  what to do: open it in the worker (in __getitem__, on first use) instead of in __init__, drop it in __getstate__, "
        'or use multiprocessing_context="fork"'
    )
    try:
        return type(error)(text)
    except Exception:
        return pickle.PicklingError(text)


def find(value: Any, path: str, dumps: Callable[[Any], Any], depth: int = _DEPTH) -> str | None:
    """The deepest part of `value` that does not pickle by itself; None where all of it does."""
    if _pickles(value, dumps):
        return None
    if depth:
        for name, part in named_parts(list(value) if isinstance(value, set) else value, _WIDTH):
            deeper = find(part, f"{path}{name}", dumps, depth - 1)
            if deeper is not None:
                return deeper
    kind = type(value)
    return f"{path} ({kind.__module__}.{kind.__qualname__})"


def _pickles(value: Any, dumps: Callable[[Any], Any]) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True
