"""How a sampler's key is named, in errors, lists and the journal."""

from __future__ import annotations

from typing import Any


def shown(key: Any, position: int | None = None) -> str:
    """Its repr, or, where it has none, its type and its place in the order."""
    try:
        return repr(key)
    except Exception as error:
        place = "" if position is None else f" at position {position} of the epoch"
        return f"<{type(key).__qualname__}{place}, whose repr raises {type(error).__name__}>"
