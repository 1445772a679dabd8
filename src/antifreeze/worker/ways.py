"""How a map-style data set is asked for its samples: one by one, or all of a task in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Subset

from antifreeze.signals import came_from_signal
from antifreeze.worker.gather import gather_of


def fetches_many(dataset: Any) -> bool:
    """Whether the data set is asked for whole batches."""
    return ways_to_fetch(dataset)[1] is not None


def takes_parts(dataset: Any) -> bool:
    """Whether part of a batch may be asked for: __getitems__ is promised whole batches, but where rows are gathered it is not called."""
    return not fetches_many(dataset) or gather_of(dataset) is not None


def ways_to_fetch(dataset: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """What gives sample i for [i], and __getitems__ where there is one. A plain Subset of a data set without it only loops: we loop
    ourselves, so that each sample has its own seed, deadline and error."""
    if type(dataset) is Subset and getitems_of(dataset.dataset) is None:
        return _Part(ways_to_fetch(dataset.dataset)[0], dataset), None
    return dataset, getitems_of(dataset)


def getitems_of(dataset: Any) -> Callable[[Any], Any] | None:
    """A __getattr__ that fails for what it does not know knows no __getitems__."""
    try:
        many = getattr(dataset, "__getitems__", None)
    except Exception as error:
        if came_from_signal(error):
            raise
        return None
    return many if callable(many) else None


class _Part:
    """A Subset's samples by their number in it."""

    def __init__(self, source: Any, subset: Subset[Any]) -> None:
        self._source = source
        self._subset = subset  # its indices may be others by the next sample

    def __getitem__(self, index: Any) -> Any:
        return self._source[self._subset.indices[index]]
