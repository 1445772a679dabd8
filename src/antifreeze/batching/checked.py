"""Numbers that a user gives, checked once at the door: Python's, numpy's, or a tensor's."""

from __future__ import annotations

from operator import index
from typing import Any

from antifreeze.errors import OptionError

MOST = 1 << 40
"""No sample is longer: sums of what is rounded up from it fit into 64 bits."""


def whole_number(maker: str, name: str, number: Any, least: int | None = 1) -> int:
    """Of `least` or more; what is more than MOST stands for "any number"."""
    try:
        found = None if isinstance(number, bool) else index(number)
    except TypeError:
        found = None
    if found is None or (least is not None and found < least):
        above = "" if least is None else f" from {least} on"
        raise OptionError(f"{maker}: {name} is a whole number{above}, not {number!r}")
    return found if least is None else min(found, MOST)
