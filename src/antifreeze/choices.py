"""What `antifreeze run` or `%antifreeze` chose for loaders that do not say it themselves. Nothing is chosen unless they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_ONLY_WITH_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0, "multiprocessing_context": None}
"""torch's arguments that contradict num_workers=0, and what they are without."""


@dataclass(frozen=True)
class Choices:
    options: Mapping[str, Any] = field(default_factory=dict)
    workers: int | str | None = None
    on_made: Callable[[Any], None] | None = None  # is told of every loader

    def fill(self, given: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Our keyword arguments: what the script set to something of its own stays."""
        chosen = {name: value for name, value in self.options.items() if given[name] == defaults[name]}
        return {**given, **chosen}

    def with_workers(self, torch_arguments: dict[str, Any], iterable: bool) -> dict[str, Any]:
        """`--workers` stands above the script's num_workers; but an iterable data set may repeat itself once per worker."""
        if self.workers is None or iterable:
            return torch_arguments
        without = {} if self.workers else _ONLY_WITH_WORKERS
        return {**torch_arguments, **without, "num_workers": self.workers}


_current = Choices()


def current() -> Choices:
    return _current


def choose(choices: Choices) -> None:
    """For all loaders that this process makes from now on."""
    global _current
    _current = choices
