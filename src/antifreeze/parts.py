"""What an object holds, as far as attributes and Python's own containers lead, and how to go through it. What is done with it, and how far
it goes, is for whoever asks.

    Reach         all of it, the nearest first, each once, at most so many: short looks at a whole data set
                  likeness.py: is it still what it was?  as_found.py: where may it keep what it opens?
    named_parts   what one object holds, by the name that leads there (`.reader`, `[3]`): whatever is told by its path, `dataset.files[3]`
                  traps.py: handles and generators.  unpicklable.py: what does not pickle.
                  containers.py, checks/live/objects.py: what a forked worker copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any


class Reach:
    """What is reached from `root`: `found` grows while it is gone through, by the parts that are added of each. Not among it are `leaves`,
    and what would be more than `most`."""

    def __init__(self, root: Any, leaves: tuple[type, ...], most: int) -> None:
        self.found = [root]
        self._seen = {id(root)}
        self._leaves = leaves
        self._plainly_leaves = frozenset(leaves)  # most parts are, and this is quicker to tell than by isinstance
        self._most = most

    def add(self, parts: Iterable[Any]) -> None:
        found, seen, plainly_leaves = self.found, self._seen, self._plainly_leaves
        for part in parts:
            if type(part) not in plainly_leaves and id(part) not in seen and len(found) < self._most and not isinstance(part, self._leaves):
                seen.add(id(part))
                found.append(part)


def named_parts(value: Any, most: int | None = None) -> list[tuple[str, Any]]:
    """What leads to each of its parts, as it is written in Python, and the part; the first `most` of them. Nothing leads into a set:
    whoever wants to go there gives a list of it."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in list(islice(value.items(), most))]
    if isinstance(value, (list, tuple)):
        return [(f"[{number}]", part) for number, part in enumerate(list(islice(value, most)))]
    attributes = getattr(value, "__dict__", None)
    return [(f".{name}", part) for name, part in list(islice(attributes.items(), most))] if attributes else []
