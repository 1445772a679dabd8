"""What keeps a data set from being sent to a fresh process, named by its path: `dataset.reader.handle`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

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
        for name, part in _parts(value):
            deeper = find(part, f"{path}{name}", dumps, depth - 1)
            if deeper is not None:
                return deeper
    kind = type(value)
    return f"{path} ({kind.__module__}.{kind.__qualname__})"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in list(value.items())[:_WIDTH])
    elif isinstance(value, (list, tuple, set)):
        yield from ((f"[{number}]", part) for number, part in enumerate(list(value)[:_WIDTH]))
    elif hasattr(value, "__dict__"):
        yield from ((f".{name}", part) for name, part in list(vars(value).items())[:_WIDTH])


def _pickles(value: Any, dumps: Callable[[Any], Any]) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True
